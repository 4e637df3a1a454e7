// The body of the vector paths of attention over i8 and i4, over a vector type V; compiled once per
// instruction set, everything in an unnamed namespace (as attention_inl.h, whose V this extends).
//
// V gives besides: Dots (the running sums of one row and kLanes tokens), Start(init, stride) (init:
// a value for each of the two halves of the codes), AddKey(dots, key, code), DotsToFloat(dots);
// Key (codes of 4 channels of kLanes tokens), LoadKey (i4: both halves); for 4 tokens of kLanes
// channels Value, ValueSums, AddValue, ...; Weight (the codes of 4 tokens' weights). How many
// vectors a step takes, for its sums to stay in registers: KeyColumns(type, rows),
// ValueColumns(rows), and of i4's two halves I4Halves(rows).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_inl.h"
#include "kernels/attention_int.h"
#include "kernels/attention_int_scores_inl.h"
#include "quant/kv_codec.h"

namespace kvasir::internal {
namespace {

// The table of i4 as the paths want it, made by the compiler.
struct I4Tables {
  alignas(64) uint8_t bytes[16] = {};  // entry + 128
  alignas(64) float entries[16] = {};
  alignas(64) float middles[16] = {};  // between an entry and the next; the last is infinity
  constexpr I4Tables() {
    for (int i = 0; i < 16; ++i) {
      bytes[i] = static_cast<uint8_t>(kKvI4Table[i] + 128);
      entries[i] = static_cast<float>(kKvI4Table[i]);
      middles[i] =
          i == 15 ? __builtin_inff() : static_cast<float>(kKvI4Table[i] + kKvI4Table[i + 1]) * 0.5F;
    }
  }
};
constexpr I4Tables kI4Tables;

constexpr int kSpanQuads = kAttentionSpan / 4;
constexpr int kSubQuads = kIntSubSpan / 4;

// What the values of one group of channels are multiplied with.
template <class V, int R>
struct Weights {
  alignas(64) typename V::Weight codes[R][kSpanQuads];
  float scales[R][kAttentionSpan / kIntSubSpan];
  int32_t init[R][kAttentionSpan / kIntSubSpan];  // what the sums start with
};

// V's scales of one group, 0 past the tokens that some row sees.
template <class V>
void LoadValueScales(const SpanRows& in, int group, int seen, float* scales) {
  constexpr int kStep = 8;  // the smallest block
  for (int t = 0; t < seen; t += kStep) {
    const std::byte* at =
        in.v[t / in.block_tokens] + in.v_scales +
        static_cast<size_t>(group * in.block_tokens + t % in.block_tokens) * sizeof(uint16_t);
    V::HalvesToFloats(at, scales + t);
  }
}

template <class V, KvType kType, int R>
void QuantizeWeights(const SpanRows& in, const float* scales, Weights<V, R>& weights) {
  using F = typename V::F;
  constexpr float kMost = kType == KvType::kI8 ? 255.0F : 127.0F;
  constexpr int kVectors = kIntSubSpan / V::kLanes;
  const int seen = in.visible[R - 1];
  for (int r = 0; r < R; ++r) {
    for (int start = 0, sub = 0; start < seen; start += kIntSubSpan, ++sub) {
      const float* p = in.scores + r * kAttentionSpan + start;
      const int visible = in.visible[r] - start;
      F w[kVectors];
      uint32_t most = 0;
      {
        typename V::I bits = V::ZeroInt();
#pragma GCC unroll 16
        for (int i = 0; i < kVectors; ++i) {
          const F product =
              V::Mul(V::Get(p + i * V::kLanes), V::Get(scales + start + i * V::kLanes));
          w[i] = V::KeepFirst(product, visible - i * V::kLanes, V::Zero());
          bits = V::MaxMagnitude(bits, w[i]);
        }
        most = V::Largest(bits);
      }
      float max;
      __builtin_memcpy(&max, &most, sizeof(max));
      const bool nothing = most >= kInfinityBits || max < kIntSmallest;
      const F inverse = V::Set(nothing ? 0.0F : kMost / max);
      const bool bad = most >= kInfinityBits;
      int32_t sum = 0;
      V::template StoreWeights<kType>(w, inverse, bad, weights.codes[r] + sub * kSubQuads, &sum);
      weights.scales[r][sub] = bad ? __builtin_nanf("") : nothing ? 0.0F : max / kMost;
      weights.init[r][sub] = sum;
    }
  }
}

// One past the quads of a sub-span that some row sees.
inline int LastQuad(int sub, int seen) {
  return (seen + 3) / 4 < (sub + 1) * kSubQuads ? (seen + 3) / 4 : (sub + 1) * kSubQuads;
}

// Where V of 4 tokens starts.
inline const std::byte* ValueQuad(const SpanRows& in, int quad, int shift, size_t quad_bytes) {
  const int block = quad >> shift;
  return in.v[block] + static_cast<size_t>(quad - (block << shift)) * quad_bytes;
}

// From V of a block to V of the next, which is wanted soon.
inline ptrdiff_t BlockAhead(const SpanRows& in, int block) {
  return block + 1 < in.blocks ? in.v[block + 1] - in.v[block] : 0;
}

// Channels [channel, channel + N vectors) of i8; with kPart the only vector holds `part` channels.
template <class V, int R, int N, bool kPart>
void I8Values(const SpanRows& in, const Weights<V, R>& weights, int shift, int channel, int part) {
  static_assert(N == 1 || !kPart);
  const int seen = in.visible[R - 1];
  const size_t quad_bytes = static_cast<size_t>(in.v_dim) * 4;
  const size_t first = static_cast<size_t>(channel) * 4;
  for (int sub = 0; sub * kIntSubSpan < seen; ++sub) {
    typename V::ValueSums sums[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) sums[r][n] = V::StartValues(weights.init[r][sub]);
    }
    const int last = LastQuad(sub, seen);
    for (int quad = sub * kSubQuads; quad < last;) {
      const int block = quad >> shift;
      const int stop = (block + 1) << shift < last ? (block + 1) << shift : last;
      const std::byte* v = ValueQuad(in, quad, shift, quad_bytes) + first;
      const ptrdiff_t soon = BlockAhead(in, block);
      const ptrdiff_t later = in.v_ahead[block] - in.v[block];
      for (; quad < stop; ++quad, v += quad_bytes) {
        typename V::Value value[N];
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
          const std::byte* p = v + n * V::kLanes * 4;
          if constexpr (!kPart) {
            if (n % kLineVectors<V> == 0) {
              FetchSoon(p + soon);
              FetchLater(p + later);
            }
          }
          value[n] = kPart ? V::LoadValuePart(p, part) : V::LoadValue(p);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const auto weight = V::LoadWeight(&weights.codes[r][quad]);
#pragma GCC unroll 16
          for (int n = 0; n < N; ++n) {
            V::template AddValue<KvType::kI8>(sums[r][n], value[n], weight);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      if (in.visible[r] <= 0) continue;
      float* acc = in.acc + static_cast<size_t>(r) * in.acc_stride + channel;
      const typename V::F scale = V::Set(weights.scales[r][sub]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        float* to = acc + n * V::kLanes;
        const typename V::F before = sub == 0 ? V::Zero() : V::Get(to);
        V::Put(to, V::Fma(V::ValuesToFloat(sums[r][n]), scale, before));
      }
    }
  }
}

// Where a register's channels of i4 stand in V of 4 tokens.
struct I4At {
  int shift;
  size_t quad_bytes;
  size_t first;  // bytes
  int left;      // channels of the register, if it is not whole
};

// Adds the products of 4 tokens, of H halves from kFirst on.
template <class V, int R, bool kPart, int kFirst, int H>
[[gnu::always_inline]] inline void I4Quad(const SpanRows& in, const Weights<V, R>& weights,
                                          const I4At& at, int quad,
                                          typename V::ValueSums (&sums)[R][H]) {
  const std::byte* v = ValueQuad(in, quad, at.shift, at.quad_bytes) + at.first;
  if constexpr (kFirst == 0) {
    FetchSoon(v + BlockAhead(in, quad >> at.shift));
    FetchLater(v + (in.v_ahead[quad >> at.shift] - in.v[quad >> at.shift]));
  }
  typename V::Value value[H];
  V::template LoadValueHalves<kPart, kFirst, H>(v, at.left, value);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const auto weight = V::LoadWeight(&weights.codes[r][quad]);
#pragma GCC unroll 2
    for (int h = 0; h < H; ++h) {
      V::template AddValue<KvType::kI4>(sums[r][h], value[h], weight);
    }
  }
}

// The values of H halves from kFirst on of one register, in a group of `channels` channels.
template <class V, int R, bool kPart, int kFirst, int H>
void I4Register(const SpanRows& in, const Weights<V, R>& weights, const I4At& at, int channel,
                int channels) {
  const int seen = in.visible[R - 1];
  for (int sub = 0; sub * kIntSubSpan < seen; ++sub) {
    typename V::ValueSums sums[R][H];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int h = 0; h < H; ++h) sums[r][h] = V::StartValues(weights.init[r][sub]);
    }
    const int last = LastQuad(sub, seen);
    int quad = sub * kSubQuads;
    if constexpr (R <= V::kPairRows) {  // few sums would wait for each other
      typename V::ValueSums more[R][H];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int h = 0; h < H; ++h) more[r][h] = V::StartValues(0);
      }
      for (; quad + 2 <= last; quad += 2) {
        I4Quad<V, R, kPart, kFirst, H>(in, weights, at, quad, sums);
        I4Quad<V, R, kPart, kFirst, H>(in, weights, at, quad + 1, more);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int h = 0; h < H; ++h) V::AddSums(sums[r][h], more[r][h]);
      }
    }
    for (; quad < last; ++quad) I4Quad<V, R, kPart, kFirst, H>(in, weights, at, quad, sums);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      if (in.visible[r] <= 0) continue;
      float* acc = in.acc + static_cast<size_t>(r) * in.acc_stride + channel;
      const typename V::F scale = V::Set(weights.scales[r][sub]);
