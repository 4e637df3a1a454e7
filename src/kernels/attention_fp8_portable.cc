#include "kernels/attention_fp8_inl.h"

namespace kvasir::internal {

const Fp8Kernels& PortableFp8() {
  return kFp8Kernels;
}

}  // namespace kvasir::internal
