// slru: segmented LRU. Blocks that were found again at least once are protected, half of the
// capacity at most; the others go first.
//
// A node without hits is added to the probation list, one with hits to the protected list. Where
// the protected list grows beyond its half, its oldest nodes are demoted to the new end of
// probation. The victim is the oldest of probation, and the oldest protected only if probation is
// empty.
// Order: nodes enter the protected list descendants before ancestors and leave it in that order, an
// ancestor never has fewer hits than its descendants, so the front of probation has no children;
// where hits tell otherwise a few further nodes are looked at, then a leaf below the front is
// taken. Good: a flood cannot touch the protected half. Bad: half the capacity is too much to
// protect when most blocks come back once, soon: loses to lru on conversations.
#pragma once

#include <string_view>

#include "kvcache/eviction_policy.h"
#include "kvcache/node_list.h"

namespace kvasir {

class SlruPolicy final : public EvictionPolicy {
 public:
  SlruPolicy(CacheNode* nodes, int32_t capacity)
      : nodes_(nodes), probation_(nodes), protected_(nodes), limit_(capacity / 2) {}
  std::string_view name() const override { return "slru"; }
  void Add(int32_t node) override;
  void Remove(int32_t node) override;
  int32_t Victim() override;
  int32_t size() const override { return probation_.size() + protected_.size(); }

 private:
  enum Queue : uint8_t { kProbation, kProtected };

  CacheNode* nodes_;
  NodeList probation_, protected_;
  int32_t limit_;
};

}  // namespace kvasir
