// Sixteen lanes of AVX-512 for attention_inl.h. Only for *_avx512.cc.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/attention_vec8_inl.h"
#include "kernels/exp_avx512.h"
#include "quant/kv_format.h"

namespace kvasir::internal {
namespace {

struct Vec16 {
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr int Columns(int rows) { return rows == 1 ? 8 : rows <= 4 ? 4 : 2; }
  static F Zero() { return _mm512_setzero_ps(); }
  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static constexpr int kSoftmaxRows = 4;
  // ExpAvx512 without the cases that cannot be: the power of two is put in by an instruction that
  // lets a NaN through.
  static F ExpOfNegative(F x) {
    const F round = _mm512_set1_ps(kExpRound);
    const F one = _mm512_set1_ps(1.0F);
    const F n = Sub(Fma(x, _mm512_set1_ps(kExpLog2E), round), round);
    F r = Fma(n, _mm512_set1_ps(-kExpLn2High), x);
    r = Fma(n, _mm512_set1_ps(-kExpLn2Low), r);
    F p = Fma(_mm512_set1_ps(kExpC6), r, _mm512_set1_ps(kExpC5));
    p = Fma(p, r, _mm512_set1_ps(kExpC4));
    p = Fma(p, r, _mm512_set1_ps(kExpC3));
    p = Fma(p, r, _mm512_set1_ps(kExpC2));
    p = Fma(p, r, one);
    p = Fma(p, r, one);
    const __mmask16 not_low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpLow), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(not_low, p, n);
  }
  static float Top(F x) {
    return Vec8::Top(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
  }
  static float Sum(const F (&sums)[1]) {
    return Vec8::Sum8(
        _mm256_add_ps(_mm512_castps512_ps256(sums[0]), _mm512_extractf32x8_ps(sums[0], 1)));
  }
  static F Get(const float* p) { return _mm512_loadu_ps(p); }
  static void Put(float* p, F x) { _mm512_storeu_ps(p, x); }
  static __mmask16 First(int n) {
    return static_cast<__mmask16>(n >= kLanes ? 0xFFFFu : n <= 0 ? 0u : (1u << n) - 1u);
  }
  static F KeepFirst(F x, int n, F otherwise) {
    return _mm512_mask_blend_ps(First(n), otherwise, x);
  }
  static F FromBf16(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  template <KvType kType>
  static F Load(const std::byte* p) {
    if constexpr (kType == KvType::kF32) {
      return _mm512_loadu_ps(p);
    } else {
      const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      return kType == KvType::kF16 ? _mm512_cvtph_ps(h) : FromBf16(h);
    }
  }
  template <KvType kType>
  static F LoadPart(const std::byte* p, int n) {
    if constexpr (kType == KvType::kF32) {
      return _mm512_maskz_loadu_ps(First(n), p);
    } else {
      const __m256i h = _mm256_maskz_loadu_epi16(First(n), p);
      return kType == KvType::kF16 ? _mm512_cvtph_ps(h) : FromBf16(h);
    }
  }
};

}  // namespace
}  // namespace kvasir::internal
