#include "kernels/matmul_inl.h"
#include "kernels/simd_portable.h"

namespace kvasir::internal {

const MatmulKernels& MatmulPortable() {
  return MatmulBody<Portable>::Table();
}

}  // namespace kvasir::internal
