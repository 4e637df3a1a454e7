#include "quant/hadamard.h"

#include <cmath>

namespace kvasir {

int HadamardBlock(int dim) {
  return dim & -dim;
}

float HadamardNorm(int block) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
}

void Rotate(float* x, int dim) {
  const int block = HadamardBlock(dim);
  if (block == 1) return;
  for (int width = 1; width < block; width *= 2) {
    for (int i = 0; i < dim; i += 2 * width) {
      for (int j = i; j < i + width; ++j) {
        const float a = x[j];
        const float b = x[j + width];
        x[j] = a + b;
        x[j + width] = a - b;
      }
    }
  }
  const float norm = HadamardNorm(block);
  for (int i = 0; i < dim; ++i) x[i] *= norm;
}

}  // namespace kvasir
