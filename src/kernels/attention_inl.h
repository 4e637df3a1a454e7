// The body of the vector paths, written over a vector type V and compiled once per instruction set.
// Include it in exactly the files that are compiled for one; everything is in an unnamed namespace,
// and nothing here calls an inline function of a shared header, so no code with wide instructions
// can be linked into another path.
//
// V gives: F (the register), kLanes, Zero, Set (broadcast), Fma, Add, Sub, Max (the second if one
// is NaN), ExpOfNegative (x <= 0 or NaN; anything for others), Load<KvType>(bytes),
// LoadPart<KvType>(bytes, n) (n < kLanes elements, zeros after), Get and Put (floats), KeepFirst(x,
// n, otherwise), Top (the largest lane), Sum (sixteen partial sums, folded 8, 4, 2, 1), Columns(R)
// (vectors beside R rows in registers), kSoftmaxRows (rows whose exponentials are taken side by
// side).
//
// Scores: a lane is a token, a block of R rows by N vectors of tokens is one chain of fma per row
// and token over ascending channels. Values: a lane is a channel, R rows by N vectors of channels,
// one chain over ascending tokens.
#pragma once

#include <cstddef>

#include "kernels/attention_kernels.h"

namespace kvasir::internal {
namespace {

constexpr size_t kCacheLine = 64;

template <KvType kType>
constexpr size_t kElementBytes = kType == KvType::kF32 ? 4 : 2;

// Where vector `index` of the span's tokens starts in K. Sizes are powers of two; a division here
// would cost as much as a few channels.
template <class V, KvType kType>
[[gnu::always_inline]] inline const std::byte* KeyVector(const SpanRows& in, int block_shift,
                                                         int index) {
  const int tile = in.block_tokens < kKvTileTokens ? in.block_tokens : kKvTileTokens;
  const int token = index * V::kLanes;
  const int in_block = token & (in.block_tokens - 1);
  const auto elements = static_cast<size_t>(in_block & -tile) * static_cast<size_t>(in.k_dim) +
                        static_cast<size_t>(in_block & (tile - 1));
  return in.k[token >> block_shift] + elements * kElementBytes<kType>;
}

// Asks for one cache line: for the nearest cache, or (what is wanted some 30 KiB later) for the
// next one.
[[gnu::always_inline]] inline void FetchSoon(const std::byte* p) {
  __builtin_prefetch(p);
}
[[gnu::always_inline]] inline void FetchLater(const std::byte* p) {
  __builtin_prefetch(p, 0, 2);
}

template <class V, KvType kType, int R, int N>
void ScoreVectors(const SpanRows& in, int index) {
  using F = typename V::F;
  const std::byte* k[N];
  const std::byte* soon[N];   // what is wanted after these, or again these
  const std::byte* later[N];  // see SpanRows
  const int block_shift = __builtin_ctz(static_cast<unsigned>(in.block_tokens));
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    const int block = (index + n) * V::kLanes >> block_shift;
    k[n] = KeyVector<V, kType>(in, block_shift, index + n);
    const bool known = (index + N + n) * V::kLanes < in.blocks << block_shift;
    soon[n] = known ? KeyVector<V, kType>(in, block_shift, index + N + n) : k[n];
    later[n] = in.k_ahead[block] + (k[n] - in.k[block]);
  }
  F acc[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) acc[r][n] = V::Zero();
  }
  const int tile = in.block_tokens < kKvTileTokens ? in.block_tokens : kKvTileTokens;
  const size_t stride = static_cast<size_t>(tile) * kElementBytes<kType>;
  const float* q = in.q;
  const size_t end = static_cast<size_t>(in.k_dim) * stride;
  for (size_t at = 0; at < end; at += stride, q += R) {
    if (kType == KvType::kF32 || at % kCacheLine == 0) {
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        FetchSoon(soon[n] + at);
        FetchLater(later[n] + at);
      }
    }
    F key[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) key[n] = V::template Load<kType>(k[n] + at);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F query = V::Set(q[r]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[r][n] = V::Fma(query, key[n], acc[r][n]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n)
      V::Put(in.scores + r * kAttentionSpan + (index + n) * V::kLanes, acc[r][n]);
  }
}

template <class V, KvType kType, int R>
void Scores(const SpanRows& in) {
  constexpr int kN = V::Columns(R);
  const int vectors = (in.visible[R - 1] + V::kLanes - 1) / V::kLanes;
  int index = 0;
  for (; index + kN <= vectors; index += kN) ScoreVectors<V, kType, R, kN>(in, index);
  for (; index < vectors; ++index) ScoreVectors<V, kType, R, 1>(in, index);
}

