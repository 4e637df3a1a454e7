// Attention above the instruction sets: walks the plan's tasks, hands blocks of rows and spans to
// the kernels, folds.
#include "kernels/attention.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/attention_fp8.h"
#include "kernels/attention_int.h"
#include "kernels/attention_kernels.h"
#include "kernels/attention_plan.h"
#include "kernels/isa.h"

namespace kvasir {

namespace {

using internal::AttentionKernels;
using internal::AttentionMember;
using internal::AttentionShape;
using internal::AttentionTask;
using internal::AttentionUnit;
using internal::SpanRows;

const AttentionKernels& KernelsOf(const PagedKv& kv) {
  return KvTypeIsInteger(kv.k_type) ? internal::CurrentInt(kv.k_dim, kv.v_dim).attention
                                    : internal::CurrentAttention();
}

// Accumulators, maxima and sums of some rows: one after the other in one piece of scratch.
struct Partial {
  float* acc;
  float* max;
  float* sum;
};

// The rows of a unit under one KV head, in the unit's order.
struct UnitRows {
  struct Row {
    int32_t row;  // of q and out
    int32_t head;
    int32_t position;  // of the last token it reads
  };
  Row row[internal::kUnitRowsMax];
  int16_t packed[internal::kUnitRowsMax];  // per row of the unit: the block it is packed in, see
                                           // Attention::Packed
  // Tokens of span `span` that row `r` sees (can be 0 or less).
  int Visible(int r, int span) const {
    return std::min(kAttentionSpan, row[r].position + 1 - span * kAttentionSpan);
  }
};

// With a tail a call is two passes: over the cache, which leaves accumulator, maximum and sum of
// each row, and over the tail, whose result is folded into those as that of a last span.
enum class Pass : uint8_t { kWhole, kBefore, kTail };

// Members of a unit that have the same blocks in a span, with their rows and those blocks.
struct Sharers {
  int span = 0;
  int member = 0;      // of the unit, the first
  int member_end = 0;  // one past the last
  int row = 0;
  int row_end = 0;
  int blocks = 0;
  const std::byte* block[internal::kSpanBlocksMax];
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
        kernels_(KernelsOf(kv)),
        k_plane_(KvKeyPlane(kv.k_type, kv.block_tokens, kv.k_dim)),
        v_plane_(KvValuePlane(kv.v_type, kv.block_tokens, kv.v_dim)) {}

  void SetRows(const float* q, size_t ldq, float* out, size_t ldo) {
    q_ = q;
    ldq_ = ldq;
    out_ = out;
    ldo_ = ldo;
  }

  // before: [rows of the call * query heads] accumulators, maxima, sums; kBefore writes, kTail
  // folds into them. A sum of 0: the row reads nothing of the cache.
  void SetPass(Pass pass, int tail_tokens, Partial before) {
    pass_ = pass;
    tail_tokens_ = tail_tokens;
    before_ = before;
  }

  void Run(const AttentionTask& task, int worker) const;

 private:
  Partial At(float* base, int rows) const {
    float* max = base + static_cast<size_t>(rows) * shape_.pad();
    return {base, max, max + rows};
  }
  // From a head's codes to its scales, which come after the codes of all heads.
  size_t ScalesOf(const KvPlane& plane, int kv_head) const {
    return static_cast<size_t>(kv_.kv_heads - kv_head) * plane.codes +
           static_cast<size_t>(kv_head) * plane.scales;
  }
  Partial PartialOf(const AttentionUnit& unit, int span) const {
    const size_t floats = static_cast<size_t>(unit.rows()) * shape_.row_floats();
    return At(rep_.partials.data() + unit.partial + static_cast<size_t>(span) * floats,
              unit.rows());
  }
  const AttentionMember& MemberOf(const AttentionUnit& unit, int i) const {
    return rep_.members[static_cast<size_t>(unit.member + i)];
  }
  void ListRows(const AttentionUnit& unit, UnitRows& rows) const;
  const float* Packed(const AttentionUnit& unit, int head, int first, int n, float* packed,
                      UnitRows& rows) const;
  void Prepare(const float* const* queries, int n, int kv_head, float* block) const;
  bool NextSharers(const AttentionUnit& unit, const AttentionTask& task, Sharers& at) const;
  void SetBlocks(const Sharers& at, const Sharers* after, const AttentionUnit& unit, int head,
                 SpanRows& in) const;
  void RunHead(const AttentionUnit& unit, const Sharers& at, int head, SpanRows& in, Partial state,
               Partial part, float* packed, UnitRows& rows) const;
  void FoldRows(const UnitRows& rows, int span, int head_row, int first, int n, Partial state,
                Partial part) const;
  void FoldUnit(const AttentionUnit& unit, const UnitRows& rows) const;
  size_t BeforeIndex(const UnitRows::Row& row, int query_head) const;
  void Keep(const UnitRows::Row& row, int query_head, const float* acc, float max, float sum) const;
  void Finish(const AttentionUnit& unit, const UnitRows& rows, Partial state) const;

