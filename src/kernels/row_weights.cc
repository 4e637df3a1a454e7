#include "kernels/row_weights.h"

#include "base/check.h"
#include "kernels/exp_inl.h"
#include "kernels/isa.h"
#include "kernels/row_weights_inl.h"

namespace kvasir {
namespace {

const internal::RowKernels& Kernels() {
  const Isa isa = CurrentIsa();
  if (isa == Isa::kPortable) return internal::RowPortable();
  if (isa == Isa::kAvx2) return internal::RowAvx2();
  return internal::RowAvx512();
}

}  // namespace

bool RowMaxima(std::span<const float> row, std::span<float> maxima) {
  KVASIR_CHECK(maxima.size() == RowBlocks(row.size()));
  return Kernels().maxima(row.data(), row.size(), maxima.data());
}

void RowWeights(std::span<const float> row, float max, float scale, float floor,
                std::span<float> weights, std::span<float> sums) {
  KVASIR_CHECK(weights.size() == row.size() && sums.size() == RowBlocks(row.size()));
  Kernels().weights(row.data(), row.size(), max, scale, floor, weights.data(), sums.data());
}

float RowWeight(float logit, float max, float scale) {
  return internal::ExpScalar((logit - max) * scale);
}

}  // namespace kvasir
