#include "kvcache/policy_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvasir {

namespace {
constexpr int kDropList = CostPolicy::kLists - 1;
constexpr int32_t kDeep = 256;  // blocks
constexpr double kDeepWeight = 1.25;
constexpr std::array<double, CostPolicy::kRetain> kRetainWeight = {0.25, 1, 4, 16};
// How far one ghost moves the level, at equal shares of both kinds.
constexpr double kStep = 0.001;
}  // namespace

CostPolicy::CostPolicy(CacheNode* nodes, int32_t capacity)
    : nodes_(nodes),
      lists_(kLists, NodeList(nodes)),
      stamp_(static_cast<size_t>(capacity)),
      ghosts_(capacity / 2),
      step_(kStep) {
  SetLevel(1);
}

int CostPolicy::ListOf(const CacheNode& node) {
  if (node.retain == Retain::kDrop) return kDropList;
  const int reuse = std::min<int>(kReuse - 1, std::bit_width<uint32_t>(node.hits));
  const int depth = node.depth >= kDeep ? 1 : 0;
  const int retain = static_cast<int>(node.retain) - static_cast<int>(Retain::kLow);
  return (retain * kDepth + depth) * kReuse + reuse;
}

void CostPolicy::SetLevel(double level) {
  level_ = std::clamp(level, 0.0, 1.0);
  for (int list = 0; list < kDropList; ++list) {
    const double reuse = std::exp2(list % kReuse * level_);
    const double depth = list / kReuse % kDepth == 1 ? kDeepWeight : 1;
    const double retain = kRetainWeight[static_cast<size_t>(list / kReuse / kDepth)];
    value_[static_cast<size_t>(list)] = 1 / (reuse * depth * retain);
  }
}

// A block comes back that had to go. Each kind is measured by how much of its own evictions comes
// back, as ARC does, since there are many more of one kind than of the other.
void CostPolicy::Learn(const CacheNode& node) {
  const std::optional<uint8_t> mark = ghosts_.Erase(node.chain);
  if (!mark.has_value()) return;
  int32_t& mine = ghost_count_[*mark];
  const double share = static_cast<double>(mine) / (ghost_count_[0] + ghost_count_[1]);
  --mine;
  SetLevel(level_ + (*mark == 0 ? -0.5 : 0.5) * step_ / share);
}

void CostPolicy::Add(int32_t node) {
  CacheNode& n = nodes_[static_cast<size_t>(node)];
  if (n.hits < 4) Learn(n);
  const int list = ListOf(n);
  n.queue = static_cast<uint8_t>(list);
  lists_[static_cast<size_t>(list)].PushBack(node);
  if (list != kDropList) filled_ |= uint64_t{1} << list;
  stamp_[static_cast<size_t>(node)] = released_++;
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
    const double age = released_ - stamp_[static_cast<size_t>(node)];
    const double score = age * value_[static_cast<size_t>(list)];
    if (score > worst) {
      worst = score;
      victim = node;
    }
  }
  return victim;
}

void CostPolicy::Evicting(int32_t node) {
  const CacheNode& n = nodes_[static_cast<size_t>(node)];
  if (n.retain == Retain::kDrop) return;
  const uint8_t mark = n.hits > 0 ? 1 : 0;
  if (const std::optional<uint8_t> before = ghosts_.Erase(n.chain)) --ghost_count_[*before];
  if (const std::optional<uint8_t> gone = ghosts_.Insert(n.chain, mark)) --ghost_count_[*gone];
  if (ghosts_.capacity() > 0) ++ghost_count_[mark];
}

}  // namespace kvasir
