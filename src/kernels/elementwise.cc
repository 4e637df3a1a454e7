#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/elementwise_inl.h"
#include "kernels/exp_inl.h"
#include "kernels/isa.h"

namespace kvasir {
namespace {

using internal::ElementwiseKernels;

const ElementwiseKernels& Kernels() {
  switch (CurrentIsa()) {
    case Isa::kAmx:
    case Isa::kAvx512:
      return internal::ElementwiseAvx512();
    case Isa::kAvx2:
      return internal::ElementwiseAvx2();
    case Isa::kPortable:
      break;
  }
  return internal::ElementwisePortable();
}

// body(row) for all rows; in parallel if there is enough to do.
template <typename Body>
void ForRows(int rows, size_t row_elements, Executor& executor, Body body) {
  constexpr size_t kSerialElements = size_t{1} << 15;
  const auto count = static_cast<size_t>(rows);
  const size_t parts = std::min(count, static_cast<size_t>(executor.workers()) * 4);
  if (executor.workers() == 1 || parts <= 1 || count * row_elements < kSerialElements) {
    for (size_t row = 0; row < count; ++row) body(row);
    return;
  }
  executor.ParallelFor(parts, [&](size_t part, int) {
    for (size_t row = count * part / parts; row < count * (part + 1) / parts; ++row) body(row);
  });
}

}  // namespace

float Exp(float x) {
  return internal::ExpScalar(x);
}

void RmsNorm(const float* x, size_t ldx, int rows, std::span<const float> weight, float eps,
             float* out, size_t ldo, Executor& executor) {
  const ElementwiseKernels& kernels = Kernels();
  const size_t n = weight.size();
  ForRows(rows, n, executor, [&](size_t row) {
    const float* in = x + row * ldx;
    const float mean = kernels.sum_of_squares(in, n) / static_cast<float>(n);
    kernels.scale(in, 1.0F / std::sqrt(mean + eps), weight.data(), n, out + row * ldo);
  });
}

void AddInPlace(float* x, size_t ldx, const float* y, size_t ldy, int rows, int n,
                Executor& executor) {
  const ElementwiseKernels& kernels = Kernels();
  const auto elements = static_cast<size_t>(n);
  ForRows(rows, elements, executor,
          [&](size_t row) { kernels.add(x + row * ldx, y + row * ldy, elements); });
}

void SiluMul(const float* gate, size_t ldg, const float* up, size_t ldu, int rows, int n,
             float* out, size_t ldo, Executor& executor) {
  const ElementwiseKernels& kernels = Kernels();
  const auto elements = static_cast<size_t>(n);
  ForRows(rows, elements * 4, executor, [&](size_t row) {
    kernels.silu_mul(gate + row * ldg, up + row * ldu, elements, out + row * ldo);
  });
}

RopeTable::RopeTable(std::span<const double> theta, float magnitude, int max_positions)
    : pairs_(static_cast<int>(theta.size())), max_positions_(max_positions) {
  KVASIR_CHECK(max_positions >= 0);
  const size_t size = theta.size() * static_cast<size_t>(max_positions);
  cos_.reserve(size);
  sin_.reserve(size);
  for (int position = 0; position < max_positions; ++position) {
    for (const double step : theta) {
      const double angle = step * position;
      cos_.push_back(static_cast<float>(std::cos(angle) * static_cast<double>(magnitude)));
      sin_.push_back(static_cast<float>(std::sin(angle) * static_cast<double>(magnitude)));
    }
  }
}

void ApplyRope(float* x, size_t ldx, int rows, int heads, int head_dim,
               std::span<const int32_t> positions, const RopeTable& table, RopeStyle style,
               Executor& executor) {
  KVASIR_CHECK(2 * table.pairs() <= head_dim);
  KVASIR_CHECK(positions.size() == static_cast<size_t>(rows));
  const ElementwiseKernels& kernels = Kernels();
  const auto turn =
      style == RopeStyle::kInterleaved ? kernels.rope_interleaved : kernels.rope_halves;
  const auto dim = static_cast<size_t>(head_dim);
  ForRows(rows, static_cast<size_t>(heads) * dim, executor, [&](size_t row) {
    const int32_t position = positions[row];
    KVASIR_CHECK(position >= 0 && position < table.max_positions());
    for (size_t head = 0; head < static_cast<size_t>(heads); ++head) {
      turn(x + row * ldx + head * dim, table.cos(position), table.sin(position),
           static_cast<size_t>(table.pairs()));
    }
  });
}

}  // namespace kvasir
