// EvictionPolicy: who goes next. Chosen by name; knows nodes, not blocks, requests or time.
//
// The cache tells it which nodes are unheld (Add) and which are no longer (Remove); every unheld
// node is listed, those with children too. Victim must be a node without children. Facts it may
// rely on:
//   1. A node is added again at each release; nodes of one release come deepest first. A node that
//      is held has all its ancestors held. So in order of Add every node stands before its
//      ancestors.
//   2. hits, last_use and retain of an ancestor are never below those of its descendants, except
//      that a descendant may have been marked Retain higher than an older ancestor; do not build on
//      more than rule 1 for "has no children": look at nodes[n].children.
//   3. All calls are O(1), Victim may look at a bounded number of nodes. No allocation, no clock,
//      no random.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kvcache/cache_node.h"

namespace kvasir {

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual std::string_view name() const = 0;
  // nodes[n] is unheld and unpinned from now on. The policy owns prev, next and queue until Remove.
  virtual void Add(int32_t node) = 0;
  virtual void Remove(int32_t node) = 0;  // held, pinned or gone
  // kNoNode if nothing is listed. Does not remove it: the cache calls Evicting, then Remove.
  virtual int32_t Victim() = 0;
  virtual void Evicting(int32_t node) { (void)node; }  // it goes for want of room: learn from it
  virtual int32_t size() const = 0;

  // nodes: the index's array, stays where it is; capacity: nodes it can ever hold.
  // Names: lru fifo slru s3fifo cost. Unknown ones are refused with the list.
  static Result<std::unique_ptr<EvictionPolicy>> Make(const std::string& name, CacheNode* nodes,
                                                      int32_t capacity);
};

}  // namespace kvasir
