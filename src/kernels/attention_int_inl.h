// The body of the vector paths of attention over i8 and i4, over a vector type V; compiled once per
// instruction set, everything in an unnamed namespace (as attention_inl.h, whose V this extends).
//
// V gives besides: Dots (the running sums of one row and kLanes tokens), Start(init, stride) (init:
// a value for each of the two halves of the codes), AddKey(dots, key, code), Scores(dots) -> F;
// Key<KvType> (codes of 4 channels of kLanes tokens), KeyPair (i4: both halves); Value, ValueSums,
// AddValue, ... for 4 tokens of kLanes channels; Weight (the codes of 4 tokens' weights).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_inl.h"
#include "kernels/attention_int.h"
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

// Rows by vectors of tokens whose sums stay in registers.
template <class V, KvType kType>
constexpr int KeyColumns(int rows) {
  const int most = kType == KvType::kI8 ? V::kKeySums : V::kKeySums * 2 / 3;
  return most >= 8 * rows ? 8 : most >= 4 * rows ? 4 : most >= 2 * rows ? 2 : 1;
}

inline int KvScaleGroupsOf(KvType type, int dim) {
  return type == KvType::kI8 ? 1 : (dim + kKvI4Group - 1) / kKvI4Group;
}

// Where K of a vector of tokens starts. Tiles of 8 tokens fill half a vector of 16 each.
template <class V>
struct KeyAt {
  const std::byte* codes;
  const std::byte* more;  // the second tile, if the vector spans two
  const std::byte* scales;
  const std::byte* more_scales;
  ptrdiff_t soon;   // from codes to what is wanted after N vectors like this one
  ptrdiff_t later;  // see SpanRows
};

template <class V, KvType kType>
inline KeyAt<V> KeyOf(const SpanRows& in, int index) {
  const int token = index * V::kLanes;
  const int block = token / in.block_tokens;
  const int in_block = token % in.block_tokens;
  const int tile = in.block_tokens < kKvTileTokens ? in.block_tokens : kKvTileTokens;
  constexpr int kChannels = kType == KvType::kI8 ? 4 : 8;
  const int lines = (in.k_dim + kChannels - 1) / kChannels;
  KeyAt<V> at{};
  at.codes =
      in.k[block] + static_cast<size_t>(in_block / tile * tile * lines + in_block % tile) * 4;
  at.scales = in.k[block] + in.k_scales + static_cast<size_t>(in_block) * 2;
  if (V::kLanes > tile) {
    const std::byte* second = in.k[block + 1 < in.blocks ? block + 1 : block];
    at.more = second;
    at.more_scales = second + in.k_scales;
  }
  return at;
}

// Scales stand apart from codes, where no stream of reads leads to them: they are asked for by
// hand, those of K for the vector that comes N later, those of V while K is read.
template <class V, KvType kType, int N>
inline KeyAt<V> KeyAhead(const SpanRows& in, int index) {
  const auto group_bytes = static_cast<size_t>(in.block_tokens) * 2;
  KeyAt<V> at = KeyOf<V, kType>(in, index);
  const int token = index * V::kLanes;
  const int block = token / in.block_tokens;
  if ((index + N) * V::kLanes < in.blocks * in.block_tokens) {
    const KeyAt<V> next = KeyOf<V, kType>(in, index + N);
    at.soon = next.codes - at.codes;
    for (int g = 0; g < KvScaleGroupsOf(kType, in.k_dim); ++g) {
      FetchSoon(next.scales + static_cast<size_t>(g) * group_bytes);
    }
  }
  const std::byte* v = in.v[block] + in.v_scales + static_cast<size_t>(token % in.block_tokens) * 2;
  for (int g = 0; g < KvScaleGroupsOf(in.v_type, in.v_dim); ++g) {
    FetchSoon(v + static_cast<size_t>(g) * group_bytes);
  }
  at.later = in.k_ahead[block] - in.k[block];
  return at;
}

