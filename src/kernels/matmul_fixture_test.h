// What the tests of packed weights and of their products share: a random matrix with its
// dequantised values, and one call of Matmul.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernel_test_util.h"
#include "kernels/matmul.h"

namespace kvasir::testing_util {

inline constexpr ActMode kModes[] = {ActMode::kInt8, ActMode::kInt8x2, ActMode::kF32};

struct Problem {
  WeightType type;
  int64_t rows;
  int64_t columns;
  std::vector<std::byte> bytes;
  PackedMatrix packed;
  std::vector<float> weights;  // dequantised, row-major
};

inline Problem MakeProblem(Rng& rng, WeightType type, int64_t rows, int64_t columns) {
  Problem p = {type, rows, columns, RandomWeights(rng, type, rows, columns), {}, {}};
  const WeightView view = {type, p.bytes.data(), rows, columns};
  SerialExecutor serial;
  p.packed = PackedMatrix::Pack(std::span(&view, 1), serial).value();
  p.weights.resize(static_cast<size_t>(rows * columns));
  const size_t row_bytes = WeightRowBytes(type, columns).value();
  for (int64_t r = 0; r < rows; ++r) {
    DequantizeRow(type, p.bytes.data() + static_cast<size_t>(r) * row_bytes,
                  std::span(p.weights).subspan(static_cast<size_t>(r * columns),
                                               static_cast<size_t>(columns)));
  }
  return p;
}

inline std::vector<float> Multiply(const Problem& p, const Activations& mode,
                                   const std::vector<float>& x, int m,
                                   const std::vector<float>& bias, Executor& executor) {
  MatmulScratch scratch;
  std::vector<float> y(static_cast<size_t>(m) * static_cast<size_t>(p.rows), -1.0F);
  Matmul(p.packed, mode, x.data(), static_cast<size_t>(p.columns), m, y.data(),
         static_cast<size_t>(p.rows), bias, scratch, executor);
  return y;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::string Name(WeightType type, ActMode mode) {
  static const char* kNames[] = {" int8", " int8x2", " f32"};
  return std::string(GetWeightType(type).name) + kNames[static_cast<int>(mode)];
}

inline int64_t ColumnsFor(Rng& rng, WeightType type) {
  const int block = GetWeightType(type).block_elements;
  if (block == 1) return static_cast<int64_t>(1 + rng.Below(150));
  return block * static_cast<int64_t>(1 + rng.Below(block == 32 ? 7 : 2));
}

}  // namespace kvasir::testing_util
