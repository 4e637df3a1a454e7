#include "kernels/row_weights_inl.h"
#include "kernels/simd_avx2.h"

namespace kvasir::internal {
namespace {

struct RowLanes : Avx2 {
  static F Max(const F& x, const F& y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
  }
  static F KeepFrom(const F& x, const F& floor) {
    return {_mm256_and_ps(x.a, _mm256_cmp_ps(x.a, floor.a, _CMP_GE_OQ)),
            _mm256_and_ps(x.b, _mm256_cmp_ps(x.b, floor.b, _CMP_GE_OQ))};
  }
};

}  // namespace

const RowKernels& RowAvx2() {
  return RowBody<RowLanes>::Table();
}

}  // namespace kvasir::internal
