// cost: the block whose loss is expected to cost least goes first. The default.
//
// Each listed node is in one of 65 LRU lists by what it is worth; the victim is the oldest leaf of
// the list where age / weight is greatest. Age is in ticks of
// last_use, which count blocks made and released. weight is a product of
//   reuse      w^level, where w = 1 without hits, 2 for one, 4, 8, 16 from two, four, eight on,
//   then
//              64, 256, 1,024. The hits of a block that was evicted and came back go on counting.
//   retain     low 1/4, normal 1, session 4, high 16; what is marked kDrop goes before all others
//   depth      1.25 from 256 blocks on: attention makes a deep block dearer to recompute
// level in [0, 1] is learnt: a block evicted and wanted again says whether blocks without (level
// down) or with hits (level up) went too early, each measured by its share of the ghosts, as in
// ARC. At 0 reuse counts nothing and this is lru; a flood of one-off prompts, which nobody wants
// again, leaves level where it is.
// A victim always exists: by rule 1 the node released longest ago is the front of its list and has
// no children. O(lists) to choose, else O(1). Numbers and tuning: docs/cache-eviction.md.
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
  // One bit of filled_ each, and one list for kDrop.
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
  int ReuseOf(int32_t node) const;
  int ListOf(int32_t node) const;
  void Learn(int32_t node);
  void SetLevel(double level);

  CacheNode* nodes_;
  std::vector<NodeList> lists_;
  std::vector<uint8_t> credit_;  // per node: hits taken over from its ghost
  int64_t now_ = 0;              // newest last_use seen
  int32_t size_ = 0;
  uint64_t filled_ = 0;                   // bit i: list i is not empty
  BasicGhostList<uint8_t> ghosts_;        // mark: reuse class
  std::array<int32_t, 2> ghost_count_{};  // without, with hits
  double step_;
  double level_ = 1;
  std::array<double, kLists> value_{};  // 1 / weight
};

}  // namespace kvasir
