#include "kernels/row_weights_inl.h"
#include "kernels/simd_avx512.h"

namespace kvasir::internal {
namespace {

struct RowLanes : Avx512 {
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F KeepFrom(F a, F floor) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, floor, _CMP_GE_OQ), a);
  }
};

}  // namespace

const RowKernels& RowAvx512() {
  return RowBody<RowLanes>::Table();
}

}  // namespace kvasir::internal
