// Sixteen lanes in plain C++: the reference that simd_avx2.h and simd_avx512.h must equal bit for
// bit. Each of the three is a struct of static functions with one set of names, so that one
// template body serves all (matmul_inl.h, elementwise_inl.h).
//
//   F            16 floats              I   16 int32
//   Codes<bits>  the codes of a block of 32 columns and 16 rows, as CodeAt finds them
//   Dot          init + sum over columns of code * activation, exact; columns [4 * kFirst,
//                4 * (kFirst + kCount))
//   StoreLines   one byte a code, in the order of 8 bits; Codes<bits, true> are such
//   Column       the codes of one column as floats
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/exp_inl.h"
#include "kernels/matmul_layout.h"
#include "quant/float16.h"

namespace kvasir::internal {

struct Portable {
  struct F {
    float v[16];
  };
  struct I {
    int32_t v[16];
  };

  // How far ahead of a product its weights are asked for. Tiles lie one after the other, so that is
  // the next tile or the one after: the processor's own prefetching stops at page borders and its
  // window is too short to overlap the arithmetic of 8 rows with the next load.
  static constexpr int kPrefetchBytes = 4096;

  static F Set(float x) {
    F r;
    for (float& lane : r.v) lane = x;
    return r;
  }
  static F Load(const float* p) {
    F r;
    std::memcpy(r.v, p, sizeof(r.v));
    return r;
  }
  static void Store(float* p, const F& a) { std::memcpy(p, a.v, sizeof(a.v)); }
  static F LoadHalf(const uint8_t* p) {
    uint16_t h[16];
    std::memcpy(h, p, sizeof(h));
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = F16ToF32(h[i]);
    return r;
  }
  static F LoadBf16(const uint8_t* p) {
    uint16_t h[16];
    std::memcpy(h, p, sizeof(h));
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = Bf16ToF32(h[i]);
    return r;
  }
  static F LoadU8(const uint8_t* p) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(p[i]);
    return r;
  }
  static F LoadI8(const uint8_t* p) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(static_cast<int8_t>(p[i]));
    return r;
  }
  static F FromInt(const I& a) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(a.v[i]);
    return r;
  }
  static F Add(const F& a, const F& b) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] + b.v[i];
    return r;
  }
  static F Sub(const F& a, const F& b) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] - b.v[i];
    return r;
  }
  static F Mul(const F& a, const F& b) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] * b.v[i];
    return r;
  }
  static F Div(const F& a, const F& b) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] / b.v[i];
    return r;
  }
  static F Fma(const F& a, const F& b, const F& c) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
    return r;
  }
  static F Exp(const F& a) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = ExpScalar(a.v[i]);
    return r;
  }
  // Lanes 2i and 2i+1 change places.
  static F SwapPairs(const F& a) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = a.v[i ^ 1];
    return r;
  }
  // p[0] p[0] p[1] p[1] ... p[7] p[7]
  static F LoadTwice(const float* p) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = p[i / 2];
    return r;
  }

  // The largest |x| of 32 floats as bits: NaN is above infinity, infinity above all else.
  static uint32_t AbsMaxBits(const float* x) {
    uint32_t most = 0;
    for (int i = 0; i < 32; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
      most = bits > most ? bits : most;
    }
    return most;
  }
  // q[i] = x[i] * inverse rounded to the nearest even integer; sums[h] of q[16 h .. 16 h + 15]. |x
  // * inverse| < 128.
  static void Quantize(const float* x, float inverse, int8_t* q, int32_t* sums) {
    for (int h = 0; h < 2; ++h) {
      int32_t sum = 0;
      for (int i = 16 * h; i < 16 * h + 16; ++i) {
        const float rounded = (x[i] * inverse + 12582912.0F) - 12582912.0F;
        const auto integer = static_cast<int32_t>(rounded);
        q[i] = static_cast<int8_t>(integer);
        sum += integer;
      }
      sums[h] = sum;
    }
  }

  static constexpr bool kQuantizesRows = false;

  // kOnce: each code will be used once (of matter where codes are more than the registers).
  template <int kBits, bool kUnpacked = false, bool kOnce = false>
  struct Codes {
    static constexpr int kTogether = 16;      // rows of one Dot, at the most
    static constexpr bool kRowLoops = false;  // as loops where they are more
    const uint8_t* p;
    explicit Codes(const uint8_t* codes) : p(codes) {}
    int At(int column, int row) const { return CodeAt(kUnpacked ? 8 : kBits, p, column, row); }
    void StoreLines(uint8_t* out) const {
      for (int i = 0; i < 512; ++i) {
        out[i] = static_cast<uint8_t>(At(4 * (i / 64) + i % 4, i % 64 / 4));
      }
    }
    template <int kZero, int kFirst, int kCount>
    I DotRow(const int8_t* a, int32_t minus_sum) const {
      I r;
      for (int row = 0; row < 16; ++row) {
        int32_t sum = kZero * minus_sum;
        for (int c = 4 * kFirst; c < 4 * (kFirst + kCount); ++c) sum += At(c, row) * a[c];
        r.v[row] = sum;
      }
      return r;
    }
    template <int kZero, int kFirst, int kCount, int kRows>
    void Dot(const int8_t* a, const int32_t* minus_sum, I* sums) const {
      for (int r = 0; r < kRows; ++r) {
        sums[r] = DotRow<kZero, kFirst, kCount>(a + 32 * r, minus_sum[r]);
      }
    }
    F Column(int c) const {
      F r;
      for (int row = 0; row < 16; ++row) r.v[row] = static_cast<float>(At(c, row));
      return r;
    }
  };
};

}  // namespace kvasir::internal
