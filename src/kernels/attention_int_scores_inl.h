// Scores of attention over i8 and i4 for the vector paths, over a vector type V
// (attention_int_inl.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_inl.h"
#include "kernels/attention_int.h"

namespace kvasir::internal {
namespace {

// Vectors of 4-byte lanes in a cache line: of several vectors only the first in a line asks for it
// (in tiles of 8 tokens, whose lines are half as long, the others go without).
template <class V>
constexpr int kLineVectors = kCacheLine / (V::kLanes * 4);

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

// How K lies in the blocks; all sizes of tokens are powers of two.
struct KeyShape {
  int block_shift;
  int tile_shift;
  int lines;   // of a tile
  int tokens;  // in the span's blocks
  int groups;  // of scales
  int v_groups;
};

template <KvType kType>
inline KeyShape ShapeOfKeys(const SpanRows& in) {
  constexpr int kChannels = kType == KvType::kI8 ? 4 : 8;
  const int tile = in.block_tokens < kKvTileTokens ? in.block_tokens : kKvTileTokens;
  return {__builtin_ctz(static_cast<unsigned>(in.block_tokens)),
          __builtin_ctz(static_cast<unsigned>(tile)),
          (in.k_dim + kChannels - 1) / kChannels,
          in.blocks * in.block_tokens,
          KvScaleGroupsOf(kType, in.k_dim),
          KvScaleGroupsOf(in.v_type, in.v_dim)};
}

template <class V>
inline KeyAt<V> KeyOf(const SpanRows& in, const KeyShape& shape, int token) {
  const int block = token >> shape.block_shift;
  const int in_block = token - (block << shape.block_shift);
  const int in_tile = in_block & ((1 << shape.tile_shift) - 1);
  KeyAt<V> at{};
  at.codes = in.k[block] + static_cast<size_t>((in_block - in_tile) * shape.lines + in_tile) * 4;
  at.scales = in.k[block] + in.k_scales + static_cast<size_t>(in_block) * 2;
  if (V::kLanes > 1 << shape.tile_shift) {
    const std::byte* second = in.k[block + 1 < in.blocks ? block + 1 : block];
    at.more = second;
    at.more_scales = second + in.k_scales;
  }
  return at;
}

// Scales stand apart from codes, where no stream of reads leads to them: they are asked for by
// hand, those of K for the vector that comes N later, those of V while K is read.
template <class V, int N>
inline KeyAt<V> KeyAhead(const SpanRows& in, const KeyShape& shape, int index) {
  const auto group_bytes = static_cast<size_t>(in.block_tokens) * 2;
  const int token = index * V::kLanes;
  const int block = token >> shape.block_shift;
  KeyAt<V> at = KeyOf<V>(in, shape, token);
  if (token + N * V::kLanes < shape.tokens) {
    const KeyAt<V> next = KeyOf<V>(in, shape, token + N * V::kLanes);
    at.soon = next.codes - at.codes;
    for (int g = 0; g < shape.groups; ++g) {
      FetchSoon(next.scales + static_cast<size_t>(g) * group_bytes);
    }
  }
  const std::byte* v =
      in.v[block] + in.v_scales + static_cast<size_t>(token - (block << shape.block_shift)) * 2;
  for (int g = 0; g < shape.v_groups; ++g) FetchSoon(v + static_cast<size_t>(g) * group_bytes);
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
void IntScores(const SpanRows& in, const KeyShape& shape, int index) {
  using F = typename V::F;
  constexpr int kGroup = kType == KvType::kI8 ? kI8Group : kKvI4Group;
  constexpr int kQuads = kType == KvType::kI8 ? 1 : 2;  // of a line
  const size_t line = size_t{4} << shape.tile_shift;
  const int lines = shape.lines;
  const int groups = (in.k_dim + kGroup - 1) / kGroup;
  const int quads = QueryQuads(in.k_dim);
  const auto* code = reinterpret_cast<const uint64_t*>(in.q);
  const float* query_scales = in.q + quads * 2 * R;
  const auto* init = reinterpret_cast<const int32_t*>(query_scales + R);
  KeyAt<V> at[N];
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) at[n] = KeyAhead<V, N>(in, shape, index + n);
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
        if (n % kLineVectors<V> == 0) {
          FetchSoon(p + at[n].soon);
          FetchLater(p + at[n].later);
        }
        V::template LoadKey<kType, kSplit>(
            p, kSplit ? at[n].more + static_cast<size_t>(l) * line : nullptr, key[n]);
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
      const F scale = V::template LoadScales<kSplit>(
          at[n].scales + group_scales, kSplit ? at[n].more_scales + group_scales : nullptr);
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
  constexpr int kN = V::KeyColumns(kType, R);
  const KeyShape shape = ShapeOfKeys<kType>(in);
  const int vectors = (in.visible[R - 1] + V::kLanes - 1) / V::kLanes;
  int index = 0;
  for (; index + kN <= vectors; index += kN) IntScores<V, kType, R, kN, kSplit>(in, shape, index);
  for (; index < vectors; ++index) IntScores<V, kType, R, 1, kSplit>(in, shape, index);
}

}  // namespace
}  // namespace kvasir::internal
