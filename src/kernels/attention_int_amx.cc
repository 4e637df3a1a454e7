// Attention over i8 and i4 on AMX: up to 16 rows against 16 tokens (scores) or 16 channels (values)
// by tile products. Whatever is no product of integers is the AVX-512 path's, so the bits are the
// same. Few rows take that path altogether.
//
// A prepared block for tiles, n rows, channels in chunks of 64 (i8) or 32 (i4: a group), the last
// one filled up with zeros:
//
//   signed bytes  [chunks][2][n][chunk]  the high and the low bytes of the codes
//   float         [n]                    scales
//   int32         [n]                    i8, whose K is unsigned: minus 128 times the codes' sum
#include "kernels/attention_tile_scores_inl.h"
#include "kernels/attention_tile_values_inl.h"

namespace kvasir::internal {
namespace {

constexpr int kFewRows = 5;  // fewer are no faster with tiles

template <KvType kType>
struct TileLayout {
  static float* Scales(const QueryRows& query) {
    const int chunks = (query.k_dim + kChunk<kType> - 1) / kChunk<kType>;
    return query.packed + chunks * 2 * query.n * kChunk<kType> / 4;
  }
  static void Put(const QueryRows& query, int row, int c, __m512i code, int32_t* sums) {
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8);
    const __m512i low = _mm512_sub_epi32(code, _mm512_slli_epi32(high, 8));
    if constexpr (kType == KvType::kI8) sums[0] -= 128 * _mm512_reduce_add_epi32(code);
    auto* out = reinterpret_cast<int8_t*>(query.packed) +
                (c / kChunk<kType> * 2 * query.n + row) * kChunk<kType> + c % kChunk<kType>;
    V::PutBytes(out, high);
    V::PutBytes(out + query.n * kChunk<kType>, low);
  }
  static void Start(const QueryRows& query, int row, int /*group*/, const int32_t* sums) {
    if constexpr (kType == KvType::kI4) return;
    reinterpret_cast<int32_t*>(Scales(query) + query.n)[row] = sums[0];
  }
};

template <KvType kType>
void PrepareTiles(const QueryRows& query) {
  for (int r = 0; r < query.n; ++r) {
    PrepareRow<V, TileLayout<kType>>(query, r);
    int32_t none[1] = {};
    for (int c = (query.k_dim + 15) / 16 * 16; c % kChunk<kType> != 0; c += 16) {
      TileLayout<kType>::Put(query, r, c, _mm512_setzero_si512(), none);
    }
  }
}

void Prepare(const QueryRows& query) {
  if (query.n < kFewRows) return Avx512Int().prepare(query);
  if (query.k_type == KvType::kI8) {
    PrepareTiles<KvType::kI8>(query);
  } else {
    PrepareTiles<KvType::kI4>(query);
  }
}

template <KvType kType>
void Scores(const SpanRows& in) {
  if (in.k_dim <= kChunk<kType>) return TileScores<kType, 1>(in).Run();
  if (in.k_dim <= 2 * kChunk<kType>) return TileScores<kType, 2>(in).Run();
  TileScores<kType, 0>(in).Run();
}

void SoftmaxAll(const SpanRows& in) {
  if (in.visible[0] < kAttentionSpan) {
    for (int r = 0; r < in.rows; ++r) {
      if (in.visible[r] > 0) SoftmaxRow<V>(in, r);
    }
    return;
  }
  int row = 0;
  for (; row + 4 <= in.rows; row += 4) SoftmaxWhole<V, 4>(in, row);
  if (row + 2 <= in.rows) {
    SoftmaxWhole<V, 2>(in, row);
    row += 2;
  }
  if (row < in.rows) SoftmaxWhole<V, 1>(in, row);
}

void Span(const SpanRows& in) {
  if (in.rows < kFewRows) return Avx512Int().attention.span(in);
  if (in.k_type == KvType::kI8) {
    Scores<KvType::kI8>(in);
  } else {
    Scores<KvType::kI4>(in);
  }
  SoftmaxAll(in);
  TileValues(in).Run();
  _tile_release();
}

}  // namespace

const IntKernels& AmxInt() {
  static const IntKernels kKernels{
      {kMostRows, &Span, Avx512Attention().fold, Avx512Attention().store},
      &Prepare,
      Avx512Int().rotate,
      Avx512Int().encode_i8,
      Avx512Int().encode_i4};
  return kKernels;
}

}  // namespace kvasir::internal
