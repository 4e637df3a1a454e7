#include "kernels/elementwise_inl.h"
#include "kernels/simd_portable.h"

namespace kvasir::internal {

const ElementwiseKernels& ElementwisePortable() {
  return ElementwiseBody<Portable>::Table();
}

}  // namespace kvasir::internal
