#include "kvcache/block_pool.h"

#include "base/check.h"

namespace kvasir {

BlockPool::BlockPool(int32_t blocks, int32_t block_tokens) : block_tokens_(block_tokens) {
  KVASIR_CHECK(blocks >= 0 && block_tokens > 0 && block_tokens <= UINT16_MAX);
  entries_.resize(static_cast<size_t>(blocks));
  free_ring_.resize(static_cast<size_t>(blocks));
  for (int32_t i = 0; i < blocks; ++i) free_ring_[static_cast<size_t>(i)] = i;
  counts_[static_cast<size_t>(BlockState::kFree)] = blocks;
}

BlockState BlockPool::StateOf(const Entry& entry) const {
  if (entry.refs > 0)
    return entry.fill == block_tokens_ ? BlockState::kPinned : BlockState::kFilling;
  if (!entry.cached) return BlockState::kFree;
  return entry.named_pin ? BlockState::kPinned : BlockState::kEvictable;
}

const BlockPool::Entry& BlockPool::At(int32_t block) const {
  KVASIR_CHECK(block >= 0 && block < total());
  return entries_[static_cast<size_t>(block)];
}

template <typename Change>
void BlockPool::Update(int32_t block, Change change) {
  Entry& entry = const_cast<Entry&>(At(block));
  const BlockState before = StateOf(entry);
  change(entry);
  const BlockState after = StateOf(entry);
  if (before == after) return;
  --counts_[static_cast<size_t>(before)];
  ++counts_[static_cast<size_t>(after)];
  KVASIR_CHECK(before != BlockState::kFree);
  if (after != BlockState::kFree) return;
  KVASIR_CHECK(!entry.named_pin);
  used_slots_ -= entry.fill;
  entry.fill = 0;
  const size_t tail = (free_head_ + static_cast<size_t>(free() - 1)) % free_ring_.size();
  free_ring_[tail] = block;
}

int32_t BlockPool::Take() {
  KVASIR_CHECK(free() > 0);
  const int32_t block = free_ring_[free_head_];
  free_head_ = free_head_ + 1 == free_ring_.size() ? 0 : free_head_ + 1;
  Entry& entry = entries_[static_cast<size_t>(block)];
  KVASIR_CHECK(entry.refs == 0 && !entry.cached && entry.fill == 0);
  entry.refs = 1;
  --counts_[static_cast<size_t>(BlockState::kFree)];
  ++counts_[static_cast<size_t>(BlockState::kFilling)];
  return block;
}

void BlockPool::Ref(int32_t block) {
  Update(block, [](Entry& entry) {
    KVASIR_CHECK(entry.refs > 0 || entry.cached);
    ++entry.refs;
  });
}

void BlockPool::Unref(int32_t block) {
  Update(block, [](Entry& entry) {
    KVASIR_CHECK(entry.refs > 0);
    --entry.refs;
  });
}

void BlockPool::SetCached(int32_t block, bool on) {
  Update(block, [on](Entry& entry) {
    KVASIR_CHECK(entry.cached != on && (entry.refs > 0 || !on));
    entry.cached = on;
  });
}

void BlockPool::SetNamedPin(int32_t block, bool on) {
  Update(block, [on](Entry& entry) {
    KVASIR_CHECK(entry.named_pin != on && entry.cached);
    entry.named_pin = on;
  });
}

void BlockPool::SetFill(int32_t block, int32_t tokens) {
  Update(block, [this, tokens](Entry& entry) {
    KVASIR_CHECK(entry.refs > 0 && tokens >= entry.fill && tokens <= block_tokens_);
    used_slots_ += tokens - entry.fill;
    entry.fill = static_cast<uint16_t>(tokens);
  });
}

size_t BlockPool::bytes() const {
  return entries_.size() * (sizeof(Entry) + sizeof(int32_t));
}

void BlockPool::CheckIntegrity() const {
  std::vector<bool> listed(entries_.size(), false);
  for (int32_t i = 0; i < free(); ++i) {
    const int32_t block = free_ring_[(free_head_ + static_cast<size_t>(i)) % free_ring_.size()];
    KVASIR_CHECK(State(block) == BlockState::kFree && !listed[static_cast<size_t>(block)]);
    listed[static_cast<size_t>(block)] = true;
  }
  std::array<int32_t, 4> counts{};
  int64_t used = 0;
  for (const Entry& entry : entries_) {
    ++counts[static_cast<size_t>(StateOf(entry))];
    used += entry.fill;
    KVASIR_CHECK(StateOf(entry) != BlockState::kFree || (entry.fill == 0 && !entry.named_pin));
  }
  KVASIR_CHECK(counts == counts_ && used == used_slots_);
}

}  // namespace kvasir
