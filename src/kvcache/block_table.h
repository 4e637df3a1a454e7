// BlockTable: which blocks hold one sequence's tokens. Entry i holds tokens [i * block_tokens, (i +
// 1) * block_tokens).
//
// The numbers are plain int32_t since kernels read them as they are. A table holds one reference to
// each of its blocks; it must be empty (Clear) when it is destroyed, which is checked: a table that
// dies full has leaked blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kvcache/block_pool.h"

namespace kvasir {

// Bytes to be copied before the step runs, in the order of the list.
struct BlockCopy {
  BlockId from, to;
};

class BlockTable {
 public:
  explicit BlockTable(int32_t block_tokens);
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;
  ~BlockTable();

  std::span<const int32_t> blocks() const { return blocks_; }
  int32_t size() const { return static_cast<int32_t>(blocks_.size()); }
  bool empty() const { return blocks_.empty(); }
  static int32_t BlocksFor(int32_t tokens, int32_t block_tokens) {
    return (tokens + block_tokens - 1) / block_tokens;
  }

  // Adds n fresh blocks, or returns false and nothing changed.
  bool Grow(BlockPool& pool, int32_t n);

  // What stands between this table and writing the token at `position` (at most one past its last
  // slot).
  enum class Obstacle { kNone, kNeedsBlock, kNeedsCopy };
  Obstacle ObstacleAt(const BlockPool& pool, int32_t position) const;
  // Removes the obstacle with one fresh block; false and nothing changed if the pool has none. A
  // copy of a shared block is appended to `copies`.
  bool MakeWritable(BlockPool& pool, int32_t position, std::vector<BlockCopy>& copies);

  // Tokens [from, to) have been written: fills and seals.
  void Written(BlockPool& pool, int32_t from, int32_t to) const;

  // Takes a share of all blocks of `other`; this table must be empty.
  void ShareFrom(BlockPool& pool, const BlockTable& other);
  void Clear(BlockPool& pool);

 private:
  int32_t block_tokens_;
  std::vector<int32_t> blocks_;
};

}  // namespace kvasir
