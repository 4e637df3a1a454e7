// KvTail: the newest tokens of each sequence in i8, for layers that keep K in i4.
//
// K in four bits costs most where a row looks closest: at the tokens just before it. So a row at
// position p reads tokens [p / 32 * 32, p] in i8 from here and only those before them from the
// cache (docs/decisions/0005-the-tail.md). Which token is read in which format follows from the
// row's position alone, so chunks, batches and resumed sequences compute the same bits.
//
// Every running sequence has a slot, its number given by whoever drives the pass. A slot holds the
// chunk of 32 tokens that the sequence is in; so a sequence goes on at the position where it was
// in its slot, or from any multiple of 32 in any slot (the tokens before it then come from the
// cache alone). Used by one pass at a time, by the thread that runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "env/machine.h"
#include "kernels/attention.h"

namespace kvasir {

inline constexpr int kKvTailTokens = 32;

class KvTail {
 public:
  // Has any of these layers a tail?
  static bool Wanted(std::span<const PagedKv> layers);
  // layers: the cache's views (their conditioning outlives the tail). slots: numbers 0 to slots
  // - 1. max_rows: of one call. kOutOfMemory with the bytes; memory is taken when it is first used.
  static Result<std::unique_ptr<KvTail>> Make(std::span<const PagedKv> layers, int slots,
                                              int max_rows);
  static size_t BytesPerSlot(std::span<const PagedKv> layers);

  int slots() const { return static_cast<int>(held_.size()); }
  // The view of a layer's tail; null: the layer has none.
  const PagedKv* layer(size_t i) const { return views_[i].base != nullptr ? &views_[i] : nullptr; }

  // Starts a call: sequences[i] has slot slots[i]. Their rows, cut at the multiples of 32, are
  // chunks() until the next call. Running the same positions again (a call that failed) is fine.
  void Begin(std::span<const AttentionSpanOfSequence> sequences, std::span<const int32_t> slots);
  std::span<const AttentionSpanOfSequence> chunks() const { return chunks_; }

  // Can a sequence in this slot go on at `position`?
  bool Holds(int slot, int32_t position) const;
  // What is in slot `from`, also in slot `to`: a sequence that splits.
  void Copy(int from, int to);

 private:
  struct Held {
    int32_t chunk[2] = {-1, -1};  // what is in the slot's two blocks
  };
  KvTail() = default;

  BigBuffer memory_;        // blocks 2 s and 2 s + 1 of slot s, then those of chunks in between
  size_t block_bytes_ = 0;  // of all layers
  std::vector<PagedKv> views_;
  std::vector<Held> held_;  // by slot
  std::vector<int32_t> table_;
  std::vector<AttentionSpanOfSequence> chunks_;
};

}  // namespace kvasir
