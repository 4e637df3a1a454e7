// Activations of 8 rows quantised together, a lane a row, with the bits of
// MatmulBody::QuantizeBlock: maxima are exact, division and products are rounded per lane as for
// one row. Only for *_avx512.cc.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/unroll.h"

namespace kvasir::internal {

class QuantizeAvx512 {
  static constexpr int kRows = 8;

 public:
  // The block of 32 columns from x[r] + column on, of 8 rows, as rows first to first + 7 of a group
  // of `width` (matmul_layout.h).
  static void Block(const float* const* x, size_t column, int width, int first, int terms,
                    uint8_t* act) {
    __m512 values[kRows][2];
    KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
      values[r][0] = _mm512_loadu_ps(x[r] + column);
      values[r][1] = _mm512_loadu_ps(x[r] + column + 16);
    }
    __m512 factor = Term(values, terms == 2, width, first, act);
    if (terms == 2) {
      factor = _mm512_add_ps(factor, Term(values, false, width, first, act + 44 * width));
    }
    Store(act + 44 * width * terms + 4 * first, _mm512_castps_si512(factor));
  }

 private:
  static void Store(uint8_t* p, __m512i lanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(lanes));
  }

  // Quantises the values to one term and returns scale times sum per row; rest: leaves in values
  // what the term lacks.
  static __m512 Term(__m512 (&values)[kRows][2], bool rest, int width, int first, uint8_t* term) {
    const __m512i most = Largest(values);
    const __m512 amax = _mm512_castsi512_ps(most);
    const __mmask16 broken = _mm512_cmpge_epu32_mask(most, _mm512_set1_epi32(0x7F800000));
    const __mmask16 tiny = _mm512_cmplt_epu32_mask(most, _mm512_set1_epi32(0x04000000));
    const __m512 limit = _mm512_set1_ps(127.0F);
    __m512 scale = _mm512_maskz_div_ps(static_cast<__mmask16>(~tiny), amax, limit);
    scale = _mm512_mask_mov_ps(scale, broken, _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
    const __mmask16 normal = static_cast<__mmask16>(~(tiny | broken));
    alignas(64) float inverse[16];
    alignas(64) float scales[16];
    _mm512_store_ps(inverse, _mm512_maskz_div_ps(normal, limit, amax));
    _mm512_store_ps(scales, scale);
    __m256i bytes[kRows];
    KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
      const __mmask16 keep = (normal >> r & 1) != 0 ? 0xFFFF : 0;  // NaN times 0 is no number
      const __m512 by = _mm512_set1_ps(inverse[r]);
      const __m512i low = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(values[r][0], by));
      const __m512i high = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(values[r][1], by));
      bytes[r] = _mm256_set_m128i(_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(term + 12 * width + 32 * (first + r)),
                          bytes[r]);
      if (rest) {
        const __m512 minus = _mm512_set1_ps(-scales[r]);
        values[r][0] = _mm512_fmadd_ps(minus, _mm512_cvtepi32_ps(low), values[r][0]);
        values[r][1] = _mm512_fmadd_ps(minus, _mm512_cvtepi32_ps(high), values[r][1]);
      }
    }
    const __m512i zero = _mm512_setzero_si512();
    __m512i low;
    __m512i high;
    Sums(bytes, &low, &high);
    const __m512i sum = _mm512_add_epi32(low, high);
    Store(term + 4 * first, _mm512_castps_si512(scale));
    Store(term + 4 * (width + first), _mm512_sub_epi32(zero, sum));
    Store(term + 4 * (2 * width + first), _mm512_sub_epi32(zero, low));
    return _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum));
  }

  // Lane r: the largest magnitude of row r as bits. Pairs, fours, then quarters of vectors are
  // folded into each other.
  static __m512i Largest(const __m512 (&values)[kRows][2]) {
    const __m512i mask = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i four[2];
    KVASIR_UNROLL for (int k = 0; k < kRows / 4; ++k) {
      __m512i row[4];
      KVASIR_UNROLL for (int i = 0; i < 4; ++i) {
        const __m512(&v)[2] = values[4 * k + i];
        row[i] = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v[0]), mask),
                                  _mm512_and_si512(_mm512_castps_si512(v[1]), mask));
      }
      const __m512i a = _mm512_max_epu32(_mm512_unpacklo_epi32(row[0], row[1]),
                                         _mm512_unpackhi_epi32(row[0], row[1]));
      const __m512i b = _mm512_max_epu32(_mm512_unpacklo_epi32(row[2], row[3]),
                                         _mm512_unpackhi_epi32(row[2], row[3]));
      four[k] = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    const __m512i a = _mm512_max_epu32(_mm512_shuffle_i32x4(four[0], four[1], 0x88),
                                       _mm512_shuffle_i32x4(four[0], four[1], 0xDD));
    return _mm512_max_epu32(_mm512_shuffle_i32x4(a, a, 0x88), _mm512_shuffle_i32x4(a, a, 0xDD));
  }

  // Lane r: the sums of a row's first and last 16 values.
  static void Sums(const __m256i (&bytes)[kRows], __m512i* low, __m512i* high) {
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i row[4];  // of rows i and 4 + i, in eight parts
    KVASIR_UNROLL for (int i = 0; i < 4; ++i) {
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(bytes[i]), bytes[4 + i], 1);
      row[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, both);
    }
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(row[0], row[1]),
                                       _mm512_unpackhi_epi32(row[0], row[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(row[2], row[3]),
                                       _mm512_unpackhi_epi32(row[2], row[3]));
    // Quarters: first 16 of rows 0 to 3, last 16 of them, the same of rows 4 to 7.
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    *low = _mm512_shuffle_i32x4(all, all, 0x88);
    *high = _mm512_shuffle_i32x4(all, all, 0xDD);
  }
};

}  // namespace kvasir::internal
