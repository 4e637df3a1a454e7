// Blocks: held, listed, evicted.
#include "base/check.h"
#include "kvcache/kv_cache_rep.h"

namespace kvasir {

void KvCache::Rep::List(int32_t n) {
  CacheNode& node = index.node(n);
  KVASIR_CHECK(node.present && !node.listed && node.pins == 0);
  node.listed = true;
  node.last_use = ++tick;
  policy->Add(n);
  owners.List(index.space(node.space).owner, n);
}

void KvCache::Rep::Unlist(int32_t n) {
  CacheNode& node = index.node(n);
  KVASIR_CHECK(node.listed);
  policy->Remove(n);
  owners.Unlist(index.space(node.space).owner, n);
  node.listed = false;
}

void KvCache::Rep::Hold(int32_t group, int32_t block) {
  const size_t g = static_cast<size_t>(group);
  if (group == 0) {
    const CacheNode& node = index.node(block);
    if (node.listed) Unlist(block);
    if (node.pins > 0 && pools[0].RefCount(block) == 0) --pinned_unheld;
  } else if (sides[g - 1].Listed(block)) {
    sides[g - 1].Unlist(block);
  }
  pools[g].Ref(block);
}

void KvCache::Rep::Unhold(int32_t group, int32_t block) {
  BlockPool& pool = pools[static_cast<size_t>(group)];
  pool.Unref(block);
  if (pool.RefCount(block) > 0) return;
  if (group == 0) {
    if (!index.node(block).present) return;
    if (index.node(block).pins > 0) {
      ++pinned_unheld;
      return;
    }
    List(block);
    Overdue(block);
    return;
  }
  SideGroup& side = sides[static_cast<size_t>(group) - 1];
  const int32_t node = side.NodeOf(block);
  if (node != kNoNode && index.node(node).pins == 0) side.List(block);
}

int32_t KvCache::Rep::Evictable(int32_t group) const {
  if (group == 0) return policy->size();
  return sides[static_cast<size_t>(group) - 1].listed();
}

int32_t KvCache::Rep::Available(int32_t group) const {
  const size_t g = static_cast<size_t>(group);
  return static_cast<int32_t>(int64_t{pools[g].free()} + Evictable(group) - promised[g]);
}

// Above its quota an owner pays with its own blocks, so it cannot flush another's.
int32_t KvCache::Rep::QuotaVictim(int32_t owner) const {
  if (owner < 0 || owners.with_blocks() < 2) return kNoNode;
  const OwnerLists::Owner& own = owners.at(owner);
  const double quota = options.tenant_quota * pools[0].total();
  if (static_cast<double>(own.blocks) < quota) return kNoNode;
  return own.head;
}

int32_t KvCache::Rep::Take(int32_t group, int32_t owner) {
  BlockPool& pool = pools[static_cast<size_t>(group)];
  if (pool.free() > 0) return pool.Take();
  if (group > 0) {
    SideGroup& side = sides[static_cast<size_t>(group) - 1];
    const int32_t block = side.oldest();
    KVASIR_CHECK(block >= 0);
    side.Unlist(block);
    side.Detach(block);
    pool.SetCached(block, false);
    ++counts.evictions[static_cast<size_t>(EvictReason::kWindow)];
    return pool.Take();
  }
  const int32_t own = QuotaVictim(owner);
  const int32_t victim = own != kNoNode ? own : policy->Victim();
  KVASIR_CHECK(victim != kNoNode);
  EvictNode(victim, own != kNoNode ? EvictReason::kQuota : EvictReason::kCapacity);
  return pool.Take();
}

void KvCache::Rep::EvictNode(int32_t n, EvictReason reason) {
  const CacheNode& node = index.node(n);
  KVASIR_CHECK(node.listed && node.children == 0);
  if (reason == EvictReason::kCapacity || reason == EvictReason::kQuota) policy->Evicting(n);
  if (node.fill == bt && reason != EvictReason::kMerged) ghosts.Insert(node.chain, reason);
  Unlist(n);
  DropNode(n, reason);
}

void KvCache::Rep::DropNode(int32_t n, EvictReason reason) {
  const int32_t space = index.node(n).space;
  KVASIR_CHECK(!index.node(n).listed && index.node(n).pins == 0);
  for (size_t s = 0; s < sides.size(); ++s) {
    const int32_t block = sides[s].BlockOf(n);
    if (block < 0) continue;
    if (sides[s].Listed(block)) sides[s].Unlist(block);
    sides[s].Detach(block);
    pools[s + 1].SetCached(block, false);
  }
  DropExpiry(n);
  index.Remove(n);
  owners.DropBlock(index.space(space).owner);
  pools[0].SetCached(n, false);
  if (pools[0].RefCount(n) == 0) ++counts.evictions[static_cast<size_t>(reason)];
  EndSpaceIfDead(space);
}

void KvCache::Rep::EndSpaceIfDead(int32_t space) {
  PrefixIndex::Space& gone = index.space(space);
  if (gone.open || gone.owner < 0) return;
  owners.Close(gone.owner);
  gone.owner = -1;
}

}  // namespace kvasir
