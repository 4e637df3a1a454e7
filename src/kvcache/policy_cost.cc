#include "kvcache/policy_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvasir {

namespace {
constexpr int kDropList = CostPolicy::kLists - 1;
constexpr int32_t kDeep = 256;  // blocks
constexpr double kDeepWeight = 1.25;
// log2 of the weight of each reuse class at level 1. Up to 15 hits a block's worth grows with its
// hits; beyond, faster: so much use is a shared prefix, which has to outlive a flood.
constexpr std::array<double, CostPolicy::kReuse> kReuseWeight = {0, 1, 2, 3, 4, 6, 8, 10};
constexpr std::array<double, CostPolicy::kRetain> kRetainWeight = {0.25, 1, 4, 16};

// A block with that many hits has been added before and its ghost is gone.
constexpr uint16_t kLearnBelow = 4;

// How far one ghost moves the level at equal shares of both kinds: a pool's worth of them all the
// way and back, within bounds.
double Step(int32_t capacity) {
  return std::clamp(4.0 / std::max(capacity, 1), 0.0003, 0.01);
}
}  // namespace

CostPolicy::CostPolicy(CacheNode* nodes, int32_t capacity)
    : nodes_(nodes),
      lists_(kLists, NodeList(nodes)),
      credit_(static_cast<size_t>(capacity)),
      ghosts_(capacity / 2),
      step_(Step(capacity)) {
  SetLevel(1);
}

int CostPolicy::ReuseOf(int32_t node) const {
  const uint32_t credit = credit_[static_cast<size_t>(node)];
  return std::min<int>(kReuse - 1, std::bit_width(credit + nodes_[static_cast<size_t>(node)].hits));
}

int CostPolicy::ListOf(int32_t node) const {
  const CacheNode& n = nodes_[static_cast<size_t>(node)];
  if (n.retain == Retain::kDrop) return kDropList;
  const int depth = n.depth >= kDeep ? 1 : 0;
  const int retain = static_cast<int>(n.retain) - static_cast<int>(Retain::kLow);
  return (retain * kDepth + depth) * kReuse + ReuseOf(node);
}

void CostPolicy::SetLevel(double level) {
  level_ = std::clamp(level, 0.0, 1.0);
  for (int list = 0; list < kDropList; ++list) {
    const double reuse = std::exp2(kReuseWeight[static_cast<size_t>(list % kReuse)] * level_);
    const double depth = list / kReuse % kDepth == 1 ? kDeepWeight : 1;
    const double retain = kRetainWeight[static_cast<size_t>(list / kReuse / kDepth)];
    value_[static_cast<size_t>(list)] = 1 / (reuse * depth * retain);
  }
}

// A block comes back that had to go. Each kind is measured by how much of its own evictions comes
// back, as ARC does, since there are many more of one kind than of the other.
void CostPolicy::Learn(int32_t node) {
  const CacheNode& n = nodes_[static_cast<size_t>(node)];
  // A tail has no name to be known by.
  const std::optional<uint8_t> ghost = n.chain == 0 ? std::nullopt : ghosts_.Erase(n.chain);
  if (!ghost.has_value()) {
    if (n.hits == 0) credit_[static_cast<size_t>(node)] = 0;
    return;
  }
  // Use before it was evicted counts, and so does its coming back.
  credit_[static_cast<size_t>(node)] = static_cast<uint8_t>(1 << std::min<int>(*ghost, kReuse - 2));
  const bool reused = *ghost > 0;
  int32_t& mine = ghost_count_[reused];
  const double share = static_cast<double>(mine) / (ghost_count_[0] + ghost_count_[1]);
  --mine;
  SetLevel(level_ + (reused ? 0.5 : -0.5) * step_ / share);
}

void CostPolicy::Add(int32_t node) {
  CacheNode& n = nodes_[static_cast<size_t>(node)];
  if (n.hits < kLearnBelow) Learn(node);
  const int list = ListOf(node);
  n.queue = static_cast<uint8_t>(list);
  lists_[static_cast<size_t>(list)].PushBack(node);
  if (list != kDropList) filled_ |= uint64_t{1} << list;
  now_ = std::max(now_, n.last_use);
  ++size_;
}

void CostPolicy::Remove(int32_t node) {
  const int list = nodes_[static_cast<size_t>(node)].queue;
  lists_[static_cast<size_t>(list)].Erase(node);
  if (list != kDropList && lists_[static_cast<size_t>(list)].size() == 0)
    filled_ &= ~(uint64_t{1} << list);
  --size_;
}

int32_t CostPolicy::Victim() {
  if (const int32_t dropped = FirstLeaf(nodes_, lists_[kDropList]); dropped != kNoNode)
    return dropped;
  int32_t victim = kNoNode;
  double worst = -1;
  for (uint64_t left = filled_; left != 0; left &= left - 1) {
    const int list = std::countr_zero(left);
    const int32_t node = FirstLeaf(nodes_, lists_[static_cast<size_t>(list)]);
    if (node == kNoNode) continue;
    const double age = static_cast<double>(now_ - nodes_[static_cast<size_t>(node)].last_use + 1);
    const double score = age * value_[static_cast<size_t>(list)];
    if (score > worst) {
      worst = score;
      victim = node;
    }
  }
  if (victim == kNoNode && size_ > 0) {  // against rule 1: not seen, but no reason to end
    const size_t list =
        filled_ != 0 ? static_cast<size_t>(std::countr_zero(filled_)) : size_t{kDropList};
    victim = LeafBelow(nodes_, lists_[list].front());
  }
  return victim;
}

void CostPolicy::Evicting(int32_t node) {
  const CacheNode& n = nodes_[static_cast<size_t>(node)];
  if (n.retain == Retain::kDrop || n.chain == 0) return;
  const uint8_t reuse = static_cast<uint8_t>(ReuseOf(node));
  if (const std::optional<uint8_t> old = ghosts_.Erase(n.chain)) --ghost_count_[*old > 0];
  if (const std::optional<uint8_t> old = ghosts_.Insert(n.chain, reuse)) --ghost_count_[*old > 0];
  if (ghosts_.capacity() > 0) ++ghost_count_[reuse > 0];
}

}  // namespace kvasir
