// The bodies of the elementwise operations for one row, written once over V (simd_portable.h and
// its two siblings). The last n % 16 elements of a row go through the same lanes, padded with
// zeros.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvasir::internal {

struct ElementwiseKernels {
  // The sum of squares: lane i of 16 sums elements i, i + 16, ... with fma; then lane i + lane i +
  // 8, + 4, + 2, + 1.
  float (*sum_of_squares)(const float* x, size_t n);
  void (*scale)(const float* x, float factor, const float* weight, size_t n, float* out);
  void (*add)(float* x, const float* y, size_t n);
  void (*silu_mul)(const float* gate, const float* up, size_t n, float* out);
  // One head: cos and sin of `pairs` pairs.
  void (*rope_interleaved)(float* x, const float* cos, const float* sin, size_t pairs);
  void (*rope_halves)(float* x, const float* cos, const float* sin, size_t pairs);
};

const ElementwiseKernels& ElementwisePortable();
const ElementwiseKernels& ElementwiseAvx2();
const ElementwiseKernels& ElementwiseAvx512();

template <class V>
struct ElementwiseBody {
  using F = typename V::F;

  static F LoadPart(const float* p, size_t n) {
    float lanes[16] = {};
    std::memcpy(lanes, p, n * sizeof(float));
    return V::Load(lanes);
  }
  static void StorePart(float* p, size_t n, const F& v) {
    float lanes[16];
    V::Store(lanes, v);
    std::memcpy(p, lanes, n * sizeof(float));
  }
  // out[i] = f(a[i], b[i]), lane by lane. out may be a or b.
  template <typename Op>
  static void Map(const float* a, const float* b, size_t n, float* out, Op op) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) V::Store(out + i, op(V::Load(a + i), V::Load(b + i)));
    if (i < n) StorePart(out + i, n - i, op(LoadPart(a + i, n - i), LoadPart(b + i, n - i)));
  }

  static float SumOfSquares(const float* x, size_t n) {
    F sum = V::Set(0.0F);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const F v = V::Load(x + i);
      sum = V::Fma(v, v, sum);
    }
    if (i < n) {
      const F v = LoadPart(x + i, n - i);
      sum = V::Fma(v, v, sum);
    }
    float lane[16];
    V::Store(lane, sum);
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t k = 0; k < half; ++k) lane[k] += lane[k + half];
    }
    return lane[0];
  }
  static void Scale(const float* x, float factor, const float* weight, size_t n, float* out) {
    const F f = V::Set(factor);
    Map(x, weight, n, out, [f](const F& a, const F& w) { return V::Mul(V::Mul(a, f), w); });
  }
  static void Add(float* x, const float* y, size_t n) {
    Map(x, y, n, x, [](const F& a, const F& b) { return V::Add(a, b); });
  }
  static void SiluMul(const float* gate, const float* up, size_t n, float* out) {
    Map(gate, up, n, out, [](const F& g, const F& u) {
      const F minus = V::Sub(V::Set(0.0F), g);
      return V::Mul(V::Div(g, V::Add(V::Set(1.0F), V::Exp(minus))), u);
    });
  }

  // (a, b) -> (a cos - b sin, b cos + a sin), the second product rounded, the first inside the fma.
  static void RopeInterleaved(float* x, const float* cos, const float* sin, size_t pairs) {
    const float signs[16] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    const F sign = V::Load(signs);
    size_t i = 0;
    for (; i + 8 <= pairs; i += 8) {
      V::Store(x + 2 * i,
               Turn(V::Load(x + 2 * i), V::LoadTwice(cos + i), V::LoadTwice(sin + i), sign));
    }
    if (i < pairs) {
      const size_t rest = pairs - i;
      float c[16] = {};
      float s[16] = {};
      std::memcpy(c, cos + i, rest * sizeof(float));
      std::memcpy(s, sin + i, rest * sizeof(float));
      const F part = LoadPart(x + 2 * i, 2 * rest);
      StorePart(x + 2 * i, 2 * rest, Turn(part, V::LoadTwice(c), V::LoadTwice(s), sign));
    }
  }
  static F Turn(const F& v, const F& cos, const F& sin, const F& sign) {
    return V::Fma(v, cos, V::Mul(V::SwapPairs(v), V::Mul(sin, sign)));
  }

  static void RopeHalves(float* x, const float* cos, const float* sin, size_t pairs) {
    float* y = x + pairs;
    size_t i = 0;
    for (; i + 16 <= pairs; i += 16) {
      const F a = V::Load(x + i);
      const F b = V::Load(y + i);
      const F c = V::Load(cos + i);
      const F s = V::Load(sin + i);
      V::Store(x + i, V::Fma(a, c, V::Mul(b, V::Sub(V::Set(0.0F), s))));
      V::Store(y + i, V::Fma(b, c, V::Mul(a, s)));
    }
    if (i < pairs) {
      const size_t n = pairs - i;
      const F a = LoadPart(x + i, n);
      const F b = LoadPart(y + i, n);
      const F c = LoadPart(cos + i, n);
      const F s = LoadPart(sin + i, n);
      StorePart(x + i, n, V::Fma(a, c, V::Mul(b, V::Sub(V::Set(0.0F), s))));
      StorePart(y + i, n, V::Fma(b, c, V::Mul(a, s)));
    }
  }

  static const ElementwiseKernels& Table() {
    static constexpr ElementwiseKernels kTable = {SumOfSquares, Scale,           Add,
                                                  SiluMul,      RopeInterleaved, RopeHalves};
    return kTable;
  }
};

}  // namespace kvasir::internal