#pragma GCC unroll 2
      for (int h = 0; h < H; ++h) {
        const bool high = kFirst + h == 1;
        float* to = acc + (high ? (channels + 1) / 2 : 0);
        const int n = !kPart ? V::kLanes : at.left - (high ? channels % 2 : 0);
        const typename V::F before = sub == 0 ? V::Zero() : V::template GetPart<kPart>(to, n);
        V::template PutPart<kPart>(to, V::Fma(V::ValuesToFloat(sums[r][h]), scale, before), n);
      }
    }
  }
}

// One group of 32 channels (or the rest, `channels` of them) of i4: two vectors, low and high
// halves, of kWide = 16 / kLanes registers each.
template <class V, int R, bool kPart>
void I4Values(const SpanRows& in, const Weights<V, R>& weights, int shift, int group,
              int channels) {
  constexpr int kWide = 16 / V::kLanes;
  const int half = (channels + 1) / 2;
  const size_t quad_bytes =
      static_cast<size_t>(in.v_dim / kKvI4Group * 16 + (in.v_dim % kKvI4Group + 1) / 2) * 4;
  const size_t first = static_cast<size_t>(group) * 64;
  for (int part = 0; part < kWide; ++part) {
    const int left = half - part * V::kLanes;  // channels of this register, if kPart
    if (kPart && left <= 0) break;
    const I4At at{shift, quad_bytes, first + static_cast<size_t>(part) * V::kLanes * 4, left};
    const int channel = group * kKvI4Group + part * V::kLanes;
    if constexpr (V::I4Halves(R) == 2) {
      I4Register<V, R, kPart, 0, 2>(in, weights, at, channel, channels);
    } else {
      I4Register<V, R, kPart, 0, 1>(in, weights, at, channel, channels);
      I4Register<V, R, kPart, 1, 1>(in, weights, at, channel, channels);
    }
  }
}

