// lru: who was released longest ago goes first.
//
// One list in order of Add. A release lists a path deepest node first, and whoever holds a node
// holds its ancestors, so in that order every node stands before its ancestors: the front has no
// children, and a path is taken away from its end. Matching a node takes it out of the list,
// releasing it puts it at the back, so nothing else has to be counted.
// Good: the base line nobody loses to by much (docs/cache-eviction.md). Bad: a flood of one-off
// prompts longer than the pool flushes everything.
// Memory: nothing beside the links in the nodes.
#pragma once

#include <string_view>

#include "kvcache/eviction_policy.h"
#include "kvcache/node_list.h"

namespace kvasir {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(CacheNode* nodes) : list_(nodes) {}
  std::string_view name() const override { return "lru"; }
  void Add(int32_t node) override { list_.PushBack(node); }
  void Remove(int32_t node) override { list_.Erase(node); }
  int32_t Victim() override { return list_.front(); }
  int32_t size() const override { return list_.size(); }

 private:
  NodeList list_;
};

}  // namespace kvasir
