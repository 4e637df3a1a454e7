#include "kernels/matmul_inl.h"
#include "kernels/simd_avx512.h"

namespace kvasir::internal {

const MatmulKernels& MatmulAvx512() {
  return MatmulBody<Avx512>::Table();
}

}  // namespace kvasir::internal