template <class V, KvType kType, int R>
void AllValues(const SpanRows& in) {
  const int seen = in.visible[R - 1];
  const int shift = __builtin_ctz(static_cast<unsigned>(in.block_tokens)) - 2;
  alignas(64) float scales[kAttentionSpan] = {};
  Weights<V, R> weights;
  if constexpr (kType == KvType::kI8) {
    LoadValueScales<V>(in, 0, seen, scales);
    QuantizeWeights<V, kType, R>(in, scales, weights);
    constexpr int kN = V::ValueColumns(R);
    int channel = 0;
    for (; channel + kN * V::kLanes <= in.v_dim; channel += kN * V::kLanes) {
      I8Values<V, R, kN, false>(in, weights, shift, channel, 0);
    }
    for (; channel + V::kLanes <= in.v_dim; channel += V::kLanes) {
      I8Values<V, R, 1, false>(in, weights, shift, channel, 0);
    }
    if (channel < in.v_dim)
      I8Values<V, R, 1, true>(in, weights, shift, channel, in.v_dim - channel);
  } else {
    for (int r = 0; r < R; ++r) {  // padding that is folded but never seen
      if (in.visible[r] <= 0) continue;
      float* acc = in.acc + static_cast<size_t>(r) * in.acc_stride;
      for (auto c = static_cast<size_t>(in.v_dim); c < in.acc_stride; ++c) acc[c] = 0;
    }
    for (int g = 0; g * kKvI4Group < in.v_dim; ++g) {
      LoadValueScales<V>(in, g, seen, scales);
      QuantizeWeights<V, kType, R>(in, scales, weights);
      const int channels = in.v_dim - g * kKvI4Group;
      if (channels >= kKvI4Group) {
        I4Values<V, R, false>(in, weights, shift, g, kKvI4Group);
      } else {
        I4Values<V, R, true>(in, weights, shift, g, channels);
      }
    }
  }
}

template <class V, int R>
void IntSpanOfRows(const SpanRows& in) {
  const bool split = V::kLanes > in.block_tokens;
  if (in.k_type == KvType::kI8) {
    split ? AllScores<V, KvType::kI8, R, true>(in) : AllScores<V, KvType::kI8, R, false>(in);
  } else {
    split ? AllScores<V, KvType::kI4, R, true>(in) : AllScores<V, KvType::kI4, R, false>(in);
  }
  Softmax<V, R>(in);
  if (in.v_type == KvType::kI8) {
    AllValues<V, KvType::kI8, R>(in);
  } else {
    AllValues<V, KvType::kI4, R>(in);
  }
}

template <class V, int kRows>
void IntSpan(const SpanRows& in) {
  if constexpr (kRows > 0) {
    if (in.rows == kRows) {
      IntSpanOfRows<V, kRows>(in);
    } else {
      IntSpan<V, kRows - 1>(in);
    }
  }
}

}  // namespace
}  // namespace kvasir::internal
