// The small per-row operations of a decoder layer. Each row depends on itself only; sums run in one
// fixed order (16 interleaved partial sums, then a fixed tree) on every instruction set, and exp is
// our own polynomial, so all paths and machines give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/parallel.h"

namespace kvasir {

// out[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps), per row of n.
void RmsNorm(const float* x, size_t ldx, int rows, std::span<const float> weight, float eps,
             float* out, size_t ldo, Executor& executor);

// x += y, elementwise over rows of n.
void AddInPlace(float* x, size_t ldx, const float* y, size_t ldy, int rows, int n,
                Executor& executor);

// out[i] = silu(gate[i]) * up[i] over rows of n; out may be gate.
void SiluMul(const float* gate, size_t ldg, const float* up, size_t ldu, int rows, int n,
             float* out, size_t ldo, Executor& executor);

// e^x, relative error below 2e-7 on [-87, 88]; 0 below, infinity above; NaN stays NaN.
float Exp(float x);

// Rotary embedding: cos and sin per position and pair, computed in double once. `theta_i` are the
// (already scaled) angular steps of the model, n_rot/2 of them.
class RopeTable {
 public:
  RopeTable(std::span<const double> theta, float magnitude, int max_positions);
  int pairs() const { return pairs_; }
  int max_positions() const { return max_positions_; }
  const float* cos(int position) const {
    return cos_.data() + static_cast<size_t>(position) * static_cast<size_t>(pairs_);
  }
  const float* sin(int position) const {
    return sin_.data() + static_cast<size_t>(position) * static_cast<size_t>(pairs_);
  }

 private:
  int pairs_;
  int max_positions_;
  std::vector<float> cos_, sin_;
};

enum class RopeStyle : uint8_t {
  kInterleaved,  // pairs (0,1), (2,3), ...: GGUF `llama` files (their q and k rows are permuted for
                 // it)
  kHalves,       // pairs (0,n/2), (1,n/2+1), ...: NeoX, Hugging Face
};

// In place on rows of heads*head_dim; only the first 2*pairs channels of a head turn. positions:
// one per row.
void ApplyRope(float* x, size_t ldx, int rows, int heads, int head_dim,
               std::span<const int32_t> positions, const RopeTable& table, RopeStyle style,
               Executor& executor);

}  // namespace kvasir
