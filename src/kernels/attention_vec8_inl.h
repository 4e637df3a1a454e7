// Eight lanes of AVX2 for attention_inl.h. Included by the AVX2 path and by the AVX-512 path (tiles
// of 8 tokens).
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/exp_avx2.h"
#include "quant/kv_format.h"

namespace kvasir::internal {
namespace {

struct Vec8 {
  using F = __m256;
  static constexpr int kLanes = 8;
  static constexpr int Columns(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
  static F Zero() { return _mm256_setzero_ps(); }
  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static constexpr int kSoftmaxRows = 2;
  static F ExpOfNegative(F x) { return ExpAvx2(x); }
  static float Top(F x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }
  static float Sum8(F x) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
  }
  static float Sum(const F (&sums)[2]) { return Sum8(_mm256_add_ps(sums[0], sums[1])); }
  static F Get(const float* p) { return _mm256_loadu_ps(p); }
  static void Put(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F KeepFirst(F x, int n, F otherwise) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
    return _mm256_blendv_ps(otherwise, x, _mm256_castsi256_ps(keep));
  }
  static F FromBf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  template <KvType kType>
  static F Load(const std::byte* p) {
    if constexpr (kType == KvType::kF32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    } else {
      const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      return kType == KvType::kF16 ? _mm256_cvtph_ps(h) : FromBf16(h);
    }
  }
  template <KvType kType>
  static F LoadPart(const std::byte* p, int n) {
    alignas(32) std::byte whole[kLanes * sizeof(float)] = {};
    std::memcpy(whole, p, static_cast<size_t>(n) * (kType == KvType::kF32 ? 4 : 2));
    return Load<kType>(whole);
  }
};

}  // namespace
}  // namespace kvasir::internal
