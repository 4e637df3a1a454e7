// What attention needs from an instruction set: one table of functions per path, all giving the
// same bits (docs/kernels.md, "Attention"). A call handles one block of query rows against one span
// of the cache; everything above that (units, threads, folding order) is in attention.cc and the
// same for all paths.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "quant/kv_format.h"

namespace kvasir::internal {

inline constexpr int kAttentionRowsMax = 16;               // rows of one block, over all paths
inline constexpr int kSpanBlocksMax = kAttentionSpan / 8;  // cache blocks that make up a span
inline constexpr int kAttentionPad = 16;   // accumulators are padded to this many channels
inline constexpr int kAttentionSums = 16;  // partial sums of the softmax denominator

// One block of 1 to max_rows query rows, one KV head, one span. Row r sees the first visible[r]
// tokens of the span (0 or less: the row is skipped and its outputs are left alone); visible never
// falls from one row to the next.
struct SpanRows {
  // One head's K and V in block i of the span, for every block that holds a visible token.
  const std::byte* k[kSpanBlocksMax];
  const std::byte* v[kSpanBlocksMax];
  // What is fetched ahead while K's block i is read, and while V's is (the V of this span; the K
  // that the worker reads next): as many bytes as the block has, or the block itself for nothing.
  const std::byte* k_ahead[kSpanBlocksMax];
  const std::byte* v_ahead[kSpanBlocksMax];
  int blocks;
  KvType k_type;
  KvType v_type;
  size_t k_scales;  // bytes from a head's codes in a block to its scales (formats that have them)
  size_t v_scales;
  int block_tokens;
  int k_dim;
  int v_dim;
  int rows;
  int visible[kAttentionRowsMax];
  const float* q;  // [k_dim][rows], already multiplied by the scale; i8, i4: attention_int.h
  float* scores;   // scratch, [rows][kAttentionSpan]
  float* max;      // out, one per row: the largest score
  float* sum;      // out: sum of Exp(score - max)
  float* acc;  // out, [rows][acc_stride]: sum of Exp(score - max) * v; channels v_dim..acc_stride
               // are padding
  size_t acc_stride;  // RoundUp(v_dim, kAttentionPad)
};

struct AttentionKernels {
  int max_rows;
  void (*span)(const SpanRows& rows);
  // One row's state folded with what it has of a later span: with M = max(max, part_max), a =
  // Exp(max - M), b = Exp(part_max - M): acc[i] = fma(part[i], b, acc[i] * a) for i < n (a multiple
  // of kAttentionPad), sum = sum * a + part_sum * b, max = M.
  void (*fold)(float* acc, float& max, float& sum, const float* part, float part_max,
               float part_sum, size_t n);
  // n floats to the cache's format (quant/float16.h gives the bits).
  void (*store)(KvType type, const float* in, std::byte* out, size_t n);
};

const AttentionKernels& PortableAttention();
const AttentionKernels& Avx2Attention();
const AttentionKernels& Avx512Attention();
const AttentionKernels& CurrentAttention();  // by CurrentIsa()

using kvasir::KvElementBytes;
void CheckPagedKv(const PagedKv& kv);  // the caller's side of the contract
void CheckSequence(const AttentionSpanOfSequence& sequence);

}  // namespace kvasir::internal
