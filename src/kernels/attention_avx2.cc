#include "kernels/attention_inl.h"
#include "kernels/attention_vec8_inl.h"

namespace kvasir::internal {
namespace {

__m128i ToF16(__m256 x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

// Round to nearest even by adding half an ulp less the parity; NaN keeps its top bits and becomes
// quiet.
__m128i ToBf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256i high =
      _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

void Store(KvType type, const float* in, std::byte* out, size_t n) {
  if (type == KvType::kF32) {
    std::memcpy(out, in, n * sizeof(float));
    return;
  }
  for (size_t i = 0; i < n; i += 8) {
    const size_t left = n - i < 8 ? n - i : 8;
    alignas(32) float whole[8] = {};
    const bool part = left < 8;
    if (part) std::memcpy(whole, in + i, left * sizeof(float));
    const __m256 x = _mm256_loadu_ps(part ? whole : in + i);
    const __m128i h = type == KvType::kF16 ? ToF16(x) : ToBf16(x);
    if (part) {
      alignas(16) std::byte halves[16];
      _mm_store_si128(reinterpret_cast<__m128i*>(halves), h);
      std::memcpy(out + i * 2, halves, left * 2);
    } else {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * 2), h);
    }
  }
}

}  // namespace

const AttentionKernels& Avx2Attention() {
  static constexpr AttentionKernels kKernels{6, &SpanOfAny<Vec8, Vec8, 6>, &Fold<Vec8>, &Store};
  return kKernels;
}

}  // namespace kvasir::internal