  const PagedKv& kv_;
  std::span<const AttentionSpanOfSequence> sequences_;
  const AttentionShape& shape_;
  float scale_;
  AttentionScratch::Rep& rep_;
  const AttentionKernels& kernels_;
  KvPlane k_plane_, v_plane_;
  const float* q_ = nullptr;
  float* out_ = nullptr;
  size_t ldq_ = 0, ldo_ = 0;
  Pass pass_ = Pass::kWhole;
  int tail_tokens_ = 1;
  Partial before_ = {};
};

void Attention::ListRows(const AttentionUnit& unit, UnitRows& rows) const {
  UnitRows::Row* to = rows.row;
  for (int i = 0; i < unit.members; ++i) {
    const AttentionMember& member = MemberOf(unit, i);
    const AttentionSpanOfSequence& sequence = sequences_[static_cast<size_t>(member.sequence)];
    for (int t = member.token; t < member.token + member.tokens; ++t) {
      const int position = sequence.position + t;
      // The last token it reads here; -1: none.
      const int sees =
          pass_ == Pass::kBefore ? position / tail_tokens_ * tail_tokens_ - 1 : position;
      for (int h = unit.head; h < unit.head + unit.heads; ++h) {
        *to++ = {sequence.row + t, h, sees};
      }
    }
  }
  std::fill_n(rows.packed, unit.rows(), int16_t{-1});
}

// A block of rows for i8 and i4: see attention_int.h.
void Attention::Prepare(const float* const* queries, int n, int kv_head, float* block) const {
  const size_t first = static_cast<size_t>(kv_head) * static_cast<size_t>(kv_.k_dim);
  const float* balance = kv_.k_balance.empty() ? nullptr : kv_.k_balance.data() + first;
  internal::CurrentInt(kv_.k_dim, kv_.v_dim)
      .prepare({queries, n, scale_, balance, kv_.k_type, kv_.k_dim, block});
}

// The scaled queries of rows [first, first + n) under the unit's KV head `head` as [k_dim][n], what
// the kernels broadcast from. Which rows stand together in a block changes where sharers part, so
// blocks are packed when they are first wanted: each row remembers its block.
const float* Attention::Packed(const AttentionUnit& unit, int head, int first, int n, float* packed,
                               UnitRows& rows) const {
  const int row = head * unit.head_rows + first;
  float* block = packed + static_cast<size_t>(row) * shape_.query_floats;
  const auto name = static_cast<int16_t>(row * internal::kAttentionRowsMax + n - 1);
  int16_t* names = rows.packed + row;
  if (std::all_of(names, names + n, [name](int16_t x) { return x == name; })) return block;
  std::fill_n(names, n, name);
  const int group = shape_.query_heads / shape_.kv_heads;
  const float* queries[internal::kAttentionRowsMax];
  for (int r = 0; r < n; ++r) {
    const UnitRows::Row& at = rows.row[first + r];
    const int query_head = (unit.kv_head + head) * group + at.head;
    queries[r] = q_ + static_cast<size_t>(at.row) * ldq_ +
                 static_cast<size_t>(query_head) * static_cast<size_t>(kv_.k_dim);
    if (KvTypeIsInteger(kv_.k_type)) continue;
    for (int c = 0; c < kv_.k_dim; ++c) block[c * n + r] = queries[r][c] * scale_;
  }
  if (KvTypeIsInteger(kv_.k_type)) Prepare(queries, n, unit.kv_head + head, block);
  return block;
}

// Moves to the next sharers of the task, span by span; start with span = task.span_begin and no
// members. False after the last.
bool Attention::NextSharers(const AttentionUnit& unit, const AttentionTask& task,
                            Sharers& at) const {
  for (;;) {
    at.member = at.member_end;
    at.row = at.row_end;
    if (at.member == unit.members) {
      if (++at.span >= task.span_end) return false;
      at.member = at.row = 0;
    }
    at.member_end = at.member;
    at.row_end = at.row;
    do {
      at.row_end += MemberOf(unit, at.member_end++).tokens * unit.heads;
    } while (at.member_end < unit.members && MemberOf(unit, at.member_end).shared > at.span);
    if (MemberOf(unit, at.member).spans > at.span) break;
  }
  int seen = 0;
  for (int i = at.member; i < at.member_end; ++i) {
    const AttentionMember& member = MemberOf(unit, i);
    seen = std::max(seen, sequences_[static_cast<size_t>(member.sequence)].position + member.token +
                              member.tokens - at.span * kAttentionSpan);
  }
  // The last sharer has the blocks of all of them (AttentionOrder).
  const AttentionMember& last = MemberOf(unit, at.member_end - 1);
  const int per_span = kAttentionSpan / kv_.block_tokens;
  const int32_t* table =
      sequences_[static_cast<size_t>(last.sequence)].block_table + at.span * per_span;
  at.blocks = std::min((seen + kv_.block_tokens - 1) / kv_.block_tokens, per_span);
  for (int i = 0; i < at.blocks; ++i) {
    KVASIR_DCHECK(table[i] >= 0);
    at.block[i] = kv_.base + static_cast<size_t>(table[i]) * kv_.block_stride;
  }
  return true;
}

// What is read after this is asked for while this is read: V during K; during V the next head's K
// or, past the last head, the K of the sharers after these.
void Attention::SetBlocks(const Sharers& at, const Sharers* after, const AttentionUnit& unit,
                          int head, SpanRows& in) const {
  const size_t k_first = kv_.k_offset + static_cast<size_t>(unit.kv_head) * k_plane_.codes;
  const size_t k = k_first + static_cast<size_t>(head) * k_plane_.codes;
  const size_t v = kv_.v_offset + static_cast<size_t>(unit.kv_head + head) * v_plane_.codes;
  const bool same = head + 1 < unit.kv_heads;
  const std::byte* const* next = same ? at.block : after != nullptr ? after->block : nullptr;
  const int next_blocks = same ? at.blocks : after != nullptr ? after->blocks : 0;
  const size_t next_k = same ? k + k_plane_.codes : k_first;
  in.k_scales = ScalesOf(k_plane_, unit.kv_head + head);
  in.v_scales = ScalesOf(v_plane_, unit.kv_head + head);
  in.blocks = at.blocks;
  for (int i = 0; i < at.blocks; ++i) {
    in.k[i] = at.block[i] + k;
    in.v[i] = at.block[i] + v;
    in.k_ahead[i] = in.v[i];
    in.v_ahead[i] = i < next_blocks ? next[i] + next_k : in.v[i];
  }
}

// state = fold(state, part) for rows [first, first + n) under one KV head that see the span; in
// the state they stand from row `head_row` on.
void Attention::FoldRows(const UnitRows& rows, int span, int head_row, int first, int n,
                         Partial state, Partial part) const {
  const size_t pad = shape_.pad();
  for (int r = 0; r < n; ++r) {
    if (rows.Visible(first + r, span) <= 0) continue;
    const int row = head_row + first + r;
    kernels_.fold(state.acc + static_cast<size_t>(row) * pad, state.max[row], state.sum[row],
                  part.acc + static_cast<size_t>(r) * pad, part.max[r], part.sum[r], pad);
  }
}

size_t Attention::BeforeIndex(const UnitRows::Row& row, int query_head) const {
  return static_cast<size_t>(row.row) * static_cast<size_t>(shape_.query_heads) +
         static_cast<size_t>(query_head);
}

void Attention::Keep(const UnitRows::Row& row, int query_head, const float* acc, float max,
                     float sum) const {
  const size_t to = BeforeIndex(row, query_head);
  before_.sum[to] = row.position < 0 ? 0.0f : sum;
  if (row.position < 0) return;
  before_.max[to] = max;
  std::copy_n(acc, shape_.pad(), before_.acc + to * shape_.pad());
}

void Attention::Finish(const AttentionUnit& unit, const UnitRows& rows, Partial state) const {
  const int group = shape_.query_heads / shape_.kv_heads;
  for (int r = 0; r < unit.rows(); ++r) {
    const UnitRows::Row& at = rows.row[r % unit.head_rows];
    const int query_head = (unit.kv_head + r / unit.head_rows) * group + at.head;
    float* out = out_ + static_cast<size_t>(at.row) * ldo_ +
                 static_cast<size_t>(query_head) * static_cast<size_t>(kv_.v_dim);
    const float* acc = state.acc + static_cast<size_t>(r) * shape_.pad();
    float sum = state.sum[r];
    if (pass_ == Pass::kBefore) {
      Keep(at, query_head, acc, state.max[r], sum);
      continue;
    }
    const size_t before = BeforeIndex(at, query_head);
    if (pass_ == Pass::kTail && before_.sum[before] != 0.0f) {
      float* own = before_.acc + before * shape_.pad();
      kernels_.fold(own, before_.max[before], before_.sum[before], acc, state.max[r], sum,
                    shape_.pad());
      acc = own;
      sum = before_.sum[before];
    }
    const float inverse = 1.0f / sum;
    for (int c = 0; c < kv_.v_dim; ++c) out[c] = acc[c] * inverse;
    if (KvTypeIsInteger(kv_.v_type)) internal::CurrentInt().rotate(out, kv_.v_dim);
  }
}

// Folds a split unit's partial results into those of span 0, which every row sees.
void Attention::FoldUnit(const AttentionUnit& unit, const UnitRows& rows) const {
  const Partial state = PartialOf(unit, 0);
  for (int span = 1; span < unit.spans; ++span) {
    const Partial part = PartialOf(unit, span);
    for (int head_row = 0; head_row < unit.rows(); head_row += unit.head_rows) {
      FoldRows(rows, span, head_row, 0, unit.head_rows, state,
               {part.acc + static_cast<size_t>(head_row) * shape_.pad(), part.max + head_row,
                part.sum + head_row});
    }
  }
  Finish(unit, rows, state);
}

// The rows of `at` under one KV head, block of rows by block of rows. A block ends where the next
// row sees fewer tokens (another sharer that is not as far), as the kernels want it.
void Attention::RunHead(const AttentionUnit& unit, const Sharers& at, int head, SpanRows& in,
                        Partial state, Partial part, float* packed, UnitRows& rows) const {
  const int head_row = head * unit.head_rows;
  for (int first = at.row; first < at.row_end; first += in.rows) {
    in.rows = 0;
    while (in.rows < kernels_.max_rows && first + in.rows < at.row_end) {
      const int visible = rows.Visible(first + in.rows, at.span);
      if (in.rows > 0 && visible < in.visible[in.rows - 1]) break;
      in.visible[in.rows++] = visible;
    }
    if (in.visible[in.rows - 1] <= 0) continue;
    in.q = Packed(unit, head, first, in.rows, packed, rows);
    const bool split = unit.groups > 1;
    const bool direct = split || at.span == 0;
    const Partial to = split ? PartialOf(unit, at.span) : state;
    const int row = head_row + first;
    in.acc = direct ? to.acc + static_cast<size_t>(row) * shape_.pad() : part.acc;
    in.max = direct ? to.max + row : part.max;
    in.sum = direct ? to.sum + row : part.sum;
    kernels_.span(in);
    if (!direct) FoldRows(rows, at.span, head_row, first, in.rows, state, part);
    // Asked for once: what stands in the first block's way is enough.
    for (int i = 0; i < in.blocks; ++i) {
      in.k_ahead[i] = in.k[i];
      in.v_ahead[i] = in.v[i];
    }
  }
}

void Attention::Run(const AttentionTask& task, int worker) const {
  const AttentionUnit& unit = rep_.units[static_cast<size_t>(task.unit)];
  const auto block_rows = static_cast<size_t>(kernels_.max_rows);
  float* scratch = rep_.workers.data() + static_cast<size_t>(worker) * rep_.worker_floats;
  SpanRows in;
  in.k_type = internal::WidenedType(kv_.k_type);
  in.v_type = internal::WidenedType(kv_.v_type);
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
  float* widened = packed + static_cast<size_t>(unit.rows()) * shape_.query_floats;
  UnitRows rows;
  ListRows(unit, rows);

  Sharers runs[2];
  Sharers* now = &runs[0];
  Sharers* after = &runs[1];
  now->span = task.span_begin - 1;
  now->member_end = unit.members;
  int64_t reads = 0;
  for (bool more = NextSharers(unit, task, *now); more; std::swap(now, after)) {
    after->span = now->span;
    after->member_end = now->member_end;
    after->row_end = now->row_end;
    more = NextSharers(unit, task, *after);
    for (int head = 0; head < unit.kv_heads; ++head) {
      SetBlocks(*now, more ? after : nullptr, unit, head, in);
      if (shape_.widened_floats > 0) WidenSpan(kv_, in, widened);
      RunHead(unit, *now, head, in, state, part, packed, rows);
      ++reads;
    }
  }
  rep_.span_reads.fetch_add(reads, std::memory_order_relaxed);
  if (unit.groups == 1) {
    Finish(unit, rows, state);
  } else if (rep_.pending[static_cast<size_t>(task.unit)].fetch_sub(1, std::memory_order_acq_rel) ==
             1) {
    FoldUnit(unit, rows);
  }
}

struct Call {
  int query_heads;
  float scale;
  const float* q;
  size_t ldq;
  float* out;
  size_t ldo;
  AttentionScratch::Rep& rep;
  Executor& executor;
  int rows = 0;  // with a tail: one past the largest row
};

void RunPass(const PagedKv& kv, std::span<const AttentionSpanOfSequence> sequences,
             const Call& call, Pass pass, int tail_tokens) {
  internal::CheckPagedKv(kv);
  KVASIR_CHECK(call.query_heads > 0 && call.query_heads % kv.kv_heads == 0);
  KVASIR_CHECK(call.ldq >= static_cast<size_t>(call.query_heads) * static_cast<size_t>(kv.k_dim));
  KVASIR_CHECK(call.ldo >= static_cast<size_t>(call.query_heads) * static_cast<size_t>(kv.v_dim));
  for (const AttentionSpanOfSequence& sequence : sequences) internal::CheckSequence(sequence);
  const AttentionShape shape{call.query_heads,
                             kv.kv_heads,
                             kv.k_dim,
                             kv.v_dim,
                             kv.block_tokens,
                             KernelsOf(kv).max_rows,
                             call.executor.workers(),
                             internal::QueryFloats(kv.k_type, kv.k_dim),
                             internal::WidenedFloats(kv)};
  AttentionScratch::Rep& rep = call.rep;
  rep.Plan(shape, sequences);
  if (rep.tasks.empty()) return;
  Attention attention(kv, sequences, shape, call.scale, rep);
  attention.SetRows(call.q, call.ldq, call.out, call.ldo);
  if (pass != Pass::kWhole) {
    const auto states = static_cast<size_t>(call.rows) * static_cast<size_t>(call.query_heads);
    float* acc = rep.before.Reserve(states * shape.row_floats());
    float* max = acc + states * shape.pad();
    attention.SetPass(pass, tail_tokens, {acc, max, max + states});
  }
  call.executor.ParallelFor(
      rep.tasks.size(), [&](size_t part, int worker) { attention.Run(rep.tasks[part], worker); });
}

}  // namespace

void PagedAttention(const PagedKv& kv, std::span<const AttentionSpanOfSequence> sequences,
                    int query_heads, float scale, const float* q, size_t ldq, float* out,
                    size_t ldo, AttentionScratch& scratch, Executor& executor) {
  RunPass(kv, sequences, {query_heads, scale, q, ldq, out, ldo, scratch.rep(), executor},
          Pass::kWhole, 1);
}

void PagedAttention(const PagedKv& kv, std::span<const AttentionSpanOfSequence> sequences,
                    const AttentionTail& tail, int query_heads, float scale, const float* q,
                    size_t ldq, float* out, size_t ldo, AttentionScratch& scratch,
                    Executor& executor) {
  KVASIR_CHECK(tail.kv != nullptr && KvTypeIsInteger(kv.k_type) && KvTypeIsInteger(kv.v_type) &&
               KvTypeIsInteger(tail.kv->k_type) && KvTypeIsInteger(tail.kv->v_type));
  KVASIR_CHECK(tail.kv->kv_heads == kv.kv_heads && tail.kv->k_dim == kv.k_dim &&
               tail.kv->v_dim == kv.v_dim);
  const int tokens = tail.kv->block_tokens;
  for (const AttentionSpanOfSequence& chunk : tail.chunks) {
    KVASIR_CHECK(chunk.position >= 0 && chunk.position + chunk.tokens <= tokens);
  }
  Call call = {query_heads, scale, q, ldq, out, ldo, scratch.rep(), executor};
  for (const AttentionSpanOfSequence& s : sequences) {
    if (s.tokens > 0) call.rows = std::max(call.rows, s.row + s.tokens);
  }
  for (const AttentionSpanOfSequence& s : tail.chunks) {
    KVASIR_CHECK(s.row + s.tokens <= call.rows);
  }
  RunPass(kv, sequences, call, Pass::kBefore, tokens);
  RunPass(*tail.kv, tail.chunks, call, Pass::kTail, tokens);
}

}  // namespace kvasir
