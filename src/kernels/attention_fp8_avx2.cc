#include <immintrin.h>

#include "kernels/attention_fp8_inl.h"

namespace kvasir::internal {
namespace {

[[gnu::always_inline]] inline void LoadCodes(const uint8_t* codes, Words16& words) {
  for (int half = 0; half < 2; ++half) {
    const __m256i eight =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * half)));
    __builtin_memcpy(reinterpret_cast<char*>(&words) + 32 * half, &eight, sizeof(eight));
  }
}

}  // namespace

const Fp8Kernels& Avx2Fp8() {
  return kFp8Kernels;
}

}  // namespace kvasir::internal
