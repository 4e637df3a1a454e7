// NodeList: a doubly linked list through the prev and next of CacheNodes. For eviction policies: a
// node is in at most one list. Indices into the array, no allocation; all calls O(1).
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/cache_node.h"

namespace kvasir {

class NodeList {
 public:
  explicit NodeList(CacheNode* nodes) : nodes_(nodes) {}

  int32_t front() const { return front_; }  // oldest; kNoNode if empty
  int32_t size() const { return size_; }
  int32_t After(int32_t node) const { return At(node).next; }

  void PushBack(int32_t node) {
    At(node).prev = back_;
    At(node).next = kNoNode;
    (back_ == kNoNode ? front_ : At(back_).next) = node;
    back_ = node;
    ++size_;
  }
  void Erase(int32_t node) {
    CacheNode& n = At(node);
    (n.prev == kNoNode ? front_ : At(n.prev).next) = n.next;
    (n.next == kNoNode ? back_ : At(n.next).prev) = n.prev;
    n.prev = n.next = kNoNode;
    --size_;
  }

 private:
  CacheNode& At(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

  CacheNode* nodes_;
  int32_t front_ = kNoNode, back_ = kNoNode;
  int32_t size_ = 0;
};

// The first node without children among the oldest `most` of a list; kNoNode if there is none.
inline int32_t FirstLeaf(const CacheNode* nodes, const NodeList& list, int most = 8) {
  int32_t node = list.front();
  for (int i = 0; i < most && node != kNoNode; ++i, node = list.After(node)) {
    if (nodes[static_cast<size_t>(node)].children == 0) return node;
  }
  return kNoNode;
}

// A node without children in the subtree of a listed one (kNoNode: kNoNode). What lies below an
// unheld node is unheld, so this is always a right victim; O(depth).
inline int32_t LeafBelow(const CacheNode* nodes, int32_t node) {
  while (node != kNoNode && nodes[static_cast<size_t>(node)].children > 0)
    node = nodes[static_cast<size_t>(node)].child;
  return node;
}

}  // namespace kvasir
