#include "kvcache/block_table.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

BlockTable::BlockTable(int32_t block_tokens) : block_tokens_(block_tokens) {
  KVASIR_CHECK(block_tokens > 0);
}

BlockTable::~BlockTable() {
  KVASIR_CHECK(blocks_.empty());
}

bool BlockTable::Grow(BlockPool& pool, int32_t n) {
  const auto fresh = pool.Allocate(n);
  if (!fresh) return false;
  for (const BlockId block : *fresh) blocks_.push_back(block.value);
  return true;
}

BlockTable::Obstacle BlockTable::ObstacleAt(const BlockPool& pool, int32_t position) const {
  const int32_t index = position / block_tokens_;
  KVASIR_CHECK(position >= 0 && index <= size());
  if (index == size()) return Obstacle::kNeedsBlock;
  const BlockId block(blocks_[static_cast<size_t>(index)]);
  return pool.RefCount(block) > 1 ? Obstacle::kNeedsCopy : Obstacle::kNone;
}

bool BlockTable::MakeWritable(BlockPool& pool, int32_t position, std::vector<BlockCopy>& copies) {
  const Obstacle obstacle = ObstacleAt(pool, position);
  if (obstacle == Obstacle::kNone) return true;
  if (obstacle == Obstacle::kNeedsBlock) return Grow(pool, 1);
  const auto fresh = pool.Allocate(1);
  if (!fresh) return false;
  int32_t& entry = blocks_[static_cast<size_t>(position / block_tokens_)];
  const BlockId from(entry);
  const BlockId to = fresh->front();
  // Slots from the position on hold nothing of this sequence.
  pool.SetFill(to, position % block_tokens_);
  copies.push_back({from, to});
  pool.Release(from);
  entry = to.value;
  return true;
}

void BlockTable::Written(BlockPool& pool, int32_t from, int32_t to) const {
  KVASIR_CHECK(from <= to && BlocksFor(to, block_tokens_) <= size());
  if (from == to) return;
  for (int32_t index = from / block_tokens_; index * block_tokens_ < to; ++index) {
    const BlockId block(blocks_[static_cast<size_t>(index)]);
    KVASIR_CHECK(pool.RefCount(block) == 1);
    const int32_t fill = std::min(block_tokens_, to - index * block_tokens_);
    pool.SetFill(block, fill);
    if (fill == block_tokens_) pool.Seal(block);
  }
}

void BlockTable::ShareFrom(BlockPool& pool, const BlockTable& other) {
  KVASIR_CHECK(blocks_.empty() && block_tokens_ == other.block_tokens_);
  blocks_ = other.blocks_;
  for (const int32_t block : blocks_) pool.Share(BlockId(block));
}

void BlockTable::Clear(BlockPool& pool) {
  for (const int32_t block : blocks_) pool.Release(BlockId(block));
  blocks_.clear();
}

}  // namespace kvasir
