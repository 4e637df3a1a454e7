// fp8 caches are served by the f32 kernels: the K and V of a span are converted once for all rows
// of a unit under one KV head. Correct first; the conversion costs more than the arithmetic of a
// few rows.
#pragma once

#include <cstddef>

#include "kernels/attention.h"
#include "kernels/attention_kernels.h"

namespace kvasir::internal {

inline bool IsFp8(KvType type) {
  return type == KvType::kFp8E4M3 || type == KvType::kFp8E5M2;
}

// Floats of scratch that WidenSpan takes; 0 if neither K nor V is fp8.
inline size_t WidenedFloats(const PagedKv& kv) {
  const size_t k = IsFp8(kv.k_type) ? static_cast<size_t>(kv.k_dim) : 0;
  const size_t v = IsFp8(kv.v_type) ? static_cast<size_t>(kv.v_dim) : 0;
  return (k + v) * kAttentionSpan;
}

// What the kernels are given for a format.
inline KvType WidenedType(KvType type) {
  return IsFp8(type) ? KvType::kF32 : type;
}

// One block of one head to f32, by format (e4m3, e5m2): codes, a scale per token, tokens, channels.
struct Fp8Kernels {
  using Widen = void (*)(const std::byte* codes, const float* scales, int tokens, int dim,
                         float* out);
  Widen keys[2];
  Widen values[2];
};
const Fp8Kernels& PortableFp8();
const Fp8Kernels& Avx2Fp8();
const Fp8Kernels& Avx512Fp8();

// Converts the span that `in` names and points `in` at the result: f32 in the same layout.
void WidenSpan(const PagedKv& kv, SpanRows& in, float* scratch);

}  // namespace kvasir::internal
