// cost: the block whose loss is expected to cost least goes first. The default.
//
// Each listed node is in one of 49 LRU lists by what it is worth; the victim is the oldest leaf of
// the list where age / weight is greatest. Age counts blocks released since. weight is a product of
//   reuse      2^(k * level), k = 0 for no hit, else 1 + floor(log2(hits)), 7 at most
//   retain     low 1/4, normal 1, session 4, high 16; what is marked kDrop goes before all others
//   depth      1.25 beyond 256 blocks: attention makes a deep block dearer to recompute
// level in [0, 1] is learnt: a block evicted and wanted again says whether blocks without (level
// down) or with (level up) hits went too early, each measured by its share of the ghosts. At 0
// reuse counts nothing and this is lru; so where reuse is no sign of more reuse it loses a percent
// or two to lru, and a flood of one-off prompts, which nobody wants again, leaves level where it
// is. Order: the node released longest ago is the front of its list and has no children (rule 1),
// so a victim always exists. O(lists) to choose, else O(1). Numbers and how they were chosen:
// docs/cache-eviction.md.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "kvcache/eviction_policy.h"
#include "kvcache/ghost_list.h"
#include "kvcache/node_list.h"

namespace kvasir {

class CostPolicy final : public EvictionPolicy {
 public:
  static constexpr int kReuse = 8, kDepth = 2, kRetain = 4;  // classes of each kind
  // 64 lists and one for kDrop.
  static constexpr int kLists = kReuse * kDepth * kRetain + 1;

  CostPolicy(CacheNode* nodes, int32_t capacity);
  std::string_view name() const override { return "cost"; }
  void Add(int32_t node) override;
  void Remove(int32_t node) override;
  int32_t Victim() override;
  void Evicting(int32_t node) override;
  int32_t size() const override { return size_; }

  double level() const { return level_; }

 private:
  static int ListOf(const CacheNode& node);
  void Learn(const CacheNode& node);
  void SetLevel(double level);

  CacheNode* nodes_;
  std::vector<NodeList> lists_;
  std::vector<uint32_t> stamp_;  // per node: released_ at its Add; differences wrap around
  uint32_t released_ = 0;
  int32_t size_ = 0;
  uint64_t filled_ = 0;                   // bit i: list i is not empty
  BasicGhostList<uint8_t> ghosts_;        // mark: had it hits
  std::array<int32_t, 2> ghost_count_{};  // by mark
  double step_;
  double level_ = 1;
  std::array<double, kLists> value_{};  // 1 / weight
};

}  // namespace kvasir
