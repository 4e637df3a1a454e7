#include "kvcache/block_pool.h"

#include "base/check.h"

namespace kvasir {

BlockPool::BlockPool(int32_t blocks) {
  KVASIR_CHECK(blocks >= 0);
  entries_.resize(static_cast<size_t>(blocks));
  free_ring_.resize(static_cast<size_t>(blocks));
  for (int32_t i = 0; i < blocks; ++i) free_ring_[static_cast<size_t>(i)] = i;
  free_count_ = blocks;
}

BlockPool::Entry& BlockPool::Held(BlockId block) {
  KVASIR_CHECK(block.value >= 0 && block.value < total_blocks());
  Entry& entry = entries_[static_cast<size_t>(block.value)];
  KVASIR_CHECK(entry.refs > 0);
  return entry;
}

const BlockPool::Entry& BlockPool::Held(BlockId block) const {
  return const_cast<BlockPool*>(this)->Held(block);
}

std::optional<std::vector<BlockId>> BlockPool::Allocate(int32_t n) {
  KVASIR_CHECK(n >= 0);
  if (n > free_count_) return std::nullopt;
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    const int32_t block = free_ring_[free_head_];
    free_head_ = free_head_ + 1 == free_ring_.size() ? 0 : free_head_ + 1;
    Entry& entry = entries_[static_cast<size_t>(block)];
    KVASIR_CHECK(entry.refs == 0 && !entry.sealed);
    entry.refs = 1;
    blocks.push_back(BlockId(block));
  }
  free_count_ -= n;
  return blocks;
}

void BlockPool::Share(BlockId block) {
  ++Held(block).refs;
}

void BlockPool::Seal(BlockId block) {
  Entry& entry = Held(block);
  if (entry.sealed) return;
  entry.sealed = true;
  ++sealed_count_;
}

void BlockPool::Release(BlockId block) {
  Entry& entry = Held(block);
  if (--entry.refs > 0) return;
  if (entry.sealed) --sealed_count_;
  used_slots_ -= entry.fill;
  entry.sealed = false;
  entry.fill = 0;
  const size_t tail = (free_head_ + static_cast<size_t>(free_count_)) % free_ring_.size();
  free_ring_[tail] = block.value;
  ++free_count_;
}

void BlockPool::SetFill(BlockId block, int32_t tokens) {
  Entry& entry = Held(block);
  KVASIR_CHECK(tokens >= entry.fill);
  used_slots_ += tokens - entry.fill;
  entry.fill = tokens;
}

int32_t BlockPool::Fill(BlockId block) const {
  return Held(block).fill;
}

int32_t BlockPool::RefCount(BlockId block) const {
  KVASIR_CHECK(block.value >= 0 && block.value < total_blocks());
  return entries_[static_cast<size_t>(block.value)].refs;
}

bool BlockPool::Sealed(BlockId block) const {
  return Held(block).sealed;
}

PoolBooks BlockPool::books() const {
  PoolBooks books;
  books.total = total_blocks();
  books.free = free_count_;
  books.pinned = sealed_count_;
  books.filling = books.total - books.free - books.pinned;
  return books;
}

void BlockPool::CheckIntegrity() const {
  std::vector<bool> listed(entries_.size(), false);
  KVASIR_CHECK(free_count_ >= 0 && free_count_ <= total_blocks());
  for (int32_t i = 0; i < free_count_; ++i) {
    const int32_t block = free_ring_[(free_head_ + static_cast<size_t>(i)) % free_ring_.size()];
    KVASIR_CHECK(block >= 0 && block < total_blocks());
    KVASIR_CHECK(!listed[static_cast<size_t>(block)]);
    listed[static_cast<size_t>(block)] = true;
  }
  int32_t sealed = 0;
  int64_t used = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    KVASIR_CHECK(entry.refs >= 0);
    KVASIR_CHECK(listed[i] == (entry.refs == 0));
    KVASIR_CHECK(entry.refs > 0 || (!entry.sealed && entry.fill == 0));
    sealed += entry.sealed ? 1 : 0;
    used += entry.fill;
  }
  KVASIR_CHECK(sealed == sealed_count_);
  KVASIR_CHECK(used == used_slots_);
  const PoolBooks now = books();
  KVASIR_CHECK(now.Balanced() && now.free >= 0 && now.filling >= 0 && now.pinned >= 0);
}

}  // namespace kvasir
