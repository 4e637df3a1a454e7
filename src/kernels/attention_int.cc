#include "kernels/attention_int.h"

#include "kernels/isa.h"

namespace kvasir::internal {

const IntKernels& CurrentInt() {
  switch (CurrentIsa()) {
    case Isa::kAmx:
    case Isa::kAvx512:
      return Avx512Int();
    case Isa::kAvx2:
      return Avx2Int();
    case Isa::kPortable:
      break;
  }
  return PortableInt();
}

}  // namespace kvasir::internal
