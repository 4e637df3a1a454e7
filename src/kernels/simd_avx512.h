// Sixteen lanes as one AVX-512 register; names and meaning: simd_portable.h. Only for *_avx512.cc.
#pragma once

#include "kernels/exp_avx512.h"
#include "kernels/simd_avx512_quantize.h"

#include "kernels/unroll.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace kvasir::internal {

struct Avx512 {
  using F = __m512;
  using I = __m512i;

  static constexpr int kPrefetchBytes = 4096;

  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static F LoadHalf(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F LoadBf16(const uint8_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static F LoadU8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F LoadI8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F FromInt(I a) { return _mm512_cvtepi32_ps(a); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Exp(F a) { return ExpAvx512(a); }
  static F SwapPairs(F a) { return _mm512_permute_ps(a, 0xB1); }
  static F LoadTwice(const float* p) {
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }

  static uint32_t AbsMaxBits(const float* x) {
    const __m512i mask = _mm512_set1_epi32(0x7FFFFFFF);
    const __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), mask);
    const __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), mask);
    return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
  }
  static void Quantize(const float* x, float inverse, int8_t* q, int32_t* sums) {
    for (int h = 0; h < 2; ++h) {
      const __m512i i =
          _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inverse)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * h), _mm512_cvtepi32_epi8(i));
      sums[h] = _mm512_reduce_add_epi32(i);
    }
  }

  static constexpr bool kQuantizesRows = true;  // 8 together
  using QuantizeRows = QuantizeAvx512;

  template <int kBits, bool kUnpacked = false, bool kOnce = false>
  struct Codes {
    static constexpr int kTogether = 16;
    static constexpr bool kRowLoops = false;
    __m512i w[8];
    explicit Codes(const uint8_t* p) {
      if constexpr (kBits < 8 && !kUnpacked) {
        const __m512i mask = _mm512_set1_epi8(0xF);
        KVASIR_UNROLL for (int v = 0; v < 4; ++v) {
          const __m512i both = _mm512_loadu_si512(p + 64 * v);
          w[v] = _mm512_and_si512(both, mask);
          w[v + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        }
        AddHighBits(p + 256);
      } else {
        KVASIR_UNROLL for (int v = 0; v < 8; ++v) w[v] = _mm512_loadu_si512(p + 64 * v);
      }
    }
    void StoreLines(uint8_t* out) const {
      KVASIR_UNROLL for (int v = 0; v < 8; ++v) _mm512_storeu_si512(out + 64 * v, w[v]);
    }
    // Bits above the low four: v of a byte for line v, or 2 v and 2 v + 1 of one for every 4 lines.
    void AddHighBits(const uint8_t* high) {
      if constexpr (kBits == 5 || kBits == 6) {
        [&]<int... kLine>(std::integer_sequence<int, kLine...>) {
          (AddHighBitsOf<kLine>(high), ...);
        }
        (std::make_integer_sequence<int, 8>());
      }
    }
    template <int kLine>
    void AddHighBitsOf(const uint8_t* high) {
      constexpr int kStep = kBits - 4;
      constexpr int kAt = kStep * kLine % 8;
      const __m512i mask = _mm512_set1_epi8(kBits == 5 ? 0x10 : 0x30);
      __m512i bits = _mm512_loadu_si512(high + 64 * (kStep * kLine / 8));
      if constexpr (kAt < 4) bits = _mm512_slli_epi16(bits, 4 - kAt);
      if constexpr (kAt > 4) bits = _mm512_srli_epi16(bits, kAt - 4);
      w[kLine] = _mm512_ternarylogic_epi32(w[kLine], bits, mask, 0xF8);  // w | (bits & mask)
    }
    // The rows inside, so that kRows independent sums are in flight: one alone would wait five
    // cycles for each step.
    template <int kZero, int kFirst, int kCount, int kRows>
    void Dot(const int8_t* a, const int32_t* minus_sum, I* sums) const {
      KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
        sums[r] = kZero == 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(kZero * minus_sum[r]);
      }
      KVASIR_UNROLL for (int v = kFirst; v < kFirst + kCount; ++v) {
        KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
          int32_t four = 0;
          std::memcpy(&four, a + 32 * r + 4 * v, 4);
          sums[r] = _mm512_dpbusd_epi32(sums[r], w[v], _mm512_set1_epi32(four));
        }
      }
    }
    F Column(int c) const {
      const __m512i shifted = _mm512_srlv_epi32(w[c / 4], _mm512_set1_epi32(8 * (c % 4)));
      return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(0xFF)));
    }
  };
};

}  // namespace kvasir::internal
