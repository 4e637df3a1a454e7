// GhostList: the names of blocks that were here. Tells "never seen" from "had to go" when a prompt
// comes back, and a policy what it has evicted too early.
//
// A bounded map from a chain hash (CacheNode::chain) to a mark, forgetting first in, first out.
// Nothing depends on it but counts and the order of eviction, so two chains of one hash are no harm
// beyond a wrong count.
// Memory: fixed at construction, 15 bytes an entry; no allocation later. Insert, Find and Erase
// take O(1) on average: open addressing with linear probing, at most two thirds full, deletion by
// shifting back, so there are no tombstones and no rehash. Deterministic. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/cache_types.h"

namespace kvasir {

template <typename Mark>
class BasicGhostList {
 public:
  // capacity 0: remembers nothing. Negative: CHECK.
  explicit BasicGhostList(int32_t capacity);

  // Remembers chain as the newest; an older entry of it is replaced. Returns the mark of the oldest
  // entry if that had to be forgotten for it. The place of an erased entry is free again only when
  // its turn to be forgotten comes, so size() can stay below capacity.
  std::optional<Mark> Insert(uint64_t chain, Mark mark);
  std::optional<Mark> Find(uint64_t chain) const;
  // Find, and forgets it.
  std::optional<Mark> Erase(uint64_t chain);
  void Clear();

  int32_t size() const { return size_; }
  int32_t capacity() const { return static_cast<int32_t>(chains_.size()); }
  int64_t bytes() const;

 private:
  static constexpr int32_t kEmpty = -1;

  size_t Home(uint64_t chain) const;
  size_t After(size_t place) const { return place + 1 == table_.size() ? 0 : place + 1; }
  size_t Locate(uint64_t chain) const;  // its place in table_, or the empty one that ends its run
  void Vacate(size_t place);            // empties it and closes the gap

  // Ring of entries in order of Insert; table_ finds them.
  std::vector<uint64_t> chains_;
  std::vector<Mark> marks_;
  std::vector<bool> live_;
  std::vector<int32_t> table_;  // index into the ring
  int32_t next_ = 0;            // of the ring: the oldest, overwritten next
  int32_t size_ = 0;
};

using GhostList = BasicGhostList<EvictReason>;

extern template class BasicGhostList<EvictReason>;
extern template class BasicGhostList<uint8_t>;

}  // namespace kvasir
