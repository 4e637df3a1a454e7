// fifo: the block that was made first goes first, used or not.
//
// A block cannot go before its descendants, and without it they could not be found any more. So the
// victim is a leaf of the subtree of the oldest node that nobody holds: its subtree goes leaf by
// leaf, then the node itself. This is what plain FIFO over a hash table of blocks does in effect.
// The oldest is the top of a binary heap of listed nodes by (created, depth): O(log n) for Add and
// Remove, the one policy that is not O(1). Victim goes on below where it was, so taking away a
// path costs one descent; more than 1,024 levels in one call are cut short and the node
// released longest ago (which has no children) is taken instead.
// Good: a base line. Bad: a prefix in use all the time goes when its age has come.
#pragma once

#include <string_view>
#include <vector>

#include "kvcache/eviction_policy.h"
#include "kvcache/node_list.h"

namespace kvasir {

class FifoPolicy final : public EvictionPolicy {
 public:
  FifoPolicy(CacheNode* nodes, int32_t capacity);
  std::string_view name() const override { return "fifo"; }
  void Add(int32_t node) override;
  void Remove(int32_t node) override;
  int32_t Victim() override;
  int32_t size() const override { return released_.size(); }

 private:
  bool Older(int32_t a, int32_t b) const;
  void Put(size_t at, int32_t node);
  void SiftUp(size_t at, int32_t node);
  void SiftDown(size_t at, int32_t node);

  CacheNode* nodes_;
  NodeList released_;  // all listed ones in order of Add
  std::vector<int32_t> heap_;
  std::vector<int32_t> place_;  // of a node in the heap
  int32_t oldest_ = kNoNode;    // whose subtree is being taken away
  int32_t cursor_ = kNoNode;    // in it: where the next descent starts
};

}  // namespace kvasir
