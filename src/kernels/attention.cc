// Attention above the instruction sets: walks the plan's tasks, hands blocks of rows and spans to
// the kernels, folds.
#include "kernels/attention.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/attention_kernels.h"
#include "kernels/attention_plan.h"
#include "kernels/exp_inl.h"
#include "kernels/isa.h"

namespace kvasir {

namespace internal {

const AttentionKernels& CurrentAttention() {
  switch (CurrentIsa()) {
    case Isa::kAvx512:
      return Avx512Attention();
    case Isa::kAvx2:
      return Avx2Attention();
    case Isa::kPortable:
      break;
  }
  return PortableAttention();
}

void CheckPagedKv(const PagedKv& kv) {
  KVASIR_CHECK(kv.base != nullptr);
  KVASIR_CHECK(kv.block_tokens >= 8 && kv.block_tokens <= kAttentionSpan);
  KVASIR_CHECK(std::has_single_bit(static_cast<unsigned>(kv.block_tokens)));
  KVASIR_CHECK(kv.kv_heads > 0 && kv.k_dim > 0 && kv.v_dim > 0);
}

void CheckSequence(const AttentionSpanOfSequence& sequence) {
  KVASIR_CHECK(sequence.position >= 0 && sequence.tokens >= 0 && sequence.row >= 0);
  KVASIR_CHECK(sequence.tokens == 0 || sequence.block_table != nullptr);
}

}  // namespace internal

namespace {

using internal::AttentionKernels;
using internal::AttentionShape;
using internal::AttentionTask;
using internal::AttentionUnit;
using internal::SpanRows;

// Accumulators, maxima and sums of some rows: one after the other in one piece of scratch.
struct Partial {
  float* acc;
  float* max;
  float* sum;
};

class Attention {
 public:
  Attention(const PagedKv& kv, std::span<const AttentionSpanOfSequence> sequences,
            const AttentionShape& shape, float scale, AttentionScratch::Rep& rep)
      : kv_(kv),
        sequences_(sequences),
        shape_(shape),
        scale_(scale),
        rep_(rep),
        kernels_(internal::CurrentAttention()),
        k_head_bytes_(static_cast<size_t>(kv.block_tokens) * static_cast<size_t>(kv.k_dim) *
                      internal::KvElementBytes(kv.k_type)),
        v_head_bytes_(static_cast<size_t>(kv.block_tokens) * static_cast<size_t>(kv.v_dim) *
                      internal::KvElementBytes(kv.v_type)) {}

  void SetRows(const float* q, size_t ldq, float* out, size_t ldo) {
    q_ = q;
    ldq_ = ldq;
    out_ = out;
    ldo_ = ldo;
  }

  void Run(const AttentionTask& task, int worker) const;

 private:
  Partial At(float* base, int rows) const {
    float* max = base + static_cast<size_t>(rows) * shape_.pad();
    return {base, max, max + rows};
  }
  Partial PartialOf(const AttentionUnit& unit, int span) const {
    const size_t floats = static_cast<size_t>(unit.rows()) * shape_.row_floats();
    return At(rep_.partials.data() + unit.partial + static_cast<size_t>(span) * floats,
              unit.rows());
  }
  // Tokens of span `span` that row `row` of the unit sees (can be 0 or less).
  int Visible(const AttentionUnit& unit, int row, int span) const {
    const int position = sequences_[static_cast<size_t>(unit.sequence)].position + unit.token;
    return std::min(kAttentionSpan, position + row / unit.heads + 1 - span * kAttentionSpan);
  }
  void PackQueries(const AttentionUnit& unit, float* packed) const;
  void SetBlocks(const AttentionUnit& unit, int span, SpanRows& in) const;
  void FoldRows(const AttentionUnit& unit, int span, int first, int rows, Partial state,
                Partial part) const;
  void FoldUnit(const AttentionUnit& unit) const;
  void Finish(const AttentionUnit& unit, Partial state) const;

