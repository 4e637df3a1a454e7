#include <immintrin.h>

#include "kernels/attention_fp8_inl.h"

namespace kvasir::internal {
namespace {

[[gnu::always_inline]] inline void LoadCodes(const uint8_t* codes, Words16& words) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  words = (Words16)_mm512_maskz_cvtepu8_epi32(0xFFFF, bytes);  // g++ 12 warns of the plain one
}

}  // namespace

const Fp8Kernels& Avx512Fp8() {
  return kFp8Kernels;
}

}  // namespace kvasir::internal
