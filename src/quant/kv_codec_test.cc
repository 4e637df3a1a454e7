#include "quant/kv_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "base/hash.h"
#include "quant/float16.h"
#include "quant/hadamard.h"
#include "quant/kv_format.h"

namespace kvasir {
namespace {

constexpr uint64_t kSeed = 20261130;

double Normal(Rng& rng) {
  const double u = std::max(rng.Uniform(), 1e-12);
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * rng.Uniform());
}

// What comes back of a row in a format.
std::vector<float> Through(KvType type, const std::vector<float>& x) {
  std::vector<float> out(x.size());
  const int step = type == KvType::kI4 ? kKvI4Group : static_cast<int>(x.size());
  for (int c = 0; c < static_cast<int>(x.size()); c += step) {
    const int n = std::min(step, static_cast<int>(x.size()) - c);
    std::vector<uint8_t> codes(static_cast<size_t>(n));
    float scale = 1.0F;
    auto* i8 = reinterpret_cast<int8_t*>(codes.data());
    if (type == KvType::kI8) scale = F16ToF32(EncodeI8(&x[static_cast<size_t>(c)], n, i8));
    if (type == KvType::kI4)
      scale = F16ToF32(EncodeI4(&x[static_cast<size_t>(c)], n, codes.data()));
    if (type == KvType::kFp8E4M3)
      scale = F16ToF32(EncodeE4M3(&x[static_cast<size_t>(c)], n, codes.data()));
    for (int i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      float value = 0;
      if (type == KvType::kI8) value = i8[at];
      if (type == KvType::kI4) value = kKvI4Table[codes[at]];
      if (type == KvType::kFp8E4M3) value = E4M3ToF32(codes[at]);
      if (type == KvType::kFp8E5M2) value = E5M2ToF32(F32ToE5M2(x[static_cast<size_t>(c) + at]));
      out[static_cast<size_t>(c) + at] = value * scale;
    }
  }
  return out;
}

// Half a step of the stored scale, which is at most 127.5 / 127 of amax / 127 (subnormal scales:
// one step of f16 more); 0 if the scale is 0.
TEST(KvCodec, I8IsHalfAStepAway) {
  Rng rng(kSeed);
  for (int round = 0; round < 4000; ++round) {
    const int n = 1 + static_cast<int>(rng.Below(300));
    const double size = std::pow(10.0, rng.Uniform() * 16 - 10);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& f : x) f = static_cast<float>(Normal(rng) * size);
    std::vector<int8_t> codes(x.size());
    const float scale = F16ToF32(EncodeI8(x.data(), n, codes.data()));
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_GE(codes[i], -127);
      ASSERT_LE(std::fabs(x[i] - scale * static_cast<float>(codes[i])),
                std::max(0.5001F * scale, 127 * 0x1p-24F * 0.51F))
          << "round " << round << " scale " << scale;
    }
  }
}

// No code under the chosen scale is nearer, and no other scale tried is better.
TEST(KvCodec, I4TakesTheBestOfItsScales) {
  Rng rng(kSeed);
  for (int round = 0; round < 2000; ++round) {
    const int n = 1 + static_cast<int>(rng.Below(32));
    std::vector<float> x(static_cast<size_t>(n));
    for (float& f : x) f = static_cast<float>(Normal(rng) * std::pow(10.0, round % 9 - 4));
    std::vector<uint8_t> codes(x.size());
    const float scale = F16ToF32(EncodeI4(x.data(), n, codes.data()));
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_LT(codes[i], 16);
      const double off = x[i] - static_cast<double>(scale) * kKvI4Table[codes[i]];
      for (const int8_t entry : kKvI4Table) {
        const double other = std::fabs(x[i] - static_cast<double>(scale) * entry);
        ASSERT_LE(std::fabs(off), other * (1 + 1e-5) + std::fabs(scale) * 1e-4);
      }
      error += off * off;
    }
    float m = 0;
    for (const float f : x) m = std::fabs(f) > std::fabs(m) ? f : m;
    for (const float a : kKvI4Tries) {
      const double other = F16ToF32(F32ToF16(m * a));
      double sum = 0;
      for (const float f : x) {
        double least = 1e30;
        for (const int8_t entry : kKvI4Table) least = std::min(least, std::fabs(f - other * entry));
        sum += least * least;
      }
      ASSERT_LE(error, sum * (1 + 1e-4) + 1e-30);
    }
  }
}

float Nearest(float (*decode)(uint8_t), float x, int codes) {
  float best = 0;
  for (int c = 0; c < codes; ++c) {
    const float value = decode(static_cast<uint8_t>(c));
    if (!std::isfinite(value)) continue;
    const double off = std::fabs(static_cast<double>(x) - value);
    const double least = std::fabs(static_cast<double>(x) - best);
    if (off < least || (off == least && c % 2 == 0)) best = value;
  }
  return best;
}