// Scores of one row to exponentials, in place; what lies past the visible tokens becomes 0 and is
// never used.
template <class V>
void SoftmaxRow(const SpanRows& in, int row) {
  using F = typename V::F;
  constexpr int kSums = kAttentionSums / V::kLanes;
  float* scores = in.scores + row * kAttentionSpan;
  const int visible = in.visible[row];
  const F lowest = V::Set(-__builtin_inff());
  F max = lowest;
  for (int t = 0; t < visible; t += V::kLanes) {
    max = V::Max(V::KeepFirst(V::Get(scores + t), visible - t, lowest), max);
  }
  const float top = V::Top(max);
  const F base = V::Set(top);
  F sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = V::Zero();
  for (int t = 0; t < visible; t += kAttentionSums) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
      float* at = scores + t + i * V::kLanes;
      const F p = V::KeepFirst(V::ExpOfNegative(V::Sub(V::Get(at), base)),
                               visible - t - i * V::kLanes, V::Zero());
      V::Put(at, p);
      sums[i] = V::Add(sums[i], p);
    }
  }
  in.max[row] = top;
  in.sum[row] = V::Sum(sums);
}

// The same for R rows from `row` on that see the whole span, side by side: a row alone waits for
// its own maximum and its own sums.
template <class V, int R>
void SoftmaxWhole(const SpanRows& in, int row) {
  using F = typename V::F;
  constexpr int kSums = kAttentionSums / V::kLanes;
  float* scores = in.scores + row * kAttentionSpan;
  F base[R];
  F sums[R][kSums];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) base[r] = V::Get(scores + r * kAttentionSpan);
  for (int t = V::kLanes; t < kAttentionSpan; t += V::kLanes) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      base[r] = V::Max(V::Get(scores + r * kAttentionSpan + t), base[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    in.max[row + r] = V::Top(base[r]);
    base[r] = V::Set(in.max[row + r]);
    for (int i = 0; i < kSums; ++i) sums[r][i] = V::Zero();
  }
  for (int t = 0; t < kAttentionSpan; t += kAttentionSums) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) {
        float* at = scores + r * kAttentionSpan + t + i * V::kLanes;
        const F p = V::ExpOfNegative(V::Sub(V::Get(at), base[r]));
        V::Put(at, p);
        sums[r][i] = V::Add(sums[r][i], p);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) in.sum[row + r] = V::Sum(sums[r]);
}

template <class V, int R>
void Softmax(const SpanRows& in) {
  if (in.visible[0] < kAttentionSpan) {
    for (int r = 0; r < R; ++r) {
      if (in.visible[r] > 0) SoftmaxRow<V>(in, r);
    }
    return;
  }
  constexpr int kTogether = V::kSoftmaxRows;
  int row = 0;
  for (; row + kTogether <= R; row += kTogether) SoftmaxWhole<V, kTogether>(in, row);
  if constexpr (R % kTogether != 0) SoftmaxWhole<V, R % kTogether>(in, row);
}

// The N vectors of one token's channels; with kPart the only vector holds `part` channels.
template <class V, KvType kType, int N, bool kPart>
[[gnu::always_inline]] inline typename V::F ValueVector(const std::byte* v, int n, int part) {
  static_assert(N == 1 || !kPart);
  if constexpr (kPart) {
    return V::template LoadPart<kType>(v, part);
  } else {
    return V::template Load<kType>(v + static_cast<size_t>(n) * V::kLanes * kElementBytes<kType>);
  }
}

// acc[r][n] += p * v for a token that every row sees. p: row 0's exponential of the token.
template <class V, KvType kType, int R, int N, bool kPart>
[[gnu::always_inline]] inline void AddValue(typename V::F (&acc)[R][N], const float* p,
                                            const std::byte* v, int part) {
  using F = typename V::F;
  if constexpr (R <= 4) {  // whichever of the two sides is shorter is held in registers
    F weight[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) weight[r] = V::Set(p[r * kAttentionSpan]);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const F value = ValueVector<V, kType, N, kPart>(v, n, part);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) acc[r][n] = V::Fma(weight[r], value, acc[r][n]);
    }
  } else {
    F value[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) value[n] = ValueVector<V, kType, N, kPart>(v, n, part);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F weight = V::Set(p[r * kAttentionSpan]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[r][n] = V::Fma(weight, value[n], acc[r][n]);
    }
  }
}

// The same for a token that only the later rows see.
template <class V, KvType kType, int R, int N, bool kPart>
[[gnu::always_inline]] inline void AddValueWhereSeen(typename V::F (&acc)[R][N], const SpanRows& in,
                                                     int token, const std::byte* v, int part) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if (token >= in.visible[r]) continue;
    const typename V::F weight = V::Set(in.scores[r * kAttentionSpan + token]);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      acc[r][n] = V::Fma(weight, ValueVector<V, kType, N, kPart>(v, n, part), acc[r][n]);
    }
  }
}

