// What is seen from outside, and the check of everything.
#include <algorithm>
#include <queue>

#include "base/check.h"
#include "base/hash.h"
#include "kvcache/kv_cache_rep.h"

namespace kvasir {

PoolBooks KvCache::books(int32_t group) const {
  const BlockPool& pool = rep_->pools[static_cast<size_t>(group)];
  PoolBooks books;
  books.total = pool.total();
  books.free = pool.free();
  books.filling = pool.Count(BlockState::kFilling);
  books.pinned = pool.Count(BlockState::kPinned);
  books.evictable = pool.Count(BlockState::kEvictable);
  // A promise is kept from free blocks first, then from evictable ones.
  books.reserved =
      std::min(rep_->promised[static_cast<size_t>(group)], books.free + books.evictable);
  const int64_t from_free = std::min(books.free, books.reserved);
  books.free -= from_free;
  books.evictable -= books.reserved - from_free;
  return books;
}

CacheCounts KvCache::counts() const {
  CacheCounts counts = rep_->counts;
  counts.cached_blocks = rep_->index.size();
  return counts;
}

int64_t KvCache::slots_allocated() const {
  const BlockPool& pool = rep_->pools[0];
  return int64_t{pool.total() - pool.free()} * rep_->bt;
}

int64_t KvCache::slots_used() const {
  return rep_->pools[0].used_slots();
}

std::vector<HotPrefix> KvCache::Hottest(int32_t most) const {
  const Rep& r = *rep_;
  // Best first by hits, from the tops; a bounded number of nodes is looked at.
  struct Candidate {
    int32_t hits;
    int32_t node;
    bool operator<(const Candidate& other) const {
      return hits != other.hits ? hits < other.hits : node > other.node;
    }
  };
  int32_t visits = 4096;
  std::priority_queue<Candidate> open;
  const auto push_set = [&](int32_t root) {
    std::vector<int32_t> stack;
    if (root != kNoNode) stack.push_back(root);
    int32_t best = 0;
    while (!stack.empty() && visits-- > 0) {
      const CacheNode& node = r.index.node(stack.back());
      if (node.hits > 0) open.push({node.hits, stack.back()});
      best = std::max<int32_t>(best, node.hits);
      stack.pop_back();
      for (const int32_t next : {node.left, node.right})
        if (next != kNoNode) stack.push_back(next);
    }
    return best;
  };
  const int32_t spaces = std::min(r.index.spaces(), 1024);
  for (int32_t s = 0; s < spaces; ++s)
    if (r.index.space(s).open) push_set(r.index.space(s).root);
  std::vector<HotPrefix> out;
  while (!open.empty() && visits > 0 && static_cast<int32_t>(out.size()) < most) {
    const Candidate at = open.top();
    open.pop();
    const CacheNode& node = r.index.node(at.node);
    // A prefix ends where fewer go on than came.
    if (push_set(node.child) == at.hits) continue;
    HotPrefix hot;
    hot.tokens = node.depth * r.bt + node.ready;
    hot.hits = node.hits;
    hot.holders = r.pools[0].RefCount(at.node);
    if (r.index.space(node.space).key == "0:") {
      const auto tokens = r.index.tokens(at.node);
      hot.head.assign(tokens.begin(), tokens.end());
    }
    out.push_back(std::move(hot));
  }
  return out;
}

std::vector<OwnerInfo> KvCache::owners(int32_t most) const {
  std::vector<OwnerInfo> out;
  const int32_t end = std::min(rep_->owners.size(), 65536);
  for (int32_t o = 0; o < end; ++o) {
    const OwnerLists::Owner& owner = rep_->owners.at(o);
    if (owner.spaces == 0) continue;
    OwnerInfo info;
    info.blocks = owner.blocks;
    if (owner.key == "s") {
      info.name = "default";
    } else if (owner.key.front() == 't') {
      info.name = owner.key.substr(1);
    } else {
      char text[32];
      std::snprintf(text, sizeof(text), "salt-%016llx",
                    static_cast<unsigned long long>(
                        Hash64(std::as_bytes(std::span(owner.key.data(), owner.key.size())),
                               rep_->options.name_seed)));
      info.name = text;
    }
    out.push_back(std::move(info));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const OwnerInfo& a, const OwnerInfo& b) { return a.blocks > b.blocks; });
  if (static_cast<int32_t>(out.size()) > most) out.resize(static_cast<size_t>(std::max(most, 0)));
  return out;
}

int64_t KvCache::bookkeeping_bytes() const {
  size_t bytes = rep_->index.bytes() + rep_->ghosts.bytes();
  for (const BlockPool& pool : rep_->pools) bytes += pool.bytes();
  for (const SideGroup& side : rep_->sides) bytes += side.bytes();
  return static_cast<int64_t>(bytes);
}

void KvCache::CheckIntegrity() const {
  const Rep& r = *rep_;
  r.index.CheckIntegrity();
  for (int32_t g = 0; g < groups(); ++g) {
    r.pools[static_cast<size_t>(g)].CheckIntegrity();
    KVASIR_CHECK(books(g).Balanced());
    KVASIR_CHECK(r.promised[static_cast<size_t>(g)] >= 0);
  }
  for (const SideGroup& side : r.sides) side.CheckIntegrity();
  int32_t listed = 0;
  int64_t pinned = 0;
  int32_t pinned_unheld = 0;
  std::vector<int64_t> owned(static_cast<size_t>(r.owners.size()), 0);
  for (int32_t n = 0; n < r.index.capacity(); ++n) {
    const CacheNode& node = r.index.node(n);
    KVASIR_CHECK(node.present == r.pools[0].Cached(n));
    KVASIR_CHECK(!node.listed || node.present);
    if (!node.present) continue;
    const bool held = r.pools[0].RefCount(n) > 0;
    KVASIR_CHECK(node.listed == (!held && node.pins == 0));
    KVASIR_CHECK(r.pools[0].NamedPin(n) == (node.pins > 0));
    KVASIR_CHECK(r.pools[0].Fill(n) >= node.ready);
    if ((held || node.pins > 0) && node.parent >= 0)
      KVASIR_CHECK(!r.index.node(node.parent).listed);
    listed += node.listed ? 1 : 0;
    pinned += node.pins > 0 ? 1 : 0;
    pinned_unheld += node.pins > 0 && !held ? 1 : 0;
    ++owned[static_cast<size_t>(r.index.space(node.space).owner)];
    for (size_t s = 0; s < r.sides.size(); ++s) {
      const int32_t block = r.sides[s].BlockOf(n);
      if (block < 0) continue;
      KVASIR_CHECK(r.pools[s + 1].Cached(block));
      KVASIR_CHECK(r.sides[s].Listed(block) ==
                   (r.pools[s + 1].RefCount(block) == 0 && !r.pools[s + 1].NamedPin(block)));
    }
  }
  KVASIR_CHECK(r.expiries.size() == r.expiry_of.size() && pinned_unheld == r.pinned_unheld);
  KVASIR_CHECK(listed == r.policy->size() && pinned == r.counts.pinned_by_name);
  int32_t with_blocks = 0;
  for (int32_t o = 0; o < r.owners.size(); ++o) {
    KVASIR_CHECK(owned[static_cast<size_t>(o)] == r.owners.at(o).blocks);
    with_blocks += r.owners.at(o).blocks > 0 ? 1 : 0;
  }
  KVASIR_CHECK(with_blocks == r.owners.with_blocks());
}

}  // namespace kvasir
