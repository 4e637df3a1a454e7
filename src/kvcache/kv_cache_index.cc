// What a sequence's blocks become in the index, and what the index gives to a sequence.
#include <algorithm>

#include "base/check.h"
#include "kvcache/kv_cache_rep.h"

namespace kvasir {

void KvCache::Rep::InsertNode(int32_t block, int32_t parent, std::span<const TokenId> tokens,
                              int32_t ready) {
  index.Insert(block, parent, tokens, ready, ++tick);
  owners.AddBlock(index.space(index.node(block).space).owner);
  pools[0].SetCached(block, true);
}

int32_t KvCache::Rep::ParentOf(const SequenceKv& kv, int32_t at) const {
  return at == 0 ? PrefixIndex::Top(kv.space_) : kv.tables_[0][static_cast<size_t>(at - 1)];
}

std::span<const TokenId> KvCache::Rep::BlockTokens(std::span<const TokenId> tokens, int32_t at,
                                                   int32_t end) const {
  const int32_t first = at * bt;
  return tokens.subspan(static_cast<size_t>(first),
                        static_cast<size_t>(std::min(end, first + bt) - first));
}

// The blocks of the other groups that belong to this node: ours, unless it has some already.
void KvCache::Rep::AttachSides(SequenceKv& kv, int32_t at, int32_t node) {
  for (size_t s = 0; s < sides.size(); ++s) {
    int32_t& own = kv.tables_[s + 1][static_cast<size_t>(at)];
    if (own < 0) continue;
    const int32_t there = sides[s].BlockOf(node);
    if (there == own) continue;
    const int32_t group = static_cast<int32_t>(s) + 1;
    if (there < 0) {
      if (sides[s].NodeOf(own) != kNoNode) continue;  // a fork's, attached where it was made
      sides[s].Attach(node, own);
      pools[s + 1].SetCached(own, true);
      if (index.node(node).pins > 0) pools[s + 1].SetNamedPin(own, true);
      continue;
    }
    if (pools[s + 1].Fill(there) < pools[s + 1].Fill(own)) continue;
    Hold(group, there);
    Unhold(group, own);
    own = there;
  }
}

void KvCache::Rep::MergeInto(SequenceKv& kv, int32_t at, int32_t node) {
  int32_t& own = kv.tables_[0][static_cast<size_t>(at)];
  const int32_t gone = own;
  Hold(0, node);
  own = node;
  AttachSides(kv, at, node);
  Unhold(0, gone);
  // A tail that was ours: what begins a full block is of no use beside it.
  if (index.node(gone).listed && index.node(gone).fill < bt) EvictNode(gone, EvictReason::kMerged);
  ++counts.merged;
}

bool KvCache::Rep::AttachFull(SequenceKv& kv, std::span<const TokenId> tokens, int32_t at) {
  const int32_t own = kv.tables_[0][static_cast<size_t>(at)];
  const int32_t parent = ParentOf(kv, at);
  const std::span<const TokenId> key = BlockTokens(tokens, at, (at + 1) * bt);
  const int32_t there = index.Find(parent, key).equal;
  if (there != kNoNode && there != own) {
    if (index.node(there).ready < bt) return false;  // another computes it in this very step
    MergeInto(kv, at, there);
  } else {
    if (there == own) {
      index.node(own).ready = static_cast<uint16_t>(bt);
    } else if (index.node(own).present) {
      index.Rekey(own, key);
      index.node(own).ready = static_cast<uint16_t>(bt);
    } else {
      // A fork that shares the block may have another one before it: it would not hold the parent.
      if (pools[0].RefCount(own) > 1) return false;
      InsertNode(own, parent, key, bt);
    }
    AttachSides(kv, at, own);
    DropBeginnings(own);
  }
  kv.attached_ = at + 1;
  return true;
}

// All full blocks, as far as no other sequence is just computing one of them.
void KvCache::Rep::AttachAll(SequenceKv& kv, std::span<const TokenId> tokens, int32_t computed) {
  // A tail of ours that is a full block now is attached again, under its whole key.
  if (kv.attached_ > 0 && kv.attached_ * bt <= computed) {
    const int32_t tail = kv.tables_[0][static_cast<size_t>(kv.attached_ - 1)];
    if (index.node(tail).fill < bt) --kv.attached_;
  }
  while ((kv.attached_ + 1) * bt <= computed && AttachFull(kv, tokens, kv.attached_)) {
  }
}

// Unheld tails whose tokens all stand at the beginning of this node as well.
void KvCache::Rep::DropBeginnings(int32_t node) {
  for (;;) {
    const int32_t before = index.Predecessor(node);
    if (before == kNoNode || !index.node(before).listed || index.node(before).children > 0) return;
    if (index.node(before).fill >= index.node(node).ready || !index.Begins(before, node)) return;
    EvictNode(before, EvictReason::kMerged);
  }
}

// A tail gets more tokens; false if a sibling has just these.
bool KvCache::Rep::Extend(int32_t node, std::span<const TokenId> tokens) {
  if (static_cast<size_t>(index.node(node).fill) == tokens.size()) return true;
  // A pinned one keeps its key, so that Retract never has to give it up. Written by another as
  // well: nothing to add.
  if (index.node(node).pins > 0) return false;
  const PrefixIndex::Found found = index.Find(index.node(node).parent, tokens);
  if (found.equal != kNoNode || found.best_tokens == static_cast<int32_t>(tokens.size()))
    return false;
  index.Rekey(node, tokens);
  return true;
}

void KvCache::Announce(SequenceKv& kv, std::span<const TokenId> tokens, int32_t to) {
  Rep& r = *rep_;
  if (!r.options.prefix_caching) return;
  const int32_t last = kv.attached_ - 1;
  if (last >= 0 && to > last * r.bt) {
    const int32_t node = kv.tables_[0][static_cast<size_t>(last)];
    const int32_t fill = r.index.node(node).fill;
    if (fill < r.bt && to > last * r.bt + fill) {
      if (!r.Extend(node, r.BlockTokens(tokens, last, to))) return;
      kv.announced_ = true;
      if (r.index.node(node).fill < r.bt) return;
    }
  }
  for (int32_t at = kv.attached_; at * r.bt < to; ++at) {
    const int32_t own = kv.tables_[0][static_cast<size_t>(at)];
    const std::span<const TokenId> key = r.BlockTokens(tokens, at, to);
    const int32_t parent = r.ParentOf(kv, at);
    // What is there already, by whomever, is merged or tried again when it is written. A fork's
    // block that is a node keeps its key until then.
    if (r.index.node(own).present || r.pools[0].RefCount(own) > 1) return;
    const PrefixIndex::Found found = r.index.Find(parent, key);
    if (found.equal != kNoNode || found.best_tokens == static_cast<int32_t>(key.size())) return;
    const int32_t written =
        std::min<int32_t>(r.pools[0].Fill(own), static_cast<int32_t>(key.size()));
    r.InsertNode(own, parent, key, written);
    r.AttachSides(kv, at, own);
    kv.attached_ = at + 1;
    kv.announced_ = true;
    if (static_cast<int32_t>(key.size()) < r.bt) return;
  }
}

void KvCache::Retract(SequenceKv& kv) {
  Rep& r = *rep_;
  if (!kv.announced_) return;
  kv.announced_ = false;
  while (kv.attached_ > 0) {
    const int32_t node = kv.tables_[0][static_cast<size_t>(kv.attached_ - 1)];
    const CacheNode& at = r.index.node(node);
    if (at.ready == at.fill) return;
    if (at.ready > 0) {
      const std::span<const TokenId> written =
          r.index.tokens(node).subspan(0, static_cast<size_t>(at.ready));
      const std::vector<TokenId> key(written.begin(), written.end());
      // Somebody else may have announced just this tail in the same step.
      if (r.index.Find(at.parent, key).equal == kNoNode) {
        r.index.Rekey(node, key);
        return;
      }
    }
    --kv.attached_;
    r.DropNode(node, EvictReason::kMerged);
  }
}

void KvCache::Publish(SequenceKv& kv, std::span<const TokenId> tokens, int32_t from,
                      int32_t computed) {
  Rep& r = *rep_;
  for (size_t g = 0; g < r.pools.size(); ++g) {
    for (int32_t at = from / r.bt; at * r.bt < computed; ++at) {
      const int32_t block = kv.tables_[g][static_cast<size_t>(at)];
      KVASIR_CHECK(block >= 0 && r.pools[g].RefCount(block) == 1);
      r.pools[g].SetFill(block, std::min(r.bt, computed - at * r.bt));
    }
  }
  if (r.options.prefix_caching) {
    for (int32_t at = from / r.bt; kv.announced_ && at < kv.attached_; ++at) {
      const int32_t n = kv.tables_[0][static_cast<size_t>(at)];
      CacheNode& node = r.index.node(n);
      KVASIR_CHECK(at * r.bt + node.fill <= computed);
      node.ready = node.fill;
      if (node.fill == r.bt) r.DropBeginnings(n);
    }
    kv.announced_ = false;
    r.AttachAll(kv, tokens, computed);
  }
  r.ReleasePassed(kv, computed);
}

void KvCache::PublishTail(SequenceKv& kv, std::span<const TokenId> tokens, int32_t computed) {
  Rep& r = *rep_;
  if (!r.options.prefix_caching || computed <= 0) return;
  KVASIR_CHECK(!kv.announced_);
  r.AttachAll(kv, tokens, computed);
  if (kv.attached_ > 0) {
    const int32_t last = kv.attached_ - 1;
    const int32_t node = kv.tables_[0][static_cast<size_t>(last)];
    if (r.index.node(node).fill < r.bt) {
      if (computed <= last * r.bt + r.index.node(node).fill) return;
      const std::span<const TokenId> key = r.BlockTokens(tokens, last, computed);
      // Longer in place: its slots beyond the key were written by whoever holds it alone.
      if (r.pools[0].RefCount(node) == 1 &&
          r.pools[0].Fill(node) >= static_cast<int32_t>(key.size()) && r.Extend(node, key)) {
        r.index.node(node).ready = r.index.node(node).fill;
        r.DropBeginnings(node);
      }
      return;
    }
  }
  const int32_t at = kv.attached_;
  if (at != computed / r.bt || computed % r.bt == 0) return;
  const int32_t own = kv.tables_[0][static_cast<size_t>(at)];
  const std::span<const TokenId> key = r.BlockTokens(tokens, at, computed);
  const int32_t parent = r.ParentOf(kv, at);
  if (r.index.node(own).present) {
    if (r.pools[0].RefCount(own) > 1 || r.index.node(own).fill > key.size() || !r.Extend(own, key))
      return;
    r.index.node(own).ready = r.index.node(own).fill;
  } else {
    const PrefixIndex::Found found = r.index.Find(parent, key);
    if (found.best_tokens == static_cast<int32_t>(key.size()) || found.equal != kNoNode ||
        r.pools[0].RefCount(own) > 1)
      return;
    r.InsertNode(own, parent, key, static_cast<int32_t>(key.size()));
    r.AttachSides(kv, at, own);
  }
  kv.attached_ = at + 1;
  r.DropBeginnings(own);
}

// What no later row of this sequence reads, group by group.
void KvCache::Rep::ReleasePassed(SequenceKv& kv, int32_t computed) {
  for (size_t s = 0; s < sides.size(); ++s) {
    const int32_t group = static_cast<int32_t>(s) + 1;
    const int32_t end = options.groups[s + 1].FirstNeeded(computed) / bt;
    std::vector<int32_t>& table = kv.tables_[s + 1];
    for (int32_t at = std::min<int32_t>(end, static_cast<int32_t>(table.size())) - 1; at >= 0;
         --at) {
      int32_t& block = table[static_cast<size_t>(at)];
      if (block < 0) break;  // everything before went earlier
      Unhold(group, block);
      block = -1;
    }
  }
}

}  // namespace kvasir
