#include "kernels/elementwise_inl.h"
#include "kernels/simd_avx512.h"

namespace kvasir::internal {

const ElementwiseKernels& ElementwiseAvx512() {
  return ElementwiseBody<Avx512>::Table();
}

}  // namespace kvasir::internal
