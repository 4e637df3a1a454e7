// One sequence's way through the cache: begin, grow, fork, end, swap.
#include <algorithm>

#include "base/check.h"
#include "kvcache/kv_cache_rep.h"

namespace kvasir {

int32_t KvCache::Rep::BlocksHeld(int32_t group, int32_t tokens, int32_t chunk) const {
  const KvGroup& rule = options.groups[static_cast<size_t>(group)];
  const int32_t all = BlocksFor(tokens);
  if (rule.rule == GroupRule::kAll) return all;
  // Between two Publish: the window before the chunk and the chunk, cut by blocks at both ends.
  const int64_t span = int64_t{rule.window} + chunk;
  return static_cast<int32_t>(std::min<int64_t>(all, span / bt + 2));
}

int32_t KvCache::Rep::HeldBlocks(const SequenceKv& kv, int32_t group) const {
  if (kv.tables_.empty()) return 0;
  int32_t held = 0;
  const std::vector<int32_t>& table = kv.tables_[static_cast<size_t>(group)];
  if (group == 0) return static_cast<int32_t>(table.size());
  for (size_t i = table.size(); i-- > 0 && table[i] >= 0;) ++held;
  return held;
}

// What Begin will take from a group. A swapped sequence that has more than the match brings its own
// blocks and shares the full ones of the match.
KvCache::Rep::Need KvCache::Rep::NeedOf(const CacheMatch& match, const SequenceKv& kv,
                                        int32_t group, int32_t tokens, int32_t chunk) const {
  Need need;
  int32_t shared = 0;
  if (group == 0) {
    shared = static_cast<int32_t>(match.nodes.size());
    need.unheld = match.unheld;
  } else {
    const SideGroup& side = sides[static_cast<size_t>(group) - 1];
    const int32_t after = std::max(match.tokens, kv.swapped_tokens_);
    const int32_t first = options.groups[static_cast<size_t>(group)].FirstNeeded(after) / bt;
    for (size_t i = static_cast<size_t>(first); i < match.nodes.size(); ++i) {
      const int32_t block = side.BlockOf(match.nodes[i]);
      if (block < 0) continue;
      ++shared;
      need.unheld += side.Listed(block) ? 1 : 0;
    }
  }
  need.fresh = std::max(0, BlocksHeld(group, tokens, chunk) - shared);
  return need;
}

void KvCache::Rep::Promise(SequenceKv& kv, int32_t group, int32_t blocks) {
  int32_t& own = kv.promised_[static_cast<size_t>(group)];
  promised[static_cast<size_t>(group)] += blocks - own;
  own = blocks;
}

void KvCache::Rep::DropPromises(SequenceKv& kv) {
  for (size_t g = 0; g < kv.promised_.size(); ++g) Promise(kv, static_cast<int32_t>(g), 0);
}

void KvCache::Rep::LeaseMatch(SequenceKv& kv, const CacheMatch& match, int32_t end) {
  ++tick;
  for (const int32_t n : match.nodes) {
    Hold(0, n);
    CacheNode& node = index.node(n);
    node.last_use = tick;
    node.overdue = false;
    if (node.hits < UINT16_MAX) ++node.hits;
    kv.tables_[0].push_back(n);
  }
  kv.attached_ = static_cast<int32_t>(match.nodes.size());
  for (size_t s = 0; s < sides.size(); ++s) {
    const int32_t first = options.groups[s + 1].FirstNeeded(end) / bt;
    for (size_t i = 0; i < match.nodes.size(); ++i) {
      const int32_t block = static_cast<int32_t>(i) < first ? -1 : sides[s].BlockOf(match.nodes[i]);
      if (block >= 0) Hold(static_cast<int32_t>(s) + 1, block);
      kv.tables_[s + 1].push_back(block);
    }
  }
}

void KvCache::Rep::CopyPartial(SequenceKv& kv, const CacheMatch& match,
                               std::vector<BlockMove>& moves) {
  CacheNode& source = index.node(match.partial);
  source.last_use = tick;
  source.overdue = false;
  if (source.hits < UINT16_MAX) ++source.hits;
  const int32_t owner = index.space(kv.space_).owner;
  // The source must not be the block that makes room for its copy.
  Hold(0, match.partial);
  for (size_t g = 0; g < pools.size(); ++g) {
    const int32_t group = static_cast<int32_t>(g);
    const int32_t from = g == 0 ? match.partial : sides[g - 1].BlockOf(match.partial);
    KVASIR_CHECK(from >= 0);
    if (g > 0) Hold(group, from);
    const int32_t to = Take(group, owner);
    kv.tables_[g].push_back(to);
    pools[g].SetFill(to, match.partial_tokens);
    moves.push_back({BlockMove::Kind::kCopy, group, from, to});
    if (g > 0) Unhold(group, from);
  }
  Unhold(0, match.partial);
  ++counts.copied;
}

// Blocks from the match's end to the swapped length come back from host memory; so do those of the
// other groups that the index does not have.
void KvCache::Rep::SwapIn(SequenceKv& kv, std::vector<BlockMove>& moves) {
  const int32_t owner = index.space(kv.space_).owner;
  const int32_t blocks = BlocksFor(kv.swapped_tokens_);
  for (auto& table : kv.tables_) table.resize(static_cast<size_t>(blocks), -1);
  for (const SequenceKv::Swapped& saved : kv.swapped_) {
    const size_t g = static_cast<size_t>(saved.group);
    int32_t& entry = kv.tables_[g][static_cast<size_t>(saved.index)];
    if (entry >= 0) continue;
    entry = Take(saved.group, owner);
    pools[g].SetFill(entry, std::min(bt, kv.swapped_tokens_ - saved.index * bt));
    moves.push_back({BlockMove::Kind::kSwapIn, saved.group, saved.slot, entry});
    ++counts.swapped_in;
  }
  for (const int32_t block : kv.tables_[0]) KVASIR_CHECK(block >= 0);
}

// Do the other groups have what a hit of so many tokens needs?
bool KvCache::Rep::SidesCover(const CacheMatch& match, int32_t tokens) const {
  for (size_t s = 0; s < sides.size(); ++s) {
    for (int32_t i = options.groups[s + 1].FirstNeeded(tokens) / bt; i * bt < tokens; ++i) {
      if (sides[s].BlockOf(match.nodes[static_cast<size_t>(i)]) < 0) return false;
    }
  }
  return true;
}

bool KvCache::Begin(SequenceKv& kv, const CacheMatch& match, const BeginOptions& begin,
                    std::vector<BlockMove>& moves, BeginResult* result) {
  Rep& r = *rep_;
  KVASIR_CHECK(kv.tables_.empty() && match.space >= 0);
  if (!Fits(match, kv, begin.promise, begin.chunk, 0)) return false;
  // Holding the source of a copy takes one block more for a moment; where that is not there, only
  // whole blocks are used.
  const int32_t swapped = kv.swapped_tokens_;
  bool partial = match.partial != kNoNode && swapped <= match.tokens;
  for (int32_t g = 0; partial && g < groups(); ++g) {
    const Rep::Need need = r.NeedOf(match, kv, g, begin.promise, begin.chunk);
    partial = need.total() + 1 <= r.Available(g);
  }
  CacheMatch used = match;
  int32_t whole = static_cast<int32_t>(match.nodes.size()) * r.bt;
  int32_t hit = partial ? match.tokens : std::min(whole, match.tokens);
  bool swap_in = swapped > hit;
  if (hit != match.tokens && !swap_in && !r.SidesCover(match, hit)) {
    used = CacheMatch{};
    used.space = match.space;
    hit = whole = 0;
    swap_in = swapped > 0;
    if (!Fits(used, kv, begin.promise, begin.chunk, 0)) return false;
  }
  result->hit = hit;
  result->computed = swap_in ? swapped : hit;
  result->swapped_in = swap_in ? swapped - whole : 0;
  kv.space_ = match.space;
  kv.tables_.resize(static_cast<size_t>(groups()));
  for (std::vector<int32_t>& table : kv.tables_)
    table.reserve(static_cast<size_t>(r.BlocksFor(begin.room)));
  kv.promised_.assign(static_cast<size_t>(groups()), 0);
  kv.attached_ = 0;
  if (begin.count) result->reason = r.CountLookup(used, hit, begin);
  if (begin.count) {
    kv.found_ = static_cast<int32_t>(used.nodes.size());
  } else {
    ++kv.resumed_;
  }
  r.LeaseMatch(kv, used, result->computed);
  if (swap_in) {
    r.SwapIn(kv, moves);
  } else if (partial) {
    r.CopyPartial(kv, match, moves);
  }
  for (const SequenceKv::Swapped& saved : kv.swapped_) r.host_free.push_back(saved.slot);
  kv.swapped_.clear();
  kv.swapped_tokens_ = 0;
  for (int32_t g = 0; g < groups(); ++g) {
    const int32_t most = r.BlocksHeld(g, begin.promise, begin.chunk);
    r.Promise(kv, g, std::max(0, most - r.HeldBlocks(kv, g)));
  }
  return true;
}

bool KvCache::Grow(SequenceKv& kv, int32_t from, int32_t to, std::vector<BlockMove>& moves) {
  Rep& r = *rep_;
  KVASIR_CHECK(from < to && !kv.tables_.empty());
  const int32_t first = from / r.bt;
  const int32_t end = r.BlocksFor(to);
  const auto shared = [&](size_t g) {
    const std::vector<int32_t>& table = kv.tables_[g];
    return first < static_cast<int32_t>(table.size()) &&
           r.pools[g].RefCount(table[static_cast<size_t>(first)]) > 1;
  };
  for (size_t g = 0; g < r.pools.size(); ++g) {
    const int32_t size = static_cast<int32_t>(kv.tables_[g].size());
    KVASIR_CHECK(first <= size);
    const int32_t need = std::max(0, end - size) + (shared(g) ? 1 : 0);
    if (need > r.Available(static_cast<int32_t>(g)) + kv.promised_[g]) return false;
  }
  const int32_t owner = r.index.space(kv.space_).owner;
  for (size_t g = 0; g < r.pools.size(); ++g) {
    const int32_t group = static_cast<int32_t>(g);
    std::vector<int32_t>& table = kv.tables_[g];
    if (shared(g)) {
      int32_t& entry = table[static_cast<size_t>(first)];
      const int32_t old = entry;
      entry = r.Take(group, owner);
      r.pools[g].SetFill(entry, from % r.bt);
      moves.push_back({BlockMove::Kind::kCopy, group, old, entry});
      r.Unhold(group, old);
      if (g == 0) kv.attached_ = std::min(kv.attached_, first);
      ++r.counts.copied;
    }
    while (static_cast<int32_t>(table.size()) < end) {
      table.push_back(r.Take(group, owner));
      if (kv.promised_[g] > 0) r.Promise(kv, group, kv.promised_[g] - 1);
    }
  }
  return true;
}

void KvCache::Fork(const SequenceKv& from, SequenceKv& to) {
  Rep& r = *rep_;
  KVASIR_CHECK(to.tables_.empty() && to.swapped_.empty() && !from.announced_);
  to.space_ = from.space_;
  to.tables_.resize(from.tables_.size());
  for (size_t g = 0; g < to.tables_.size(); ++g) {
    to.tables_[g].reserve(from.tables_[g].capacity());
    to.tables_[g] = from.tables_[g];
  }
  to.promised_.assign(from.promised_.size(), 0);
  to.attached_ = from.attached_;
  to.found_ = from.found_;
  to.resumed_ = from.resumed_;
  // The tail stays the lead's: whoever writes first copies it.
  if (to.attached_ > 0) {
    const int32_t tail = to.tables_[0][static_cast<size_t>(to.attached_ - 1)];
    if (r.index.node(tail).fill < r.bt) --to.attached_;
  }
  for (size_t g = 0; g < to.tables_.size(); ++g) {
    for (const int32_t block : to.tables_[g]) {
      if (block >= 0) r.Hold(static_cast<int32_t>(g), block);
    }
  }
}

void KvCache::Rep::Drop(SequenceKv& kv) {
  DropPromises(kv);
  for (size_t i = kv.tables_[0].size(); i-- > 0;) {
    for (size_t g = 0; g < kv.tables_.size(); ++g) {
      const int32_t block = kv.tables_[g][i];
      if (block >= 0) Unhold(static_cast<int32_t>(g), block);
    }
  }
  kv.tables_.clear();
  kv.promised_.clear();
  kv.attached_ = 0;
  kv.announced_ = false;
  kv.space_ = -1;
}

void KvCache::Release(SequenceKv& kv, std::span<const TokenId> tokens, int32_t computed,
                      const CacheHint& hint) {
  if (kv.tables_.empty()) return;
  Retract(kv);
  PublishTail(kv, tokens, computed);
  const std::vector<int32_t> path(kv.tables_[0].begin(), kv.tables_[0].begin() + kv.attached_);
  rep_->Mark(kv, path, hint);
  const auto session = rep_->session_ends.find(hint.session);
  if (session != rep_->session_ends.end()) {
    // Also where its end was there before it.
    const CacheMatch match = Match(kv.space_, tokens, computed);
    const int32_t end = match.partial != kNoNode ? match.partial
                        : !match.nodes.empty()   ? match.nodes.back()
                                                 : kNoNode;
    if (end != kNoNode) {
      session->second.node = end;
      session->second.created = rep_->index.node(end).created;
      session->second.tokens = match.tokens;
    }
  }
  rep_->Drop(kv);
}

void KvCache::MarkWaiting(const SequenceKv& kv, int32_t space, std::span<const TokenId> tokens,
                          int32_t computed, const CacheHint& hint) {
  if (computed <= 0) return;
  const CacheMatch match = Match(space, tokens, computed);
  std::vector<int32_t> path = match.nodes;
  if (match.partial != kNoNode) path.push_back(match.partial);
  rep_->Mark(kv, path, hint);
}

bool KvCache::SwapOut(SequenceKv& kv, std::span<const TokenId> tokens, int32_t computed,
                      std::vector<BlockMove>& moves) {
  Rep& r = *rep_;
  KVASIR_CHECK(!kv.tables_.empty() && kv.swapped_.empty());
  Retract(kv);
  const size_t blocks = static_cast<size_t>(r.BlocksFor(computed));
  size_t need = 0;
  for (const auto& table : kv.tables_) {
    for (size_t i = 0; i < blocks; ++i) need += table[i] >= 0 ? 1 : 0;
  }
  if (need == 0 || need > r.host_free.size()) return false;
  for (size_t g = 0; g < kv.tables_.size(); ++g) {
    for (size_t i = 0; i < blocks; ++i) {
      const int32_t block = kv.tables_[g][i];
      if (block < 0) continue;
      const int32_t slot = r.host_free.back();
      r.host_free.pop_back();
      kv.swapped_.push_back({static_cast<int32_t>(g), static_cast<int32_t>(i), slot});
      moves.push_back({BlockMove::Kind::kSwapOut, static_cast<int32_t>(g), block, slot});
    }
  }
  r.counts.swapped_out += need;
  PublishTail(kv, tokens, computed);
  kv.swapped_tokens_ = computed;
  r.Drop(kv);
  return true;
}

void KvCache::DropSwapped(SequenceKv& kv) {
  for (const SequenceKv::Swapped& saved : kv.swapped_) rep_->host_free.push_back(saved.slot);
  kv.swapped_.clear();
  kv.swapped_tokens_ = 0;
}

}  // namespace kvasir
