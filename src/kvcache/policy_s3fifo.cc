#include "kvcache/policy_s3fifo.h"

#include <algorithm>

namespace kvasir {

namespace {
constexpr uint8_t kMostLives = 3;
constexpr int kMostSteps = 32;
}  // namespace

S3FifoPolicy::S3FifoPolicy(CacheNode* nodes, int32_t capacity)
    : nodes_(nodes),
      small_(nodes),
      main_(nodes),
      small_limit_(std::max(1, capacity / 10)),
      states_(static_cast<size_t>(capacity)),
      ghosts_(capacity - capacity / 10) {}

void S3FifoPolicy::Add(int32_t node) {
  CacheNode& n = nodes_[static_cast<size_t>(node)];
  State& state = states_[static_cast<size_t>(node)];
  if (n.hits == 0) {
    state.lives = 0;
    // A tail has no name to be known by.
    state.queue = n.chain != 0 && ghosts_.Erase(n.chain).has_value() ? kMain : kSmall;
  } else if (state.lives < kMostLives) {
    ++state.lives;
  }
  n.queue = state.queue;
  (n.queue == kMain ? main_ : small_).PushBack(node);
}

void S3FifoPolicy::Remove(int32_t node) {
  (nodes_[static_cast<size_t>(node)].queue == kMain ? main_ : small_).Erase(node);
}

void S3FifoPolicy::ToBack(int32_t node, Queue queue) {
  Remove(node);
  nodes_[static_cast<size_t>(node)].queue = states_[static_cast<size_t>(node)].queue = queue;
  (queue == kMain ? main_ : small_).PushBack(node);
}

int32_t S3FifoPolicy::Victim() {
  for (int step = 0; step < kMostSteps && size() > 0; ++step) {
    const Queue queue = small_.size() > small_limit_ || main_.size() == 0 ? kSmall : kMain;
    const int32_t node = queue == kSmall ? small_.front() : main_.front();
    State& state = states_[static_cast<size_t>(node)];
    if (nodes_[static_cast<size_t>(node)].children > 0) {
      ToBack(node, queue);
    } else if (state.lives == 0) {
      return node;
    } else {
      state.lives = queue == kSmall ? uint8_t{0} : static_cast<uint8_t>(state.lives - 1);
      ToBack(node, kMain);
    }
  }
  return LeafBelow(nodes_, main_.size() > 0 ? main_.front() : small_.front());
}

void S3FifoPolicy::Evicting(int32_t node) {
  const CacheNode& n = nodes_[static_cast<size_t>(node)];
  states_[static_cast<size_t>(node)] = {};
  if (n.queue == kSmall && n.chain != 0) ghosts_.Insert(n.chain, 0);
}

}  // namespace kvasir
