// Codes of simd_avx2.h: their integer products with AVX2's vpmaddubsw. Only for *_avx2.cc.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/unroll.h"

namespace kvasir::internal {

// Copied register by register: GCC 12 copies the trivial struct as bytes in memory, in pieces of
// other sizes than those it is read in, and the reader waits for the store.
struct FloatsAvx2 {
  __m256 a, b;
  FloatsAvx2() = default;
  FloatsAvx2(__m256 first, __m256 second) : a(first), b(second) {}
  FloatsAvx2(const FloatsAvx2& other) : a(other.a), b(other.b) {}
  FloatsAvx2& operator=(const FloatsAvx2& other) {
    a = other.a;
    b = other.b;
    return *this;
  }
};
struct IntsAvx2 {
  __m256i a, b;
};

// kOnce: each code is used once, so it is unpacked where it is used; else all are, at the start,
// and wait in memory (the registers hold sums).
template <int kBits, bool kUnpacked, bool kOnce>
struct CodesAvx2 {
  using F = FloatsAvx2;
  using I = IntsAvx2;

  static constexpr bool kPacked = kBits < 8 && !kUnpacked;
  static constexpr bool kHeld = kPacked && !kOnce;
  // vpmaddubsw adds two products into 16 signed bits. So many of them (each at most 2 * 127 *
  // largest code) fit before widening: 8 of 4 bits, 4 of 5 bits, 2 of 6 bits. With 8 bits one
  // already would not, so those are taken as signed, |code - 128| <= 128 with the activation
  // carrying the sign: 2 * 127 * 128 = 32,512 fits.
  static constexpr int kRun = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
  static_assert(kBits == 8 || kRun * 2 * 127 * ((1 << kBits) - 1) <= 32767);

  // Rows that share each load of codes: as many as keep their sums in registers.
  static constexpr int kTogether = kBits == 4 ? 4 : 2;
  // More rows as a loop, not copies of the code: with two terms those are some 2,900 instructions,
  // and a core's two threads share room for 4,096 decoded ones (Zen 3).
  static constexpr bool kRowLoops = kBits == 8;

  const uint8_t* p;
  __m256i w[kHeld ? 16 : 1];
  explicit CodesAvx2(const uint8_t* codes) : p(codes) {
    if constexpr (kHeld) {
      KVASIR_UNROLL for (int v = 0; v < 16; ++v) w[v] = Unpack(v / 2, v % 2);
    }
  }
  static __m256i LoadLine(const uint8_t* line) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
  }
  // The low four bits, and those above: v of a byte for line v, or 2 v and 2 v + 1 of one for every
  // 4 lines.
  KVASIR_INLINE __m256i Unpack(int v, int half) const {
    const __m256i both = LoadLine(p + 64 * (v % 4) + 32 * half);
    const __m256i low =
        _mm256_and_si256(v < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(0xF));
    if constexpr (kBits == 4) return low;
    constexpr int kStep = kBits - 4;
    const int at = kStep * v % 8;
    __m256i bits = LoadLine(p + 256 + 64 * (kStep * v / 8) + 32 * half);
    bits = at < 4 ? _mm256_slli_epi16(bits, 4 - at) : _mm256_srli_epi16(bits, at - 4);
    bits = _mm256_and_si256(bits, _mm256_set1_epi8(kBits == 5 ? 0x10 : 0x30));
    return _mm256_or_si256(low, bits);
  }
  // Columns 4 v to 4 v + 3 of rows 8 half to 8 half + 7.
  KVASIR_INLINE __m256i Get(int v, int half) const {
    if constexpr (kHeld) return w[2 * v + half];
    if constexpr (kPacked) return Unpack(v, half);
    return LoadLine(p + 64 * v + 32 * half);
  }
  void StoreLines(uint8_t* out) const {
    KVASIR_UNROLL for (int v = 0; v < 16; ++v) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * v), Get(v / 2, v % 2));
    }
  }
  // Eight columns of four as one operand of vpmaddubsw: codes, or their magnitudes with the sign
  // to be given to the activation.
  struct Operand {
    __m256i unsigned_codes, sign;
  };
  Operand Load(int v, int half) const {
    const __m256i codes = Get(v, half);
    if constexpr (kBits == 8) {
      const __m256i w8 = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
      return {_mm256_abs_epi8(w8), w8};
    }
    return {codes, codes};
  }
  static __m256i Pairs(const Operand& w, __m256i a) {
    if constexpr (kBits == 8) {
      return _mm256_maddubs_epi16(w.unsigned_codes, _mm256_sign_epi8(a, w.sign));
    }
    return _mm256_maddubs_epi16(w.unsigned_codes, a);
  }
  // The sum as it stands: a compiler that adds in another order holds the products until then, in
  // more registers than there are.
  static KVASIR_INLINE void Keep(__m256i& sum) { asm("" : "+x"(sum)); }
  template <int kZero, int kFirst, int kCount, int kRows>
  KVASIR_INLINE void Dot(const int8_t* a, const int32_t* minus_sum, I* sums) const {
    static_assert(kBits != 8 || kZero == 128);
    constexpr int kStep = kRun < kCount ? kRun : kCount;
    const __m256i ones = _mm256_set1_epi16(1);
    KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
      sums[r].a = kBits == 8 ? _mm256_setzero_si256() : _mm256_set1_epi32(kZero * minus_sum[r]);
      sums[r].b = sums[r].a;
    }
    KVASIR_UNROLL for (int first = kFirst; first < kFirst + kCount; first += kStep) {
      __m256i low[kRows];
      __m256i high[kRows];
      KVASIR_UNROLL for (int v = first; v < first + kStep; ++v) {
        const Operand w_low = Load(v, 0);
        const Operand w_high = Load(v, 1);
        KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
          int32_t four = 0;
          std::memcpy(&four, a + 32 * r + 4 * v, 4);
          const __m256i x = _mm256_set1_epi32(four);
          const __m256i l = Pairs(w_low, x);
          const __m256i h = Pairs(w_high, x);
          low[r] = v == first ? l : _mm256_add_epi16(low[r], l);
          high[r] = v == first ? h : _mm256_add_epi16(high[r], h);
          Keep(low[r]);
          Keep(high[r]);
        }
      }
      KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
        sums[r].a = _mm256_add_epi32(sums[r].a, _mm256_madd_epi16(low[r], ones));
        sums[r].b = _mm256_add_epi32(sums[r].b, _mm256_madd_epi16(high[r], ones));
        if constexpr (kStep < kCount) {
          Keep(sums[r].a);
          Keep(sums[r].b);
        }
      }
    }
  }
  static __m256 Byte(__m256i codes, int byte) {
    const __m256i shifted = _mm256_srlv_epi32(codes, _mm256_set1_epi32(8 * byte));
    return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(0xFF)));
  }
  F Column(int c) const { return {Byte(Get(c / 4, 0), c % 4), Byte(Get(c / 4, 1), c % 4)}; }
};

}  // namespace kvasir::internal
