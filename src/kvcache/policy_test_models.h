// For tests: the eviction policies in the plainest way, O(listed) for everything, no links.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kvcache/cache_node.h"

namespace kvasir {

class NaivePolicy {
 public:
  explicit NaivePolicy(const std::vector<CacheNode>& nodes) : nodes_(nodes) {}
  virtual ~NaivePolicy() = default;
  virtual void Add(int32_t node) { order_.push_back(node); }
  virtual void Remove(int32_t node) { std::erase(order_, node); }
  // lru: of those that may go the one added first.
  virtual int32_t Victim() { return OldestLeaf(order_); }
  virtual void Evicting(int32_t node) { (void)node; }

 protected:
  const CacheNode& At(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  int32_t OldestLeaf(const std::vector<int32_t>& list) const {
    for (const int32_t node : list) {
      if (At(node).children == 0) return node;
    }
    return kNoNode;
  }
  const std::vector<CacheNode>& nodes_;
  std::vector<int32_t> order_;  // of Add
};

class NaiveFifo final : public NaivePolicy {
 public:
  using NaivePolicy::NaivePolicy;
  int32_t Victim() override {
    if (order_.empty()) return kNoNode;
    int32_t node = *std::min_element(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      return std::tuple(At(a).created, At(a).depth, a) < std::tuple(At(b).created, At(b).depth, b);
    });
    while (At(node).children > 0) node = At(node).child;
    return node;
  }
};

class NaiveSlru final : public NaivePolicy {
 public:
  NaiveSlru(const std::vector<CacheNode>& nodes, int32_t capacity)
      : NaivePolicy(nodes), limit_(static_cast<size_t>(capacity / 2)) {}
  void Add(int32_t node) override {
    (At(node).hits > 0 ? protected_ : order_).push_back(node);
    while (protected_.size() > limit_) {
      order_.push_back(protected_.front());
      protected_.erase(protected_.begin());
    }
  }
  void Remove(int32_t node) override {
    std::erase(order_, node);
    std::erase(protected_, node);
  }
  int32_t Victim() override {
    const int32_t node = OldestLeaf(order_);
    return node != kNoNode ? node : OldestLeaf(protected_);
  }

 private:
  size_t limit_;
  std::vector<int32_t> protected_;
};

// Evicted chains: a place for each Insert, the oldest place goes first, an erased one stays empty.
struct NaiveChains {
  struct Place {
    uint64_t chain;
    int mark;  // -1: empty
  };
  size_t capacity;
  std::deque<Place> places;

  int Erase(uint64_t chain) {
    for (Place& place : places) {
      if (place.mark >= 0 && place.chain == chain) return std::exchange(place.mark, -1);
    }
    return -1;
  }
  void Insert(uint64_t chain, int mark) {
    if (chain == 0) return;  // a tail
    Erase(chain);
    places.push_back({chain, mark});
    if (places.size() > capacity) places.pop_front();
  }
  double Count(int from, int to) const {
    return static_cast<double>(std::count_if(places.begin(), places.end(), [&](const Place& p) {
      return p.mark >= from && p.mark <= to;
    }));
  }
};

class NaiveS3Fifo final : public NaivePolicy {
 public:
  NaiveS3Fifo(const std::vector<CacheNode>& nodes, int32_t capacity)
      : NaivePolicy(nodes),
        small_limit_(static_cast<size_t>(std::max(1, capacity / 10))),
        ghosts_{static_cast<size_t>(capacity - capacity / 10), {}} {}
  void Add(int32_t node) override {
    if (At(node).hits == 0) {
      in_main_[node] = ghosts_.Erase(At(node).chain) >= 0;
      lives_[node] = 0;
    } else {
      lives_[node] = std::min(3, lives_[node] + 1);
    }
    (in_main_[node] ? main_ : order_).push_back(node);
  }
  void Remove(int32_t node) override {
    std::erase(order_, node);
    std::erase(main_, node);
  }
  int32_t Victim() override {
    for (int step = 0; step < 32; ++step) {
      const bool small = order_.size() > small_limit_ || main_.empty();
      std::vector<int32_t>& from = small ? order_ : main_;
      if (from.empty()) return kNoNode;
      const int32_t node = from.front();
      const bool leaf = At(node).children == 0;
      if (leaf && lives_[node] == 0) return node;
      from.erase(from.begin());
      if (leaf && small) {
        lives_[node] = 0;
        in_main_[node] = true;
      } else if (leaf) {
        --lives_[node];
      }
      (in_main_[node] ? main_ : order_).push_back(node);
    }
    int32_t node = main_.empty() ? order_.front() : main_.front();
    while (At(node).children > 0) node = At(node).child;
    return node;
  }
  void Evicting(int32_t node) override {
    if (!in_main_[node]) ghosts_.Insert(At(node).chain, 0);
    in_main_.erase(node);
    lives_.erase(node);
  }

 private:
  size_t small_limit_;
  std::vector<int32_t> main_;
  std::map<int32_t, bool> in_main_;
  std::map<int32_t, int> lives_;
  NaiveChains ghosts_;
};

class NaiveCost final : public NaivePolicy {
 public:
  NaiveCost(const std::vector<CacheNode>& nodes, int32_t capacity)
      : NaivePolicy(nodes),
        step_(std::clamp(4.0 / capacity, 0.0003, 0.01)),
        ghosts_{static_cast<size_t>(capacity / 2), {}} {}
  void Add(int32_t node) override;
  void Remove(int32_t node) override;
  int32_t Victim() override;
  void Evicting(int32_t node) override;
  double level() const { return level_; }

 private:
  struct Worth {  // what a node was when it was added
    int reuse = 0;
    bool deep = false;
    int retain = 0;
    double added = 0;
    auto Key() const {
      return retain == 0 ? std::tuple(0, false, 0) : std::tuple(retain, deep, reuse);
    }
  };
  int Reuse(int32_t node);

  double step_, level_ = 1, now_ = 0;
  std::map<int32_t, int> credit_;
  std::map<int32_t, Worth> worth_;
  NaiveChains ghosts_;
};

}  // namespace kvasir
