// The plain reference: loops in the order the definition gives them (docs/kernels.md, "Attention").
#include <cmath>
#include <cstring>

#include "kernels/attention_kernels.h"
#include "kernels/exp_inl.h"
#include "quant/float16.h"

namespace kvasir::internal {
namespace {

float LoadElement(KvType type, const std::byte* base, size_t index) {
  if (type == KvType::kF32) {
    float f;
    std::memcpy(&f, base + index * sizeof(f), sizeof(f));
    return f;
  }
  uint16_t h;
  std::memcpy(&h, base + index * sizeof(h), sizeof(h));
  return type == KvType::kF16 ? F16ToF32(h) : Bf16ToF32(h);
}

float Score(const SpanRows& in, int row, int token) {
  const std::byte* k = in.k[token / in.block_tokens];
  float s = 0;
  for (int c = 0; c < in.k_dim; ++c) {
    const size_t index = KvKeyIndex(in.block_tokens, in.k_dim, token % in.block_tokens, c);
    s = std::fma(in.q[c * in.rows + row], LoadElement(in.k_type, k, index), s);
  }
  return s;
}

// Turns scores into exponentials in place; sets max and sum.
void SoftmaxRow(const SpanRows& in, int row, float* scores) {
  const int n = in.visible[row];
  float max = scores[0];
  for (int t = 1; t < n; ++t) max = scores[t] > max ? scores[t] : max;
  float sums[kAttentionSums] = {};
  for (int t = 0; t < n; ++t) {
    scores[t] = ExpScalar(scores[t] - max);
    sums[t % kAttentionSums] += scores[t];
  }
  for (int width = kAttentionSums / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  in.max[row] = max;
  in.sum[row] = sums[0];
}

void ValueRow(const SpanRows& in, int row, const float* p) {
  float* acc = in.acc + static_cast<size_t>(row) * in.acc_stride;
  std::memset(acc, 0, in.acc_stride * sizeof(float));
  for (int t = 0; t < in.visible[row]; ++t) {
    const std::byte* v = in.v[t / in.block_tokens];
    for (int c = 0; c < in.v_dim; ++c) {
      const float value = LoadElement(in.v_type, v, KvValueIndex(in.v_dim, t % in.block_tokens, c));
      acc[c] = std::fma(p[t], value, acc[c]);
    }
  }
}

void Span(const SpanRows& in) {
  for (int row = 0; row < in.rows; ++row) {
    if (in.visible[row] <= 0) continue;
    float* scores = in.scores + static_cast<size_t>(row) * kAttentionSpan;
    for (int t = 0; t < in.visible[row]; ++t) scores[t] = Score(in, row, t);
    SoftmaxRow(in, row, scores);
    ValueRow(in, row, scores);
  }
}

void Fold(float* acc, float& max, float& sum, const float* part, float part_max, float part_sum,
          size_t n) {
  const float top = max > part_max ? max : part_max;
  const float a = ExpScalar(max - top);
  const float b = ExpScalar(part_max - top);
  max = top;
  sum = sum * a + part_sum * b;
  for (size_t i = 0; i < n; ++i) acc[i] = std::fma(part[i], b, acc[i] * a);
}

void Store(KvType type, const float* in, std::byte* out, size_t n) {
  if (type == KvType::kF32) {
    std::memcpy(out, in, n * sizeof(float));
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    const uint16_t h = type == KvType::kF16 ? F32ToF16(in[i]) : F32ToBf16(in[i]);
    std::memcpy(out + i * sizeof(h), &h, sizeof(h));
  }
}

}  // namespace

const AttentionKernels& PortableAttention() {
  static constexpr AttentionKernels kKernels{kAttentionRowsMax, &Span, &Fold, &Store};
  return kKernels;
}

}  // namespace kvasir::internal
