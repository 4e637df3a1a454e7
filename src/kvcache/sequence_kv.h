// SequenceKv: which blocks hold one sequence's tokens, per group of layers. A value that only
// KvCache changes; kernels read tables as plain numbers.
//
// tables[g][i] holds tokens [i * block_tokens, (i + 1) * block_tokens) of group g; -1: released
// (out of the window). The sequence holds one reference to every block in its tables, and must be
// empty when it is destroyed, which is checked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "kvcache/cache_node.h"

namespace kvasir {

// Bytes moved before the step runs, in the order of the list.
struct BlockMove {
  enum class Kind : uint8_t { kCopy, kSwapOut, kSwapIn };
  Kind kind = Kind::kCopy;
  int32_t group = 0;
  int32_t from = -1;  // block; for kSwapIn a host slot
  int32_t to = -1;    // block; for kSwapOut a host slot
};

// What a request says about its blocks (kv_hint).
struct CacheHint {
  Retain retain = Retain::kNormal;
  bool last_use = false;
  int64_t expires_ns = INT64_MAX;  // its own blocks are dropped then, unless used again
  uint64_t session = 0;            // KvCache::Session; 0: none
};

class SequenceKv {
 public:
  SequenceKv() = default;
  SequenceKv(const SequenceKv&) = delete;
  SequenceKv& operator=(const SequenceKv&) = delete;
  ~SequenceKv() { KVASIR_CHECK(tables_.empty() && swapped_.empty() && space_ < 0); }

  bool empty() const { return tables_.empty(); }
  bool swapped() const { return !swapped_.empty(); }
  std::span<const int32_t> table(int32_t group = 0) const {
    return tables_[static_cast<size_t>(group)];
  }
  const std::vector<std::vector<int32_t>>& tables() const { return tables_; }

 private:
  friend class KvCache;
  struct Swapped {
    int32_t group, index, slot;
  };
  int32_t space_ = -1;                        // namespace
  std::vector<std::vector<int32_t>> tables_;  // empty: holds nothing
  int32_t attached_ = 0;                      // leading blocks of group 0 that are nodes
  int32_t found_ = 0;                         // blocks that others had made, at its first Begin
  int32_t resumed_ = 0;                       // further Begins: each counted a hit of its own
  bool announced_ = false;                    // some of them are not written yet
  std::vector<int32_t> promised_;             // per group: blocks promised and not yet taken
  std::vector<Swapped> swapped_;              // what lies in host memory
  int32_t swapped_tokens_ = 0;                // of so many tokens
};

}  // namespace kvasir
