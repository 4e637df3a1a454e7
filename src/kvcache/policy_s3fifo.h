// s3fifo: a small queue for newcomers, a main queue for what was wanted again, and ghosts of
// what left the small one.
//
// A new node enters the small queue, or the main one if its chain is among the ghosts. A node
// that was matched comes back to its queue with one more life, three at most. While the small queue
// holds more than a tenth of the capacity, its oldest node goes and its chain becomes a ghost (as
// many ghosts as main has room for), or moves on to main if it has a life; else the oldest of main
// goes that has no life left: those with lives lose one and go to the back.
// Nodes with children go to the back of their queue. Each Victim looks at 32 nodes at most, then
// takes a leaf below the front.
// After Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023, with one
// difference: a node that is held leaves its queue, so it comes back at the end of it.
// Good: floods pass through the small queue. Bad: what comes back later than that must come twice.
#pragma once

#include <string_view>
#include <vector>

#include "kvcache/eviction_policy.h"
#include "kvcache/ghost_list.h"
#include "kvcache/node_list.h"

namespace kvasir {

class S3FifoPolicy final : public EvictionPolicy {
 public:
  S3FifoPolicy(CacheNode* nodes, int32_t capacity);
  std::string_view name() const override { return "s3fifo"; }
  void Add(int32_t node) override;
  void Remove(int32_t node) override;
  int32_t Victim() override;  // moves nodes between the queues
  void Evicting(int32_t node) override;
  int32_t size() const override { return small_.size() + main_.size(); }

 private:
  enum Queue : uint8_t { kSmall, kMain };
  struct State {
    uint8_t queue = kSmall;  // where it is, or was before it was held
    uint8_t lives = 0;
  };
  void ToBack(int32_t node, Queue queue);

  CacheNode* nodes_;
  NodeList small_, main_;
  int32_t small_limit_;
  std::vector<State> states_;  // per node
  BasicGhostList<uint8_t> ghosts_;
};

}  // namespace kvasir
