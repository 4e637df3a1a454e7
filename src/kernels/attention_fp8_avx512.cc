#include "kernels/attention_fp8_inl.h"

namespace kvasir::internal {

const Fp8Kernels& Avx512Fp8() {
  return kFp8Kernels;
}

}  // namespace kvasir::internal
