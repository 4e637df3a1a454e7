// For tests: what the rotation of keys and values does, the slow way.
#pragma once

#include <cmath>
#include <vector>

#include "quant/hadamard.h"

namespace kvasir {

// The Hadamard rotation as it is defined, in double precision.
inline std::vector<double> Rotated(const std::vector<double>& x) {
  const auto dim = static_cast<int>(x.size());
  const int block = HadamardBlock(dim);
  std::vector<double> out(x.size());
  for (int i = 0; i < dim; ++i) {
    const int first = i / block * block;
    for (int j = first; j < first + block; ++j) {
      const bool odd =
          __builtin_popcount(static_cast<unsigned>((i - first) & (j - first))) % 2 != 0;
      out[static_cast<size_t>(i)] += odd ? -x[static_cast<size_t>(j)] : x[static_cast<size_t>(j)];
    }
    out[static_cast<size_t>(i)] /= std::sqrt(static_cast<double>(block));
  }
  return out;
}

}  // namespace kvasir
