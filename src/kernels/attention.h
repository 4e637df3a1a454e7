// Attention over a paged KV cache. Knows tables of block numbers and strides; no request, no pool.
//
// Promise 3: the result of one query row depends on that row and on the K and V at positions 0..p
// only. The KV range is cut into spans of kAttentionSpan tokens at absolute positions; each span
// gives (max, sum, accumulator) with its tokens in ascending order, and spans are folded in
// ascending order. Rows of one call share reads, never arithmetic. Every instruction set computes
// the same bits. A position past a row's own reaches none of its numbers: its score is dropped by a
// select before the maximum and its V is not read for that row, so the old bytes of a recycled
// block may be anything, NaN too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/parallel.h"
#include "quant/kv_format.h"

namespace kvasir {

// Tokens; a multiple of every block size served (8 to 256).
inline constexpr int kAttentionSpan = 256;

// One layer's K and V inside the arena. Element layout inside a head: quant/kv_format.h.
struct PagedKv {
  std::byte* base = nullptr;  // first byte of block 0
  size_t block_stride = 0;    // bytes from one block to the next
  size_t k_offset = 0;        // bytes from the start of a block to this layer's K (head 0)
  size_t v_offset = 0;        // the same for V
  int block_tokens = 0;       // power of two, 8 to 256
  int kv_heads = 0;
  int k_dim = 0;
  int v_dim = 0;
  KvType k_type = KvType::kF16;  // with v_type a pair that is served (KvPairServed)
  KvType v_type = KvType::kF16;
  // Key conditioning, for K in i8 or i4: constants of the model, [kv_heads][k_dim], or empty. The
  // cache holds (K - centre) / balance, q is multiplied with balance: in exact arithmetic the
  // softmax is the same. They live as long as the view.
  std::span<const float> k_centre;
  std::span<const float> k_balance;  // no zeros
};

// The query tokens of one sequence in this call: rows [row, row + tokens) of q/k/v/out, at
// positions [position, position + tokens). Its cache must hold blocks for all positions below
// position + tokens.
struct AttentionSpanOfSequence {
  const int32_t* block_table = nullptr;  // block numbers, entry i holds tokens [i*B, (i+1)*B)
  int32_t position = 0;
  int32_t tokens = 0;
  int32_t row = 0;
};

// Writes K and V of the new tokens into the cache in its own format (after RoPE). k: rows of
// kv_heads*k_dim floats.
void WriteKv(const PagedKv& kv, std::span<const AttentionSpanOfSequence> sequences, const float* k,
             size_t ldk, const float* v, size_t ldv, Executor& executor);

// Grows to the largest call and stays; one call at a time.
class AttentionScratch {
 public:
  AttentionScratch();
  ~AttentionScratch();
  AttentionScratch(const AttentionScratch&) = delete;
  AttentionScratch& operator=(const AttentionScratch&) = delete;
  struct Rep;
  Rep& rep() { return *rep_; }

 private:
  std::unique_ptr<Rep> rep_;
};

// out[row][head][v_dim] = softmax(scale * q . K) V, causal. q: rows of query_heads*k_dim floats
// (query head h reads KV head h / (query_heads / kv_heads)); out: rows of query_heads*v_dim.
// WriteKv for the same tokens has already run: a chunk attends to its own tokens as the cache gives
// them back.
void PagedAttention(const PagedKv& kv, std::span<const AttentionSpanOfSequence> sequences,
                    int query_heads, float scale, const float* q, size_t ldq, float* out,
                    size_t ldo, AttentionScratch& scratch, Executor& executor);

// The newest tokens of each row in another format (docs/kv-formats.md, "The tail"): the row at
// position p reads tokens [p / T * T, p] from `kv` and only those before them from the cache.
// T = kv->block_tokens, at most kAttentionSpan; what a row reads from where follows from its
// position alone. Shapes and conditioning are the cache's, both formats integer ones.
struct AttentionTail {
  const PagedKv* kv = nullptr;
  // The sequences' rows cut at the multiples of T: entry 0 of a table is the block that holds the
  // chunk of T tokens, position counts from the chunk's first token.
  std::span<const AttentionSpanOfSequence> chunks;
};
void PagedAttention(const PagedKv& kv, std::span<const AttentionSpanOfSequence> sequences,
                    const AttentionTail& tail, int query_heads, float scale, const float* q,
                    size_t ldq, float* out, size_t ldo, AttentionScratch& scratch,
                    Executor& executor);

}  // namespace kvasir
