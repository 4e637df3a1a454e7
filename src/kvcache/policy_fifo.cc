#include "kvcache/policy_fifo.h"

namespace kvasir {

namespace {
constexpr int kMostLevels = 1024;
}  // namespace

FifoPolicy::FifoPolicy(CacheNode* nodes, int32_t capacity)
    : nodes_(nodes), released_(nodes), place_(static_cast<size_t>(capacity)) {
  heap_.reserve(static_cast<size_t>(capacity));
}

bool FifoPolicy::Older(int32_t a, int32_t b) const {
  const CacheNode& x = nodes_[static_cast<size_t>(a)];
  const CacheNode& y = nodes_[static_cast<size_t>(b)];
  if (x.created != y.created) return x.created < y.created;
  return x.depth != y.depth ? x.depth < y.depth : a < b;
}

void FifoPolicy::Put(size_t at, int32_t node) {
  heap_[at] = node;
  place_[static_cast<size_t>(node)] = static_cast<int32_t>(at);
}

void FifoPolicy::SiftUp(size_t at, int32_t node) {
  while (at > 0 && Older(node, heap_[(at - 1) / 2])) {
    Put(at, heap_[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  Put(at, node);
}

void FifoPolicy::SiftDown(size_t at, int32_t node) {
  for (;;) {
    size_t least = 2 * at + 1;
    if (least >= heap_.size()) break;
    if (least + 1 < heap_.size() && Older(heap_[least + 1], heap_[least])) ++least;
    if (Older(node, heap_[least])) break;
    Put(at, heap_[least]);
    at = least;
  }
  Put(at, node);
}

void FifoPolicy::Add(int32_t node) {
  released_.PushBack(node);
  heap_.emplace_back();
  SiftUp(heap_.size() - 1, node);
}

void FifoPolicy::Remove(int32_t node) {
  released_.Erase(node);
  if (node == oldest_ || node == cursor_) oldest_ = cursor_ = kNoNode;
  const size_t at = static_cast<size_t>(place_[static_cast<size_t>(node)]);
  const int32_t last = heap_.back();
  heap_.pop_back();
  if (last == node) return;
  if (at > 0 && Older(last, heap_[(at - 1) / 2])) {
    SiftUp(at, last);
  } else {
    SiftDown(at, last);
  }
}

int32_t FifoPolicy::Victim() {
  if (heap_.empty()) return kNoNode;
  const int32_t top = heap_.front();
  int32_t node = top == oldest_ && cursor_ != kNoNode ? cursor_ : top;
  oldest_ = top;
  for (int level = 0; level < kMostLevels; ++level) {
    const CacheNode& n = nodes_[static_cast<size_t>(node)];
    if (n.children == 0) {
      cursor_ = node == top ? kNoNode : n.parent;
      return node;
    }
    node = n.child;
  }
  cursor_ = node;
  return released_.front();
}

}  // namespace kvasir
