#include "kernels/exp_avx512.h"

#include <cstring>

#include "kernels/attention_inl.h"
#include "kernels/attention_vec16_inl.h"
#include "kernels/attention_vec8_inl.h"

namespace kvasir::internal {
namespace {

__m256i ToF16(__m512 x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

// Round to nearest even by adding half an ulp less the parity; NaN keeps its top bits and becomes
// quiet.
__m256i ToBf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
}

void Store(KvType type, const float* in, std::byte* out, size_t n) {
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 mask = Vec16::First(static_cast<int>(n - i));
    const __m512 x = _mm512_maskz_loadu_ps(mask, in + i);
    if (type == KvType::kF32) {
      _mm512_mask_storeu_ps(out + i * 4, mask, x);
    } else {
      _mm256_mask_storeu_epi16(out + i * 2, mask, type == KvType::kF16 ? ToF16(x) : ToBf16(x));
    }
  }
}

}  // namespace

const AttentionKernels& Avx512Attention() {
  static constexpr AttentionKernels kKernels{12, &SpanOfAny<Vec16, Vec8, 12>, &Fold<Vec16>, &Store};
  return kKernels;
}

}  // namespace kvasir::internal