template <class V, int R, int N>
inline void PutScores(const SpanRows& in, int index, const float* query_scales,
                      const typename V::F (&score)[R][N]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const typename V::F scale = V::Set(query_scales[r]);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      V::Put(in.scores + r * kAttentionSpan + (index + n) * V::kLanes, V::Mul(score[r][n], scale));
    }
  }
}

// Scores of R rows and N vectors of tokens. kSplit: a vector spans two tiles.
template <class V, KvType kType, int R, int N, bool kSplit>
void IntScores(const SpanRows& in, int index) {
  using F = typename V::F;
  constexpr int kGroup = kType == KvType::kI8 ? kI8Group : kKvI4Group;
  constexpr int kQuads = kType == KvType::kI8 ? 1 : 2;  // of a line
  const int tile = in.block_tokens < kKvTileTokens ? in.block_tokens : kKvTileTokens;
  const size_t line = static_cast<size_t>(tile) * 4;
  const int lines = (in.k_dim + 4 * kQuads - 1) / (4 * kQuads);
  const int groups = (in.k_dim + kGroup - 1) / kGroup;
  const int quads = QueryQuads(in.k_dim);
  const auto* code = reinterpret_cast<const uint64_t*>(in.q);
  const float* query_scales = in.q + quads * 2 * R;
  const auto* init = reinterpret_cast<const int32_t*>(query_scales + R);
  KeyAt<V> at[N];
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) at[n] = KeyAhead<V, kType, N>(in, index + n);
  F score[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) score[r][n] = V::Zero();
  }
  for (int g = 0, l = 0; g < groups; ++g, init += 2 * R) {
    typename V::Dots dots[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) dots[r][n] = V::Start(init + r, R);
    }
    const int stop =
        (g + 1) * kGroup / (4 * kQuads) < lines ? (g + 1) * kGroup / (4 * kQuads) : lines;
    for (; l < stop; ++l, code += kQuads * R) {
      typename V::Key key[N][kQuads];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        const std::byte* p = at[n].codes + static_cast<size_t>(l) * line;
        FetchSoon(p + at[n].soon);
        FetchLater(p + at[n].later);
        V::template LoadKey<kType, kSplit>(p, at[n].more + static_cast<size_t>(l) * line, key[n]);
      }
#pragma GCC unroll 2
      for (int q = 0; q < kQuads; ++q) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
          for (int n = 0; n < N; ++n) V::AddKey(dots[r][n], key[n][q], code + q * R + r);
        }
      }
    }
    const size_t group_scales =
        kType == KvType::kI8 ? 0 : static_cast<size_t>(g * in.block_tokens) * 2;
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const F scale = V::template LoadScales<kSplit>(at[n].scales + group_scales,
                                                     at[n].more_scales + group_scales);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        score[r][n] = V::Fma(V::DotsToFloat(dots[r][n]), scale, score[r][n]);
      }
    }
  }
  PutScores<V, R, N>(in, index, query_scales, score);
}

