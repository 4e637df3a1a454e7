#include "kernels/elementwise_inl.h"
#include "kernels/simd_avx2.h"

namespace kvasir::internal {

const ElementwiseKernels& ElementwiseAvx2() {
  return ElementwiseBody<Avx2>::Table();
}

}  // namespace kvasir::internal
