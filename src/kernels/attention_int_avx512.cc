// Attention over i8 and i4 with AVX-512 VNNI: attention_int_vec16_inl.h.
#include "kernels/attention_int_vec16_inl.h"

namespace kvasir::internal {

const IntKernels& Avx512Int() {
  static const IntKernels kKernels{
      {12, &IntSpan<IntVec16, 12>, Avx512Attention().fold, Avx512Attention().store},
      &PrepareVectors<IntVec16>,
      &RotateVectors<IntVec16>,
      &EncodeI8Vectors<IntVec16>,
      &EncodeI4Vectors<IntVec16>};
  return kKernels;
}

}  // namespace kvasir::internal