template <class V, KvType kType, int R, bool kSplit>
void AllScores(const SpanRows& in) {
  constexpr int kN = KeyColumns<V, kType>(R);
  const int vectors = (in.visible[R - 1] + V::kLanes - 1) / V::kLanes;
  int index = 0;
  for (; index + kN <= vectors; index += kN) IntScores<V, kType, R, kN, kSplit>(in, index);
  for (; index < vectors; ++index) IntScores<V, kType, R, 1, kSplit>(in, index);
}

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
      for (int n = 0; n < N; ++n) sums[r][n] = V::StartValues(0);
    }
    const int last =
        (seen + 3) / 4 < (sub + 1) * kSubQuads ? (seen + 3) / 4 : (sub + 1) * kSubQuads;
    for (int quad = sub * kSubQuads; quad < last; ++quad) {
      const std::byte* v = ValueQuad(in, quad, shift, quad_bytes) + first;
      const ptrdiff_t soon = BlockAhead(in, quad >> shift);
      const ptrdiff_t later = in.v_ahead[quad >> shift] - in.v[quad >> shift];
      typename V::Value value[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        if constexpr (!kPart) {
          FetchSoon(v + soon + n * V::kLanes * 4);
          FetchLater(v + later + n * V::kLanes * 4);
        }
        value[n] = kPart ? V::LoadValuePart(v, part)
                         : V::LoadValue(v + static_cast<size_t>(n) * V::kLanes * 4);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto weight = V::LoadWeight(&weights.codes[r][quad]);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) V::template AddValue<KvType::kI8>(sums[r][n], value[n], weight);
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

// Adds the products of 4 tokens.
template <class V, int R, bool kPart>
[[gnu::always_inline]] inline void I4Quad(const SpanRows& in, const Weights<V, R>& weights,
                                          const I4At& at, int quad,
                                          typename V::ValueSums (&sums)[R][2]) {
  const std::byte* v = ValueQuad(in, quad, at.shift, at.quad_bytes) + at.first;
  FetchSoon(v + BlockAhead(in, quad >> at.shift));
  FetchLater(v + (in.v_ahead[quad >> at.shift] - in.v[quad >> at.shift]));
  typename V::Value value[2];
  V::template LoadValuePair<kPart>(v, at.left, value);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const auto weight = V::LoadWeight(&weights.codes[r][quad]);
    V::template AddValue<KvType::kI4>(sums[r][0], value[0], weight);
    V::template AddValue<KvType::kI4>(sums[r][1], value[1], weight);
  }
}

// One group of 32 channels (or the rest, `channels` of them) of i4: two vectors, low and high
// halves, of kWide = 16 / kLanes registers each.
template <class V, int R, bool kPart>
void I4Values(const SpanRows& in, const Weights<V, R>& weights, int shift, int group,
              int channels) {
  constexpr int kWide = 16 / V::kLanes;
  const int half = (channels + 1) / 2;
  const int seen = in.visible[R - 1];
  const size_t quad_bytes =
      static_cast<size_t>(in.v_dim / kKvI4Group * 16 + (in.v_dim % kKvI4Group + 1) / 2) * 4;
  const size_t first = static_cast<size_t>(group) * 64;
#pragma GCC unroll 2
  for (int part = 0; part < kWide; ++part) {
    const int left = half - part * V::kLanes;  // channels of this register, if kPart
    if (kPart && left <= 0) break;
    const I4At at{shift, quad_bytes, first + static_cast<size_t>(part) * V::kLanes * 4, left};
    for (int sub = 0; sub * kIntSubSpan < seen; ++sub) {
      typename V::ValueSums sums[R][2];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        sums[r][0] = V::StartValues(weights.init[r][sub]);
        sums[r][1] = sums[r][0];
      }
      const int last =
          (seen + 3) / 4 < (sub + 1) * kSubQuads ? (seen + 3) / 4 : (sub + 1) * kSubQuads;
      int quad = sub * kSubQuads;
      if constexpr (R <= V::kPairRows) {  // few sums would wait for each other
        typename V::ValueSums more[R][2];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) more[r][0] = more[r][1] = V::StartValues(0);
        for (; quad + 2 <= last; quad += 2) {
          I4Quad<V, R, kPart>(in, weights, at, quad, sums);
          I4Quad<V, R, kPart>(in, weights, at, quad + 1, more);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          V::AddSums(sums[r][0], more[r][0]);
          V::AddSums(sums[r][1], more[r][1]);
        }
      }
      for (; quad < last; ++quad) I4Quad<V, R, kPart>(in, weights, at, quad, sums);
      for (int r = 0; r < R; ++r) {
        if (in.visible[r] <= 0) continue;
        float* acc = in.acc + static_cast<size_t>(r) * in.acc_stride +
                     static_cast<size_t>(group * kKvI4Group + part * V::kLanes);
        const typename V::F scale = V::Set(weights.scales[r][sub]);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          float* to = acc + h * half;
          const int n = !kPart ? V::kLanes : left - (h == 1 ? channels % 2 : 0);
          const typename V::F before = sub == 0 ? V::Zero() : V::template GetPart<kPart>(to, n);
          V::template PutPart<kPart>(to, V::Fma(V::ValuesToFloat(sums[r][h]), scale, before), n);
        }
      }
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
