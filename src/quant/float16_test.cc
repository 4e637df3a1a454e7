// Exhaustive over all 65,536 halves; the way back is checked at and around every border between two
// of them, and against the CPU's own conversion where it has one.
#include "quant/float16.h"

#include <cpuid.h>
#include <gtest/gtest.h>
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/hash.h"

namespace kvasir {
namespace {

bool CpuHasHalf() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
         (c & bit_F16C) != 0;
}

__attribute__((target("avx,f16c"))) float CpuToFloat(uint16_t h) {
  return _cvtsh_ss(h);
}

__attribute__((target("avx,f16c"))) uint16_t CpuToHalf(float f) {
  return static_cast<uint16_t>(
      _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT)));
}

// The value of an f16 by its definition.
double HalfByDefinition(uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const int mantissa = h & 1023;
  const double sign = (h & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

bool IsNanHalf(uint16_t h) {
  return (h & 0x7FFF) > 0x7C00;
}

TEST(Float16, AllHalvesToFloat) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto h = static_cast<uint16_t>(i);
    const float f = F16ToF32(h);
    EXPECT_EQ(std::signbit(f), (h & 0x8000) != 0) << i;
    if (IsNanHalf(h)) {
      EXPECT_TRUE(std::isnan(f)) << i;
    } else if ((h & 0x7FFF) == 0x7C00) {
      EXPECT_TRUE(std::isinf(f)) << i;
    } else {
      EXPECT_EQ(static_cast<double>(f), HalfByDefinition(h)) << i;
    }
    const uint16_t back = F32ToF16(f);
    EXPECT_EQ(back, IsNanHalf(h) ? (h | 0x0200) : h) << i;
  }
}

// Floats at, and one step to each side of: every half, every midpoint between two, and the ends of
// the range.
std::vector<uint32_t> BorderFloats() {
  std::vector<uint32_t> list = {0u,          1u,          0x007FFFFFu, 0x00800000u,
                                0x7F7FFFFFu, 0x7F800000u, 0x7F800001u, 0x7FC00000u,
                                0x7FFFFFFFu, 0x477FEFFFu, 0x477FF000u};
  for (uint16_t h = 0; h < 0x7C00; ++h) {
    const double a = HalfByDefinition(h);
    const double b = h == 0x7BFF ? 65536.0 : HalfByDefinition(static_cast<uint16_t>(h + 1));
    for (const double v : {a, (a + b) / 2}) {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(v));
      for (const uint32_t near : {bits - 1, bits, bits + 1}) {
        if (near <= 0x7FFFFFFFu) list.push_back(near);
      }
    }
  }
  Rng rng(5);
  for (int i = 0; i < 200000; ++i) list.push_back(static_cast<uint32_t>(rng.Next()) & 0x7FFFFFFFu);
  return list;
}

// Nearest half to a finite float by search among its neighbours, ties to the even one.
uint16_t NearestHalf(double v) {
  uint16_t low = 0;
  uint16_t high = 0x7C00;  // stands for 65,536 here
  const auto value = [](uint16_t h) { return h == 0x7C00 ? 65536.0 : HalfByDefinition(h); };
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (value(middle) <= v ? low : high) = middle;
  }
  const double down = v - value(low);
  const double up = value(high) - v;
  if (down != up) return down < up ? low : high;
  return low % 2 == 0 ? low : high;
}

TEST(Float16, RoundsToTheNearestHalf) {
  for (const uint32_t bits : BorderFloats()) {
    const float f = std::bit_cast<float>(bits);
    const uint16_t got = F32ToF16(f);
    EXPECT_EQ(F32ToF16(-f), got | 0x8000) << bits;
    if (std::isnan(f)) {
      EXPECT_TRUE(IsNanHalf(got)) << bits;
    } else {
      EXPECT_EQ(got, f > 65536.0F ? 0x7C00 : NearestHalf(f)) << std::hexfloat << f;
    }
  }
}

TEST(Float16, SameBitsAsTheCpu) {
  if (!CpuHasHalf()) GTEST_SKIP() << "this CPU has no F16C";
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto h = static_cast<uint16_t>(i);
    if (IsNanHalf(h)) continue;  // the CPU makes signalling NaNs quiet
    EXPECT_EQ(std::bit_cast<uint32_t>(F16ToF32(h)), std::bit_cast<uint32_t>(CpuToFloat(h))) << i;
  }
  for (const uint32_t bits : BorderFloats()) {
    for (const uint32_t signed_bits : {bits, bits | 0x80000000u}) {
      const float f = std::bit_cast<float>(signed_bits);
      EXPECT_EQ(F32ToF16(f), CpuToHalf(f)) << std::hex << signed_bits;
    }
  }
}

TEST(Bf16, AllToFloatAndBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto h = static_cast<uint16_t>(i);
    const float f = Bf16ToF32(h);
    EXPECT_EQ(std::bit_cast<uint32_t>(f), i << 16);
    EXPECT_EQ(F32ToBf16(f), std::isnan(f) ? (h | 0x40) : h) << i;
  }
}

TEST(Bf16, RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7F80; ++h) {
    const uint32_t low = h << 16;
    EXPECT_EQ(F32ToBf16(std::bit_cast<float>(low + 0x7FFF)), h);
    EXPECT_EQ(F32ToBf16(std::bit_cast<float>(low + 0x8000)), h + (h & 1));  // tie
    EXPECT_EQ(F32ToBf16(std::bit_cast<float>(low + 0x8001)), h + 1);
    EXPECT_EQ(F32ToBf16(-std::bit_cast<float>(low + 0x8001)), (h + 1) | 0x8000);
  }
  EXPECT_EQ(F32ToBf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(std::bit_cast<float>(0x7F800001u)))));
}

}  // namespace
}  // namespace kvasir
