// How one PagedAttention call is cut into work. The cut decides who computes what and when, never a
// bit of the result: a row meets each span alone, and its spans are folded in ascending order by
// whoever finishes last.
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

// Some query rows of one sequence and one KV head. Row r is query token `token` + r / heads and
// query head `head` + r % heads of the group. Rows are walked in blocks of at most
// kernels.max_rows.
struct AttentionUnit {
  int sequence = 0;
  int kv_head = 0;
  int head = 0;
  int heads = 0;
  int token = 0;
  int tokens = 0;
  int spans = 0;       // spans that hold a token some row sees
  int groups = 1;      // tasks the spans are cut into; with 1 they are folded as they come
  size_t partial = 0;  // first float of this unit's partial results, if groups > 1
  int rows() const { return heads * tokens; }
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
  int max_rows = 0;
  int workers = 0;
  size_t pad() const {
    return static_cast<size_t>((v_dim + kAttentionPad - 1) / kAttentionPad * kAttentionPad);
  }
  size_t row_floats() const { return pad() + 2; }  // accumulator, then max, then sum, of one row
  int unit_rows() const;                           // most rows of a unit
};

}  // namespace internal

struct AttentionScratch::Rep {
  std::vector<internal::AttentionUnit> units;
  std::vector<internal::AttentionTask> tasks;
  std::unique_ptr<std::atomic<int>[]> pending;  // tasks of a unit that have not finished
  size_t pending_size = 0;
  internal::FloatBuffer
      partials;  // of units that are split over their spans: [span][row] accumulators, maxima, sums
  internal::FloatBuffer workers;  // per worker
  size_t worker_floats = 0;

  // Fills everything above for one call.
  void Plan(const internal::AttentionShape& shape,
            std::span<const AttentionSpanOfSequence> sequences);

 private:
  void AddUnits(const internal::AttentionShape& shape, const AttentionSpanOfSequence& sequence,
                int index);
  void Split(const internal::AttentionShape& shape);
};

}  // namespace kvasir
