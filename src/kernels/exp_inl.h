// e^x, the scalar form. exp_avx2.h and exp_avx512.h compute the same bits on 8 and 16 lanes: the
// same fma in the same order. `static inline`, so that a copy compiled for one instruction set is
// never linked into another file.
//
//   x < -87 -> 0,  x > 88 -> infinity,  NaN -> x.  Else n = round(x / ln 2), r = x - n ln 2 (in two
//   steps, |r| <= 0.347), e^r = 1 + r + r^2 (C2 + C3 r + ... + C6 r^4), a least-maximum fit with
//   relative error 3.7e-9 before rounding, and n is added to the exponent (the result is always a
//   normal number). Relative error below 2e-7 in all.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvasir::internal {

inline constexpr float kExpLow = -87.0F;
inline constexpr float kExpHigh = 88.0F;
inline constexpr float kExpLog2E = 0x1.715476p+0F;
inline constexpr float kExpRound =
    12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
inline constexpr float kExpLn2High = 0x1.62e4p-1F;  // 16 significant bits: n * this is exact
inline constexpr float kExpLn2Low = 0x1.7f7d1cp-20F;
inline constexpr float kExpC2 = 0x1.fffffcp-2F;
inline constexpr float kExpC3 = 0x1.555492p-3F;
inline constexpr float kExpC4 = 0x1.5558f2p-5F;
inline constexpr float kExpC5 = 0x1.123a2p-7F;
inline constexpr float kExpC6 = 0x1.6a23ccp-10F;

static inline float ExpScalar(float x) {
  const float t = std::fma(x, kExpLog2E, kExpRound);
  const float n = t - kExpRound;
  float r = std::fma(n, -kExpLn2High, x);
  r = std::fma(n, -kExpLn2Low, r);
  float p = std::fma(kExpC6, r, kExpC5);
  p = std::fma(p, r, kExpC4);
  p = std::fma(p, r, kExpC3);
  p = std::fma(p, r, kExpC2);
  p = std::fma(p, r, 1.0F);
  p = std::fma(p, r, 1.0F);
  const uint32_t bits = std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(t) << 23);
  if (x < kExpLow) return 0.0F;
  if (x > kExpHigh) return std::numeric_limits<float>::infinity();
  if (x != x) return x;
  return std::bit_cast<float>(bits);
}

}  // namespace kvasir::internal
