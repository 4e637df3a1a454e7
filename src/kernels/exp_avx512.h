// e^x on 16 lanes, the same bits as ExpScalar (exp_inl.h). Only for files compiled with AVX-512 F.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the deliberately undefined vectors inside its own intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/exp_inl.h"

namespace kvasir::internal {

static inline __m512 ExpAvx512(__m512 x) {
  const __m512 round = _mm512_set1_ps(kExpRound);
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(kExpLog2E), round);
  const __m512 n = _mm512_sub_ps(t, round);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kExpLn2High), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kExpLn2Low), r);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(kExpC6), r, _mm512_set1_ps(kExpC5));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC2));
  p = _mm512_fmadd_ps(p, r, one);
  p = _mm512_fmadd_ps(p, r, one);
  const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
  const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(p), shifted);
  const __mmask16 low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpLow), _CMP_LT_OQ);
  const __mmask16 high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpHigh), _CMP_GT_OQ);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  __m512 y = _mm512_mask_blend_ps(low, _mm512_castsi512_ps(bits), _mm512_setzero_ps());
  y = _mm512_mask_blend_ps(high, y, _mm512_set1_ps(std::numeric_limits<float>::infinity()));
  return _mm512_mask_blend_ps(nan, y, x);
}

}  // namespace kvasir::internal