// Channels [channel, channel + N * kLanes) of all rows.
template <class V, KvType kType, int R, int N, bool kPart>
void ValueVectors(const SpanRows& in, int channel, int part) {
  const size_t stride = static_cast<size_t>(in.v_dim) * kElementBytes<kType>;
  const size_t first = static_cast<size_t>(channel) * kElementBytes<kType>;
  typename V::F acc[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) acc[r][n] = V::Zero();
  }
  const int common = in.visible[0] < 0 ? 0 : in.visible[0];  // tokens that every row sees
  const int seen = in.visible[R - 1];
  const float* scores = in.scores;
  for (int start = 0, block = 0; start < seen; start += in.block_tokens, ++block) {
    const std::byte* v = in.v[block] + first;
    const ptrdiff_t soon = block + 1 < in.blocks ? in.v[block + 1] - in.v[block] : 0;
    const ptrdiff_t later = in.v_ahead[block] - in.v[block];
    const int stop = start + in.block_tokens < seen ? start + in.block_tokens : seen;
    const int full = stop < common ? stop : common;
    int t = start;
    for (; t < full; ++t, v += stride) {
#pragma GCC unroll 16
      for (size_t at = 0; at < N * V::kLanes * kElementBytes<kType>; at += kCacheLine) {
        FetchSoon(v + soon + at);
        FetchLater(v + later + at);
      }
      AddValue<V, kType, R, N, kPart>(acc, scores + t, v, part);
    }
    for (; t < stop; ++t, v += stride)
      AddValueWhereSeen<V, kType, R, N, kPart>(acc, in, t, v, part);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if (in.visible[r] <= 0) continue;
    float* out = in.acc + static_cast<size_t>(r) * in.acc_stride + channel;
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) V::Put(out + n * V::kLanes, acc[r][n]);
  }
}

template <class V, KvType kType, int R>
void Values(const SpanRows& in) {
  constexpr int kN = V::Columns(R);
  int channel = 0;
  for (; channel + kN * V::kLanes <= in.v_dim; channel += kN * V::kLanes) {
    ValueVectors<V, kType, R, kN, false>(in, channel, 0);
  }
  if constexpr (kN > 2) {
    for (; channel + 2 * V::kLanes <= in.v_dim; channel += 2 * V::kLanes) {
      ValueVectors<V, kType, R, 2, false>(in, channel, 0);
    }
  }
  for (; channel + V::kLanes <= in.v_dim; channel += V::kLanes) {
    ValueVectors<V, kType, R, 1, false>(in, channel, 0);
  }
  if (channel < in.v_dim) ValueVectors<V, kType, R, 1, true>(in, channel, in.v_dim - channel);
}

// V: for channels and 16-token tiles; Narrow: the vector of at most 8 lanes, for 8-token tiles.
template <class V, class Narrow, int R>
void SpanOfRows(const SpanRows& in) {
  auto scores = [&in]<KvType kType>() {
    if (V::kLanes > in.block_tokens) {
      Scores<Narrow, kType, R>(in);
    } else {
      Scores<V, kType, R>(in);
    }
  };
  switch (in.k_type) {
    case KvType::kF32:
      scores.template operator()<KvType::kF32>();
      break;
    case KvType::kF16:
      scores.template operator()<KvType::kF16>();
      break;
    default:
      scores.template operator()<KvType::kBf16>();
      break;
  }
  Softmax<V, R>(in);
  switch (in.v_type) {
    case KvType::kF32:
      Values<V, KvType::kF32, R>(in);
      break;
    case KvType::kF16:
      Values<V, KvType::kF16, R>(in);
      break;
    default:
      Values<V, KvType::kBf16, R>(in);
      break;
  }
}

template <class V, class Narrow, int kRows>
void SpanOfAny(const SpanRows& in) {
  if constexpr (kRows > 0) {
    if (in.rows == kRows) {
      SpanOfRows<V, Narrow, kRows>(in);
    } else {
      SpanOfAny<V, Narrow, kRows - 1>(in);
    }
  }
}

template <class V>
void Fold(float* acc, float& max, float& sum, const float* part, float part_max, float part_sum,
          size_t n) {
  const float top = max > part_max ? max : part_max;
  float factor[V::kLanes] = {max - top, part_max - top};
  V::Put(factor, V::ExpOfNegative(V::Get(factor)));
  max = top;
  sum = sum * factor[0] + part_sum * factor[1];
  const typename V::F a = V::Set(factor[0]);
  const typename V::F b = V::Set(factor[1]);
  for (size_t i = 0; i < n; i += V::kLanes) {
    V::Put(acc + i, V::Fma(V::Get(part + i), b, V::Mul(V::Get(acc + i), a)));
  }
}

}  // namespace
}  // namespace kvasir::internal
