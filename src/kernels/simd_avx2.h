// Sixteen lanes as two AVX2 registers; names and meaning: simd_portable.h. Only for *_avx2.cc.
#pragma once

#include "kernels/exp_avx2.h"
#include "kernels/simd_avx2_codes.h"

#include "kernels/unroll.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvasir::internal {

struct Avx2 {
  using F = FloatsAvx2;
  using I = IntsAvx2;

  static constexpr int kPrefetchBytes = 8192;

  static F Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void Store(float* p, const F& x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static __m128i Load16(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static F LoadHalf(const uint8_t* p) {
    return {_mm256_cvtph_ps(Load16(p)), _mm256_cvtph_ps(Load16(p + 16))};
  }
  static __m256 Bf16Half(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  static F LoadBf16(const uint8_t* p) { return {Bf16Half(Load16(p)), Bf16Half(Load16(p + 16))}; }
  static F LoadU8(const uint8_t* p) {
    const __m128i x = Load16(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
  }
  static F LoadI8(const uint8_t* p) {
    const __m128i x = Load16(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
  }
  static F FromInt(const I& x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static F Add(const F& x, const F& y) {
    return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
  }
  static F Sub(const F& x, const F& y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
  }
  static F Mul(const F& x, const F& y) {
    return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
  }
  static F Div(const F& x, const F& y) {
    return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
  }
  static F Fma(const F& x, const F& y, const F& z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F Exp(const F& x) { return {ExpAvx2(x.a), ExpAvx2(x.b)}; }
  static F SwapPairs(const F& x) {
    return {_mm256_permute_ps(x.a, 0xB1), _mm256_permute_ps(x.b, 0xB1)};
  }
  static F LoadTwice(const float* p) {
    const __m256 x = _mm256_loadu_ps(p);
    return {_mm256_permutevar8x32_ps(x, _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0)),
            _mm256_permutevar8x32_ps(x, _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4))};
  }

  static uint32_t AbsMaxBits(const float* x) {
    const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
      most = _mm256_max_epu32(most, _mm256_and_si256(bits, mask));
    }
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
  }
  static void Quantize(const float* x, float inverse, int8_t* q, int32_t* sums) {
    for (int h = 0; h < 2; ++h) {
      const F scaled = Mul(Load(x + 16 * h), Set(inverse));
      const __m256i low = _mm256_cvtps_epi32(scaled.a);
      const __m256i high = _mm256_cvtps_epi32(scaled.b);
      __m256i words = _mm256_packs_epi32(low, high);  // 0-3 8-11 4-7 12-15
      words = _mm256_permute4x64_epi64(words, 0xD8);
      const __m128i bytes =
          _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * h), bytes);
      const __m256i sum = _mm256_add_epi32(low, high);
      __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
      s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
      s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
      sums[h] = _mm_cvtsi128_si32(s);
    }
  }

  static constexpr bool kQuantizesRows = false;

  template <int kBits, bool kUnpacked = false, bool kOnce = false>
  using Codes = CodesAvx2<kBits, kUnpacked, kOnce>;
};

}  // namespace kvasir::internal