  const PagedKv& kv_;
  std::span<const AttentionSpanOfSequence> sequences_;
  const AttentionShape& shape_;
  float scale_;
  AttentionScratch::Rep& rep_;
  const AttentionKernels& kernels_;
  size_t k_head_bytes_, v_head_bytes_;
  const float* q_ = nullptr;
  float* out_ = nullptr;
  size_t ldq_ = 0, ldo_ = 0;
};

// Scaled queries, for each block of rows as [k_dim][rows]: what the kernels broadcast from.
void Attention::PackQueries(const AttentionUnit& unit, float* packed) const {
  const AttentionSpanOfSequence& sequence = sequences_[static_cast<size_t>(unit.sequence)];
  const int group = shape_.query_heads / shape_.kv_heads;
  for (int first = 0; first < unit.rows(); first += kernels_.max_rows) {
    const int n = std::min(kernels_.max_rows, unit.rows() - first);
    float* block = packed + static_cast<size_t>(first) * static_cast<size_t>(kv_.k_dim);
    for (int r = 0; r < n; ++r) {
      const int row = sequence.row + unit.token + (first + r) / unit.heads;
      const int head = unit.kv_head * group + unit.head + (first + r) % unit.heads;
      const float* in = q_ + static_cast<size_t>(row) * ldq_ +
                        static_cast<size_t>(head) * static_cast<size_t>(kv_.k_dim);
      for (int c = 0; c < kv_.k_dim; ++c) block[c * n + r] = in[c] * scale_;
    }
  }
}

void Attention::SetBlocks(const AttentionUnit& unit, int span, SpanRows& in) const {
  const int per_span = kAttentionSpan / kv_.block_tokens;
  const int last =
      sequences_[static_cast<size_t>(unit.sequence)].position + unit.token + unit.tokens;
  const int seen = last - span * kAttentionSpan;
  in.blocks =
      std::min((seen + kv_.block_tokens - 1) / kv_.block_tokens, per_span + internal::kAheadBlocks);
  const int32_t* table =
      sequences_[static_cast<size_t>(unit.sequence)].block_table + span * per_span;
  for (int i = 0; i < in.blocks; ++i) {
    KVASIR_DCHECK(table[i] >= 0);
    const std::byte* block = kv_.base + static_cast<size_t>(table[i]) * kv_.block_stride;
    in.k[i] = block + kv_.k_offset + static_cast<size_t>(unit.kv_head) * k_head_bytes_;
    in.v[i] = block + kv_.v_offset + static_cast<size_t>(unit.kv_head) * v_head_bytes_;
  }
}

// state = fold(state, part) for rows [first, first + rows) of the unit that see the span.
void Attention::FoldRows(const AttentionUnit& unit, int span, int first, int rows, Partial state,
                         Partial part) const {
  const size_t pad = shape_.pad();
  for (int r = 0; r < rows; ++r) {
    const int row = first + r;
    if (Visible(unit, row, span) <= 0) continue;
    const float max = state.max[row] > part.max[r] ? state.max[row] : part.max[r];
    const float a = internal::ExpScalar(state.max[row] - max);
    const float b = internal::ExpScalar(part.max[r] - max);
    state.max[row] = max;
    state.sum[row] = state.sum[row] * a + part.sum[r] * b;
    kernels_.fold(state.acc + static_cast<size_t>(row) * pad,
                  part.acc + static_cast<size_t>(r) * pad, a, b, pad);
  }
}

void Attention::Finish(const AttentionUnit& unit, Partial state) const {
  const AttentionSpanOfSequence& sequence = sequences_[static_cast<size_t>(unit.sequence)];
  const int group = shape_.query_heads / shape_.kv_heads;
  for (int r = 0; r < unit.rows(); ++r) {
    const int row = sequence.row + unit.token + r / unit.heads;
    const int head = unit.kv_head * group + unit.head + r % unit.heads;
    float* out = out_ + static_cast<size_t>(row) * ldo_ +
                 static_cast<size_t>(head) * static_cast<size_t>(kv_.v_dim);
    const float* acc = state.acc + static_cast<size_t>(r) * shape_.pad();
    const float inverse = 1.0f / state.sum[r];
    for (int c = 0; c < kv_.v_dim; ++c) out[c] = acc[c] * inverse;
  }
}

// Folds a split unit's partial results into those of span 0, which every row sees.
void Attention::FoldUnit(const AttentionUnit& unit) const {
  const Partial state = PartialOf(unit, 0);
  for (int span = 1; span < unit.spans; ++span) {
    FoldRows(unit, span, 0, unit.rows(), state, PartialOf(unit, span));
  }
  Finish(unit, state);
}

void Attention::Run(const AttentionTask& task, int worker) const {
  const AttentionUnit& unit = rep_.units[static_cast<size_t>(task.unit)];
  const bool split = unit.groups > 1;
  const auto block_rows = static_cast<size_t>(kernels_.max_rows);
  float* scratch = rep_.workers.data() + static_cast<size_t>(worker) * rep_.worker_floats;
  SpanRows in;
  in.k_type = kv_.k_type;
  in.v_type = kv_.v_type;
  in.block_tokens = kv_.block_tokens;
  in.k_dim = kv_.k_dim;
  in.v_dim = kv_.v_dim;
  in.acc_stride = shape_.pad();
  in.scores = scratch;
  const Partial part = At(scratch + block_rows * kAttentionSpan, kernels_.max_rows);
  float* state_base = part.sum + block_rows;
  state_base += (16 - (state_base - scratch) % 16) % 16;  // accumulators on cache-line borders
  const Partial state = At(state_base, unit.rows());
  float* packed = state.sum + unit.rows();
  PackQueries(unit, packed);

  for (int span = task.span_begin; span < task.span_end; ++span) {
    SetBlocks(unit, span, in);
    for (int first = 0; first < unit.rows(); first += kernels_.max_rows) {
      in.rows = std::min(kernels_.max_rows, unit.rows() - first);
      for (int r = 0; r < in.rows; ++r) in.visible[r] = Visible(unit, first + r, span);
      if (in.visible[in.rows - 1] <= 0) continue;
      in.q = packed + static_cast<size_t>(first) * static_cast<size_t>(kv_.k_dim);
      Partial to = split ? PartialOf(unit, span) : state;
      const bool direct = split || span == 0;
      in.acc = direct ? to.acc + static_cast<size_t>(first) * shape_.pad() : part.acc;
      in.max = direct ? to.max + first : part.max;
      in.sum = direct ? to.sum + first : part.sum;
      kernels_.span(in);
      if (!direct) FoldRows(unit, span, first, in.rows, state, part);
    }
  }
  if (!split) {
    Finish(unit, state);
  } else if (rep_.pending[static_cast<size_t>(task.unit)].fetch_sub(1, std::memory_order_acq_rel) ==
             1) {
    FoldUnit(unit);
  }
}

}  // namespace

void PagedAttention(const PagedKv& kv, std::span<const AttentionSpanOfSequence> sequences,
                    int query_heads, float scale, const float* q, size_t ldq, float* out,
                    size_t ldo, AttentionScratch& scratch, Executor& executor) {
  internal::CheckPagedKv(kv);
  KVASIR_CHECK(query_heads > 0 && query_heads % kv.kv_heads == 0);
  KVASIR_CHECK(ldq >= static_cast<size_t>(query_heads) * static_cast<size_t>(kv.k_dim));
  KVASIR_CHECK(ldo >= static_cast<size_t>(query_heads) * static_cast<size_t>(kv.v_dim));
  for (const AttentionSpanOfSequence& sequence : sequences) internal::CheckSequence(sequence);
  const AttentionShape shape{
      query_heads,       kv.kv_heads, kv.k_dim, kv.v_dim, internal::CurrentAttention().max_rows,
      executor.workers()};
  AttentionScratch::Rep& rep = scratch.rep();
  rep.Plan(shape, sequences);
  if (rep.tasks.empty()) return;
  Attention attention(kv, sequences, shape, scale, rep);
  attention.SetRows(q, ldq, out, ldo);
  executor.ParallelFor(rep.tasks.size(),
                       [&](size_t part, int worker) { attention.Run(rep.tasks[part], worker); });
}

}  // namespace kvasir
