#include "model/kv_tail.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/units.h"
#include "quant/kv_format.h"

namespace kvasir {
namespace {

constexpr size_t kPlaneBorder = 64;

bool HasTail(const PagedKv& layer) {
  return layer.k_type == KvType::kI4;
}

size_t PlaneBytes(const KvPlane& plane, int heads) {
  const size_t bytes = static_cast<size_t>(heads) * (plane.codes + plane.scales);
  return (bytes + kPlaneBorder - 1) / kPlaneBorder * kPlaneBorder;
}

// The views of the tails, without memory yet; returns the bytes of a block.
size_t LayOut(std::span<const PagedKv> layers, std::vector<PagedKv>* views) {
  size_t bytes = 0;
  for (const PagedKv& layer : layers) {
    PagedKv view;
    if (HasTail(layer)) {
      view = layer;
      view.block_tokens = kKvTailTokens;
      view.k_type = view.v_type = KvType::kI8;
      view.k_offset = bytes;
      bytes += PlaneBytes(KvKeyPlane(view.k_type, kKvTailTokens, view.k_dim), view.kv_heads);
      view.v_offset = bytes;
      bytes += PlaneBytes(KvValuePlane(view.v_type, kKvTailTokens, view.v_dim), view.kv_heads);
    }
    views->push_back(view);
  }
  return bytes;
}

}  // namespace

bool KvTail::Wanted(std::span<const PagedKv> layers) {
  return std::any_of(layers.begin(), layers.end(), HasTail);
}

size_t KvTail::BytesPerSlot(std::span<const PagedKv> layers) {
  std::vector<PagedKv> views;
  return 2 * LayOut(layers, &views);
}

Result<std::unique_ptr<KvTail>> KvTail::Make(std::span<const PagedKv> layers, int slots,
                                             int max_rows) {
  KVASIR_CHECK(slots > 0 && max_rows > 0);
  std::unique_ptr<KvTail> tail(new KvTail());
  tail->block_bytes_ = LayOut(layers, &tail->views_);
  const auto between = static_cast<size_t>(max_rows / kKvTailTokens + 1);
  const size_t blocks = 2 * static_cast<size_t>(slots) + between;
  const size_t bytes = blocks * tail->block_bytes_;
  tail->memory_ = BigBuffer::Allocate(bytes);
  if (!tail->memory_) {
    return OutOfMemory("the newest " + std::to_string(kKvTailTokens) + " tokens of " +
                       std::to_string(slots) + " sequences in 8 bits (K in i4) need " +
                       FormatSize(bytes));
  }
  for (PagedKv& view : tail->views_) {
    if (view.block_tokens == 0) continue;
    view.base = tail->memory_.data();
    view.block_stride = tail->block_bytes_;
  }
  tail->held_.resize(static_cast<size_t>(slots));
  const auto rows = static_cast<size_t>(max_rows);
  tail->table_.reserve(rows);
  tail->chunks_.reserve(rows);
  return tail;
}

bool KvTail::Holds(int slot, int32_t position) const {
  if (position % kKvTailTokens == 0) return true;
  const Held& held = held_[static_cast<size_t>(slot)];
  const int32_t chunk = position / kKvTailTokens;
  return held.chunk[0] == chunk || held.chunk[1] == chunk;
}

void KvTail::Begin(std::span<const AttentionSpanOfSequence> sequences,
                   std::span<const int32_t> slots) {
  KVASIR_CHECK(slots.size() == sequences.size());
  table_.clear();
  chunks_.clear();
  int32_t between = static_cast<int32_t>(2 * held_.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSpanOfSequence& sequence = sequences[i];
    if (sequence.tokens == 0) continue;
    const int32_t slot = slots[i];
    KVASIR_CHECK(slot >= 0 && slot < this->slots() && Holds(slot, sequence.position));
    Held& held = held_[static_cast<size_t>(slot)];
    const int32_t end = sequence.position + sequence.tokens;
    const int32_t first = sequence.position / kKvTailTokens;
    const int32_t last = (end - 1) / kKvTailTokens;
    const bool goes_on = sequence.position % kKvTailTokens != 0;
    // The first chunk stays where it is until the call has succeeded: the last takes the other.
    const int32_t own = goes_on && held.chunk[1] == first ? 1 : 0;
    held.chunk[own] = first;
    held.chunk[1 - own] = last > first ? last : -1;
    for (int32_t chunk = first; chunk <= last; ++chunk) {
      const int32_t from = std::max(sequence.position, chunk * kKvTailTokens);
      const int32_t to = std::min(end, (chunk + 1) * kKvTailTokens);
      table_.push_back(chunk == first  ? 2 * slot + own
                       : chunk == last ? 2 * slot + 1 - own
                                       : between++);
      chunks_.push_back({nullptr, from - chunk * kKvTailTokens, to - from,
                         sequence.row + from - sequence.position});
    }
  }
  KVASIR_CHECK(static_cast<size_t>(between) * block_bytes_ <= memory_.size());
  for (size_t i = 0; i < chunks_.size(); ++i) chunks_[i].block_table = &table_[i];
}

void KvTail::Copy(int from, int to) {
  KVASIR_CHECK(from >= 0 && from < slots() && to >= 0 && to < slots() && from != to);
  const size_t bytes = 2 * block_bytes_;
  std::memcpy(memory_.data() + static_cast<size_t>(to) * bytes,
              memory_.data() + static_cast<size_t>(from) * bytes, bytes);
  held_[static_cast<size_t>(to)] = held_[static_cast<size_t>(from)];
}

}  // namespace kvasir