TEST(KvCodec, Fp8IsTheNearestValue) {
  Rng rng(kSeed);
  for (int c = 0; c < 128; ++c) {
    const auto code = static_cast<uint8_t>(c);
    if (c != 0x7F) {
      EXPECT_EQ(F32ToE4M3(E4M3ToF32(code)), code);
    }
    if (c <= 0x7C) {
      EXPECT_EQ(F32ToE5M2(E5M2ToF32(code)), code);
    }
  }
  EXPECT_EQ(E4M3ToF32(0x7E), 448.0F);
  EXPECT_EQ(E4M3ToF32(1), 0x1p-9F);
  EXPECT_EQ(E5M2ToF32(0x7B), 57344.0F);
  EXPECT_TRUE(std::isnan(E4M3ToF32(F32ToE4M3(NAN))));
  EXPECT_TRUE(std::isnan(E5M2ToF32(F32ToE5M2(NAN))));
  EXPECT_EQ(F32ToE4M3(1e9F), 0x7E);
  EXPECT_EQ(F32ToE4M3(-INFINITY), 0xFE);
  EXPECT_TRUE(std::isinf(E5M2ToF32(F32ToE5M2(1e9F))));
  for (int round = 0; round < 200000; ++round) {
    const float x = static_cast<float>(Normal(rng) * std::pow(2.0, rng.Uniform() * 26 - 16));
    const float positive = std::fabs(x);
    if (positive < 448) {
      ASSERT_EQ(E4M3ToF32(F32ToE4M3(x)), std::copysign(Nearest(&E4M3ToF32, positive, 127), x)) << x;
    }
    if (positive < 57344) {
      ASSERT_EQ(E5M2ToF32(F32ToE5M2(x)), std::copysign(Nearest(&E5M2ToF32, positive, 124), x)) << x;
    }
  }
}

// Bytes of any kind: NaN and infinity make the group's scale NaN and its codes 0, all else is
// finite.
TEST(KvCodec, AnyBitPatternIsFiniteOrNaN) {
  Rng rng(kSeed);
  for (int round = 0; round < 200000; ++round) {
    float x[40];
    const int n = 1 + static_cast<int>(rng.Below(32));
    const uint64_t kind = rng.Below(4);
    bool bad = false;
    for (int i = 0; i < n; ++i) {
      auto bits = static_cast<uint32_t>(rng.Next());
      if (kind == 1) bits &= 0x80FFFFFFu;            // subnormal and tiny
      if (kind == 2 && i != 3) bits &= 0xBFFFFFFFu;  // one huge among small ones
      if (kind == 3) bits &= 0xBFFFFFFFu;
      x[i] = std::bit_cast<float>(bits);
      bad = bad || !std::isfinite(x[i]);
    }
    int8_t i8[40];
    uint8_t other[40];
    for (const float scale : {F16ToF32(EncodeI8(x, n, i8)), F16ToF32(EncodeI4(x, n, other)),
                              F16ToF32(EncodeE4M3(x, n, other))}) {
      ASSERT_EQ(std::isnan(scale), bad);
      if (!bad) {
        ASSERT_TRUE(std::isfinite(scale));
      }
    }
    for (int i = 0; i < n; ++i) {
      ASSERT_GE(i8[i], -127);
      if (bad) {
        ASSERT_EQ(i8[i], 0);
      }
      if (!bad) {
        ASSERT_TRUE(std::isfinite(E4M3ToF32(other[i])));
      }
    }
  }
}

// Relative mean square error on vectors of 128: normal values; four channels with a large offset,
// as real K has; the same after rotation. Bounds: the table of the design notes and 10 % for i8 and
// fp8; i4 (scales per 32, its own table) must beat the 4.5-bit and 4.25-bit rows there.
TEST(KvCodec, Distortion) {
  struct Row {
    KvType type;
    double gauss, outlier, rotated;
  };
  const Row rows[] = {{KvType::kI8, 4.2e-5 * 1.1, 2.5e-4 * 1.1, 3.9e-5 * 1.1},
                      {KvType::kI4, 6.0e-3, 1.6e-2, 5.8e-3},
                      {KvType::kFp8E4M3, 6.6e-4 * 1.1, 6.6e-4 * 1.1, 6.7e-4 * 1.1},
                      {KvType::kFp8E5M2, 2.8e-3 * 1.1, 2.9e-3 * 1.1, 2.8e-3 * 1.1}};
  std::printf("relative mean square error, vectors of 128\n%-9s %9s %9s %9s\n", "format", "gauss",
              "outlier", "rotated");
  for (const Row& row : rows) {
    double got[3];
    for (int kind = 0; kind < 3; ++kind) {
      Rng rng(kSeed);
      double error = 0, size = 0;
      for (int round = 0; round < 4000; ++round) {
        std::vector<float> x(128);
        for (float& f : x) f = static_cast<float>(Normal(rng));
        if (kind > 0) {
          const float offsets[] = {6, -8, 10, -7};
          for (size_t i = 0; i < 4; ++i) x[i * 37 + 3] += offsets[i];
        }
        if (kind == 2) Rotate(x.data(), 128);
        const std::vector<float> y = Through(row.type, x);
        for (size_t i = 0; i < x.size(); ++i) {
          error += (static_cast<double>(x[i]) - y[i]) * (static_cast<double>(x[i]) - y[i]);
          size += static_cast<double>(x[i]) * x[i];
        }
      }
      got[kind] = error / size;
    }
    std::printf("%-9s %9.2e %9.2e %9.2e\n", std::string(KvTypeName(row.type)).c_str(), got[0],
                got[1], got[2]);
    EXPECT_LE(got[0], row.gauss) << KvTypeName(row.type);
    EXPECT_LE(got[1], row.outlier) << KvTypeName(row.type);
    EXPECT_LE(got[2], row.rotated) << KvTypeName(row.type);
  }
}

}  // namespace
}  // namespace kvasir
