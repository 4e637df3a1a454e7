// Sixteen lanes as two AVX2 registers; names and meaning: simd_portable.h. Only for *_avx2.cc.
#pragma once

#include "kernels/exp_avx2.h"

#include "kernels/unroll.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvasir::internal {

struct Avx2 {
  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };

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

  template <int kBits>
  struct Codes {
    static constexpr bool kPacked = kBits == 4;
    // vpmaddubsw adds two products into 16 signed bits. So many of them (each at most 2 * 127 *
    // largest code) fit before widening: 8 of 4 bits, 4 of 5 bits, 2 of 6 bits. With 8 bits one
    // already would not, so those are taken as signed, |code - 128| <= 128 with the activation
    // carrying the sign: 2 * 127 * 128 = 32,512 fits.
    static constexpr int kRun = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
    static_assert(kBits == 8 || kRun * 2 * 127 * ((1 << kBits) - 1) <= 32767);

    const uint8_t* p;
    __m256i w[kPacked ? 16 : 1];
    explicit Codes(const uint8_t* codes) : p(codes) {
      if constexpr (kPacked) {
        const __m256i mask = _mm256_set1_epi8(0xF);
        KVASIR_UNROLL for (int v = 0; v < 8; ++v) {
          const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * v));
          w[v] = _mm256_and_si256(both, mask);
          w[v + 8] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
        }
      }
    }
    // Columns 4 v to 4 v + 3 of rows 8 half to 8 half + 7.
    __m256i Get(int v, int half) const {
      if constexpr (kPacked) return w[2 * v + half];
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 64 * v + 32 * half));
    }
    static __m256i Pairs(__m256i codes, __m256i a) {
      if constexpr (kBits == 8) {
        const __m256i w8 = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w8), _mm256_sign_epi8(a, w8));
      }
      return _mm256_maddubs_epi16(codes, a);
    }
    template <int kZero, int kFirst, int kCount>
    I DotRow(const int8_t* a, int32_t minus_sum) const {
      static_assert(kBits != 8 || kZero == 128);
      const __m256i ones = _mm256_set1_epi16(1);
      const __m256i start =
          kBits == 8 ? _mm256_setzero_si256() : _mm256_set1_epi32(kZero * minus_sum);
      I sum = {start, start};
      constexpr int kStep = kRun < kCount ? kRun : kCount;
      KVASIR_UNROLL for (int first = kFirst; first < kFirst + kCount; first += kStep) {
        __m256i low = _mm256_setzero_si256();
        __m256i high = _mm256_setzero_si256();
        KVASIR_UNROLL for (int v = first; v < first + kStep; ++v) {
          int32_t four = 0;
          std::memcpy(&four, a + 4 * v, 4);
          const __m256i x = _mm256_set1_epi32(four);
          low = _mm256_add_epi16(low, Pairs(Get(v, 0), x));
          high = _mm256_add_epi16(high, Pairs(Get(v, 1), x));
        }
        sum.a = _mm256_add_epi32(sum.a, _mm256_madd_epi16(low, ones));
        sum.b = _mm256_add_epi32(sum.b, _mm256_madd_epi16(high, ones));
      }
      return sum;
    }
    template <int kZero, int kFirst, int kCount, int kRows>
    void Dot(const int8_t* a, const int32_t* minus_sum, I* sums) const {
      KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
        sums[r] = DotRow<kZero, kFirst, kCount>(a + 32 * r, minus_sum[r]);
      }
    }
    static __m256 Byte(__m256i codes, int byte) {
      const __m256i shifted = _mm256_srlv_epi32(codes, _mm256_set1_epi32(8 * byte));
      return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(0xFF)));
    }
    F Column(int c) const { return {Byte(Get(c / 4, 0), c % 4), Byte(Get(c / 4, 1), c % 4)}; }
  };
};

}  // namespace kvasir::internal
