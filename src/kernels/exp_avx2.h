// e^x on 8 lanes, the same bits as ExpScalar (exp_inl.h). Only for files compiled with AVX2 and
// FMA.
#pragma once

#include <immintrin.h>

#include "kernels/exp_inl.h"

namespace kvasir::internal {

static inline __m256 ExpAvx2(__m256 x) {
  const __m256 round = _mm256_set1_ps(kExpRound);
  const __m256 one = _mm256_set1_ps(1.0F);
  const __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(kExpLog2E), round);
  const __m256 n = _mm256_sub_ps(t, round);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kExpLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kExpLn2Low), r);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(kExpC6), r, _mm256_set1_ps(kExpC5));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC2));
  p = _mm256_fmadd_ps(p, r, one);
  p = _mm256_fmadd_ps(p, r, one);
  const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  __m256 y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shifted));
  const __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(kExpLow), _CMP_LT_OQ);
  const __m256 high = _mm256_cmp_ps(x, _mm256_set1_ps(kExpHigh), _CMP_GT_OQ);
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  y = _mm256_andnot_ps(low, y);
  y = _mm256_blendv_ps(y, _mm256_set1_ps(std::numeric_limits<float>::infinity()), high);
  return _mm256_blendv_ps(y, x, nan);
}

}  // namespace kvasir::internal
