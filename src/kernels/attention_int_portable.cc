// The plain reference of attention over i8 and i4: loops in the order the definition gives them
// (docs/kv-formats.md, "Arithmetic").
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention_int.h"
#include "kernels/exp_inl.h"
#include "quant/float16.h"
#include "quant/hadamard.h"
#include "quant/kv_codec.h"

namespace kvasir::internal {
namespace {

constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer

float ScaleOf(const std::byte* codes, size_t scales, size_t index) {
  uint16_t h;
  std::memcpy(&h, codes + scales + index * sizeof(h), sizeof(h));
  return F16ToF32(h);
}

int32_t CodeValue(KvType type, const std::byte* codes, KvCodePlace place, bool key) {
  const auto byte = std::to_integer<uint8_t>(codes[place.byte]);
  if (type == KvType::kI4) return kKvI4Table[place.high ? byte >> 4 : byte & 15];
  return key ? byte - 128 : static_cast<int8_t>(byte);
}

void PrepareRow(const QueryRows& query, int row) {
  float x[kIntDimMax];
  uint32_t most = 0;
  for (int c = 0; c < query.k_dim; ++c) {
    x[c] = query.rows[row][c] * query.scale;
    if (query.balance != nullptr) x[c] *= query.balance[c];
  }
  Rotate(x, query.k_dim);
  for (int c = 0; c < query.k_dim; ++c) {
    most = std::max(most, std::bit_cast<uint32_t>(x[c]) & 0x7FFFFFFFu);
  }
  const int quads = QueryQuads(query.k_dim);
  const auto amax = std::bit_cast<float>(most);
  float scale = amax / kIntQueryMost;
  float inverse = kIntQueryMost / amax;
  if (most >= kInfinityBits) scale = std::numeric_limits<float>::quiet_NaN();
  if (most >= kInfinityBits || amax < kIntSmallest) inverse = 0;
  if (amax < kIntSmallest) scale = 0;
  for (int c = 0; c < quads * 4; ++c) {
    int16_t code = 0;
    if (c < query.k_dim && inverse != 0) {
      code = static_cast<int16_t>((x[c] * inverse + kRound) - kRound);
    }
    std::memcpy(reinterpret_cast<std::byte*>(query.packed) + (c / 4 * query.n + row) * 8 +
                    static_cast<size_t>(c % 4) * 2,
                &code, sizeof(code));
  }
  query.packed[quads * 2 * query.n + row] = scale;
}

void Prepare(const QueryRows& query) {
  for (int r = 0; r < query.n; ++r) PrepareRow(query, r);
}

int16_t QueryCode(const SpanRows& in, int row, int channel) {
  int16_t code;
  std::memcpy(&code,
              reinterpret_cast<const std::byte*>(in.q) + (channel / 4 * in.rows + row) * 8 +
                  static_cast<size_t>(channel % 4) * 2,
              sizeof(code));
  return code;
}

float Score(const SpanRows& in, int row, int token) {
  const std::byte* k = in.k[token / in.block_tokens];
  const int in_block = token % in.block_tokens;
  const int group = KeyGroup(in.k_type);
  float s = 0;
  for (int c = 0; c < in.k_dim; c += group) {
    int32_t sum = 0;
    for (int i = c; i < std::min(c + group, in.k_dim); ++i) {
      const KvCodePlace place = KvKeyCode(in.k_type, in.block_tokens, in.k_dim, in_block, i);
      sum += CodeValue(in.k_type, k, place, true) * QueryCode(in, row, i);
    }
    const int g = in.k_type == KvType::kI8 ? 0 : c / group;
    const float scale =
        ScaleOf(k, in.k_scales, static_cast<size_t>(g * in.block_tokens + in_block));
    s = std::fma(static_cast<float>(sum), scale, s);
  }
  return s * in.q[QueryQuads(in.k_dim) * 2 * in.rows + row];
}

// Turns scores into exponentials in place; sets max and sum. As in attention_portable.cc.
void SoftmaxRow(const SpanRows& in, int row, float* scores) {
  const int n = in.visible[row];
  float max = -std::numeric_limits<float>::infinity();
  for (int t = 0; t < n; ++t) max = scores[t] > max ? scores[t] : max;
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

// Codes of the weights p * (V's scale) of up to 64 tokens; returns their scale.
float QuantizeWeights(const float* w, int n, float largest, int32_t* codes) {
  uint32_t most = 0;
  for (int t = 0; t < n; ++t) most = std::max(most, std::bit_cast<uint32_t>(w[t]) & 0x7FFFFFFFu);
  const auto max = std::bit_cast<float>(most);
  const bool nothing = most >= kInfinityBits || max < kIntSmallest;
  const float inverse = nothing ? 0.0F : largest / max;
  for (int t = 0; t < n; ++t) {
    codes[t] = nothing ? 0 : static_cast<int32_t>((w[t] * inverse + kRound) - kRound);
  }
  if (most >= kInfinityBits) return std::numeric_limits<float>::quiet_NaN();
  return max < kIntSmallest ? 0.0F : max / largest;
}

void ValueRow(const SpanRows& in, int row, const float* p) {
  float* acc = in.acc + static_cast<size_t>(row) * in.acc_stride;
  std::memset(acc, 0, in.acc_stride * sizeof(float));
  const int group = in.v_type == KvType::kI8 ? in.v_dim : kKvI4Group;
  for (int first = 0; first < in.v_dim; first += group) {
    for (int start = 0; start < in.visible[row]; start += kIntSubSpan) {
      const int n = std::min(kIntSubSpan, in.visible[row] - start);
      float w[kIntSubSpan];
      int32_t codes[kIntSubSpan];
      for (int t = 0; t < n; ++t) {
        const auto index =
            static_cast<size_t>(first / group * in.block_tokens + (start + t) % in.block_tokens);
        w[t] = p[start + t] * ScaleOf(in.v[(start + t) / in.block_tokens], in.v_scales, index);
      }
      const float scale = QuantizeWeights(w, n, WeightMost(in.v_type), codes);
      for (int c = first; c < std::min(first + group, in.v_dim); ++c) {
        int32_t sum = 0;
        for (int t = 0; t < n; ++t) {
          const int in_block = (start + t) % in.block_tokens;
          sum += codes[t] * CodeValue(in.v_type, in.v[(start + t) / in.block_tokens],
                                      KvValueCode(in.v_type, in.v_dim, in_block, c), false);
        }
        acc[c] = std::fma(static_cast<float>(sum), scale, acc[c]);
      }
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

}  // namespace

const IntKernels& PortableInt() {
  static const IntKernels kKernels{
      {kAttentionRowsMax, &Span, PortableAttention().fold, PortableAttention().store},
      &Prepare,
      &Rotate,
      &EncodeI8,
      &EncodeI4};
  return kKernels;
}

}  // namespace kvasir::internal
