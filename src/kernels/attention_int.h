// Attention over i8 and i4 caches, computed as integers. docs/kv-formats.md ("Arithmetic") has the
// text that all paths follow to the bit; attention_int_portable.cc is that text in loops.
//
// A block of query rows is prepared once per unit: rotated, quantised to 16 bits, laid out for the
// path. The span kernel then reads it through SpanRows::q. What the prepared block holds, for n
// rows and per 4 channels ("quads", up to the next multiple of 8 channels):
//
//   8 bytes  [quads][n]           the path's form of 4 codes
//   float    [n]                  scales
//   int32    [groups][2][n]       what the path starts its sums with: -128 times the sum of the
//                                 factors that meet codes plus 128 (AVX-512: of either half)
//
// AMX has a form of its own for blocks of several rows (attention_int_amx.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/attention_kernels.h"

namespace kvasir::internal {

inline constexpr int kIntDimMax = 1024;  // channels of a head in i8 or i4
inline constexpr int kIntTileDimMax = 256;
inline constexpr int kIntSubSpan = 64;       // tokens whose weights share a scale
inline constexpr int kIntQueryMost = 32512;  // 127 * 256: a query code's largest magnitude
inline constexpr int kI8Group = 512;         // channels whose products are summed as one integer
inline constexpr float kIntSmallest = 0x1p-100F;  // a maximum below it counts as zero
inline constexpr uint32_t kInfinityBits = 0x7F800000u;

inline int KeyGroup(KvType type) {
  return type == KvType::kI8 ? kI8Group : kKvI4Group;
}
inline int KeyGroups(KvType type, int k_dim) {
  return (k_dim + KeyGroup(type) - 1) / KeyGroup(type);
}
inline int QueryQuads(int k_dim) {
  return (k_dim + 7) / 8 * 2;
}
// Floats of packed query that one row takes.
inline size_t QueryFloats(KvType type, int k_dim) {
  if (!KvTypeIsInteger(type)) return static_cast<size_t>(k_dim);
  const int quads = (k_dim + 63) / 64 * 16;  // whole tiles
  return static_cast<size_t>(quads * 2 + 1 + KeyGroups(type, k_dim) * 2);
}
// p's codes of i8 values are 0..255, of i4 values (whose scales have signs) -127..127.
inline float WeightMost(KvType v_type) {
  return v_type == KvType::kI8 ? 255.0F : 127.0F;
}

// Rows [0, n) of a block, each k_dim floats at rows[r].
struct QueryRows {
  const float* const* rows;
  int n;
  float scale;           // of the softmax
  const float* balance;  // k_dim factors, or null
  KvType k_type;
  int k_dim;
  float* packed;  // out: n * QueryFloats
};

struct IntKernels {
  AttentionKernels attention;  // span for i8 and i4; fold as everywhere
  void (*prepare)(const QueryRows& query);
  void (*rotate)(float* x, int dim);                             // quant/hadamard.h
  uint16_t (*encode_i8)(const float* x, int n, int8_t* codes);   // quant/kv_codec.h
  uint16_t (*encode_i4)(const float* x, int n, uint8_t* codes);  // n <= 32
};

const IntKernels& PortableInt();
const IntKernels& Avx2Int();
const IntKernels& Avx512Int();
const IntKernels& AmxInt();
const IntKernels& CurrentInt();  // by CurrentIsa()
// The same for heads of this size: tiles are for heads of at most kIntTileDimMax.
const IntKernels& CurrentInt(int k_dim, int v_dim);

}  // namespace kvasir::internal
