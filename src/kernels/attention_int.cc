#include "kernels/attention_int.h"

#include "kernels/isa.h"

namespace kvasir::internal {

const IntKernels& CurrentInt() {
  switch (CurrentIsa()) {
    case Isa::kAmx:
      return AmxInt();
    case Isa::kAvx512:
      return Avx512Int();
    case Isa::kAvx2:
      return Avx2Int();
    case Isa::kPortable:
      break;
  }
  return PortableInt();
}

const IntKernels& CurrentInt(int k_dim, int v_dim) {
  const bool tiles = k_dim <= kIntTileDimMax && v_dim <= kIntTileDimMax;
  return CurrentIsa() == Isa::kAmx && !tiles ? Avx512Int() : CurrentInt();
}

}  // namespace kvasir::internal
