#include "kernels/matmul_inl.h"
#include "kernels/simd_avx2.h"

namespace kvasir::internal {

const MatmulKernels& MatmulAvx2() {
  return MatmulBody<Avx2>::Table();
}

}  // namespace kvasir::internal
