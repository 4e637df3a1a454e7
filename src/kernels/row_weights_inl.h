// The bodies of row_weights.h, written once over V: one of simd_*.h with Max and KeepFrom besides.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/row_weights.h"

namespace kvasir::internal {

struct RowKernels {
  bool (*maxima)(const float* row, size_t n, float* maxima);
  void (*weights)(const float* row, size_t n, float max, float scale, float floor, float* weights,
                  float* sums);
};

const RowKernels& RowPortable();
const RowKernels& RowAvx2();
const RowKernels& RowAvx512();

template <class V>
struct RowBody {
  using F = typename V::F;
  static constexpr size_t kVectors = kRowBlock / 16;

  // The last block of a row, filled up with what adds nothing.
  struct Tail {
    float v[kRowBlock];
    Tail(const float* row, size_t n, float pad) {
      for (float& x : v) x = pad;
      std::memcpy(v, row, n * sizeof(float));
    }
  };

  // x - x is 0 for a finite x and NaN for all others.
  static float BlockMax(const float* p, F* bad) {
    F max = V::Load(p);
    *bad = V::Add(*bad, V::Sub(max, max));
    for (size_t i = 1; i < kVectors; ++i) {
      const F x = V::Load(p + 16 * i);
      max = V::Max(max, x);
      *bad = V::Add(*bad, V::Sub(x, x));
    }
    float lane[16];
    V::Store(lane, max);
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t k = 0; k < half; ++k)
        lane[k] = lane[k] > lane[k + half] ? lane[k] : lane[k + half];
    }
    return lane[0];
  }
  static bool Maxima(const float* row, size_t n, float* maxima) {
    F bad = V::Set(0.0F);
    size_t i = 0;
    for (; i + kRowBlock <= n; i += kRowBlock) *maxima++ = BlockMax(row + i, &bad);
    if (i < n) *maxima = BlockMax(Tail(row + i, n - i, row[i]).v, &bad);
    float lane[16];
    V::Store(lane, bad);
    bool finite = true;
    for (const float x : lane) finite = finite && x == 0.0F;
    return finite;
  }

  static float BlockWeights(const float* p, const F& max, const F& scale, const F& floor,
                            float* out) {
    F sum = V::Set(0.0F);
    for (size_t i = 0; i < kVectors; ++i) {
      const F x = V::Mul(V::Sub(V::Load(p + 16 * i), max), scale);
      const F weight = V::KeepFrom(V::Exp(x), floor);
      V::Store(out + 16 * i, weight);
      sum = V::Add(sum, weight);
    }
    float lane[16];
    V::Store(lane, sum);
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t k = 0; k < half; ++k) lane[k] += lane[k + half];
    }
    return lane[0];
  }
  static void Weights(const float* row, size_t n, float max, float scale, float floor,
                      float* weights, float* sums) {
    const F m = V::Set(max);
    const F s = V::Set(scale);
    const F f = V::Set(floor);
    size_t i = 0;
    for (; i + kRowBlock <= n; i += kRowBlock)
      *sums++ = BlockWeights(row + i, m, s, f, weights + i);
    if (i == n) return;
    const Tail tail(row + i, n - i, -std::numeric_limits<float>::infinity());
    float out[kRowBlock];
    *sums = BlockWeights(tail.v, m, s, f, out);
    std::memcpy(weights + i, out, (n - i) * sizeof(float));
  }

  static const RowKernels& Table() {
    static constexpr RowKernels kTable = {Maxima, Weights};
    return kTable;
  }
};

}  // namespace kvasir::internal
