// How one PagedAttention call is cut into work, and which sequences share their reads. The cut
// decides who computes what and when, never a bit of the result: a row meets each span alone, and
// its spans are folded in ascending order by whoever finishes last.
//
// Sharing needs no flag. Two sequences share a span if their tables name the same blocks over it
// (the one that ends inside the span: over what it has). Sequences are sorted by their tables, as
// words are in a dictionary, so that whoever shares is next to each other in every span; one number
// per neighbour, how many leading spans are the same, then describes the whole tree. Units are cut
// from that order, so rows of several sequences stand in one unit, and in each span the rows of a
// run of sharers are walked over one read of the blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_kernels.h"

namespace kvasir {

namespace internal {

inline constexpr int kUnitRowsMax = 96;  // rows of a unit; more would not save reads worth having

// Floats on cache-line borders that grow by doubling and never shrink; contents are lost on growth.
class FloatBuffer {
 public:
  float* Reserve(size_t n);
  float* data() { return data_.get(); }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Free> data_;
  size_t size_ = 0;
};

// Neighbouring query tokens of one sequence in a unit.
struct AttentionMember {
  int sequence = 0;
  int token = 0;  // first of them, counted in the call
  int tokens = 0;
  int spans = 0;   // spans that hold a token some row sees
  int shared = 0;  // leading spans read together with the member before it in the unit
};

// Members [member, member + members), query heads [head, head + heads) of the group, KV heads
// [kv_head, kv_head + kv_heads). Rows are numbered KV head by KV head, inside member by member,
// token by token, head by head.
struct AttentionUnit {
  int member = 0;
  int members = 0;
  int kv_head = 0;
  int kv_heads = 0;
  int head = 0;
  int heads = 0;
  int head_rows = 0;   // rows of one KV head
  int spans = 0;       // the most of any member
  int groups = 1;      // tasks the spans are cut into; with 1 they are folded as they come
  size_t partial = 0;  // first float of this unit's partial results, if groups > 1
  int rows() const { return head_rows * kv_heads; }
};

struct AttentionTask {
  int unit = 0;
  int span_begin = 0;
  int span_end = 0;
};

struct AttentionShape {
  int query_heads = 0;
  int kv_heads = 0;
  int k_dim = 0;
  int v_dim = 0;
  int block_tokens = 0;
  int max_rows = 0;
  int workers = 0;
  size_t query_floats = 0;    // of a row's packed query
  size_t widened_floats = 0;  // of a span that is converted before it is read
  size_t pad() const {
    return static_cast<size_t>((v_dim + kAttentionPad - 1) / kAttentionPad * kAttentionPad);
  }
  size_t row_floats() const { return pad() + 2; }  // accumulator, then max, then sum, of one row
  int unit_rows() const;                           // most rows of a unit
};

// Sequences of a call that have tokens, in the order of their tables, and for each how many leading
// spans it shares with the one before it.
class AttentionOrder {
 public:
  struct Entry {
    int sequence = 0;
    int shared = 0;
  };
  // O(entries of tables that are shared + n log n).
  void Sort(std::span<const AttentionSpanOfSequence> sequences, int block_tokens);
  std::span<const Entry> entries() const { return entries_; }

 private:
  std::span<const int32_t> Blocks(const Entry& entry, int span) const;
  void SortFrom(size_t first, size_t last, int span);

  std::span<const AttentionSpanOfSequence> sequences_;
  int block_tokens_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace internal

struct AttentionScratch::Rep {
  internal::AttentionOrder order;
  std::vector<internal::AttentionMember> members;
  std::vector<internal::AttentionUnit> units;
  std::vector<internal::AttentionTask> tasks;
  std::unique_ptr<std::atomic<int>[]> pending;  // tasks of a unit that have not finished
  size_t pending_size = 0;
  internal::FloatBuffer
      partials;  // of units that are split over their spans: [span][row] accumulators, maxima, sums
  internal::FloatBuffer workers;  // per worker
  internal::FloatBuffer before;   // with a tail: what each row has of the cache, see attention.cc
  size_t worker_floats = 0;
  // Spans of one KV head gone through since Plan. What sharers have in common counts once.
  std::atomic<int64_t> span_reads{0};

  // Fills everything above for one call.
  void Plan(const internal::AttentionShape& shape,
            std::span<const AttentionSpanOfSequence> sequences);

 private:
  using Entries = std::span<const internal::AttentionOrder::Entry>;
  void AddUnits(const internal::AttentionShape& shape,
                std::span<const AttentionSpanOfSequence> sequences, Entries sharers,
                bool merge_heads);
  void CloseUnits(const internal::AttentionShape& shape, internal::AttentionUnit unit,
                  bool merge_heads);
  void Split(const internal::AttentionShape& shape);
  void AddTasks(const internal::AttentionUnit& unit, int index);
  int64_t Cost(const internal::AttentionUnit& unit, int spans) const;
};

}  // namespace kvasir
