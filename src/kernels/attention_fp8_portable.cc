#include "kernels/attention_fp8_inl.h"

namespace kvasir::internal {
namespace {

[[gnu::always_inline]] inline void LoadCodes(const uint8_t* codes, Words16& words) {
  for (int i = 0; i < 16; ++i) words[i] = codes[i];
}

}  // namespace

const Fp8Kernels& PortableFp8() {
  return kFp8Kernels;
}

}  // namespace kvasir::internal
