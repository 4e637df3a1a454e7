#include "kernels/row_weights_inl.h"
#include "kernels/simd_portable.h"

namespace kvasir::internal {
namespace {

struct RowLanes : Portable {
  static F Max(const F& a, const F& b) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return r;
  }
  static F KeepFrom(const F& a, const F& floor) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] >= floor.v[i] ? a.v[i] : 0.0F;
    return r;
  }
};

}  // namespace

const RowKernels& RowPortable() {
  return RowBody<RowLanes>::Table();
}

}  // namespace kvasir::internal
