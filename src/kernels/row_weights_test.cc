#include "kernels/row_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernel_test_util.h"

namespace kvasir {
namespace {

using namespace testing_util;  // NOLINT(google-build-using-namespace)

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> RandomRow(Rng& rng, size_t n) {
  std::vector<float> row(n);
  const double spread = std::pow(10.0, rng.Uniform() * 3 - 1);
  for (float& x : row) x = static_cast<float>((rng.Uniform() + rng.Uniform() - 1) * spread);
  return row;
}

TEST(RowMaxima, AreThoseOfTheBlocks) {
  const uint64_t seed = 11;
  Rng rng(seed);
  for (int round = 0; round < 300; ++round) {
    const size_t n = 1 + rng.Below(round < 200 ? 200 : 5000);
    std::vector<float> row = RandomRow(rng, n);
    if (round % 3 == 0) row[rng.Below(n)] = row[rng.Below(n)];  // equal ones
    std::vector<float> maxima(RowBlocks(n));
    ASSERT_TRUE(RowMaxima(row, maxima)) << "seed " << seed << " round " << round;
    for (size_t b = 0; b < maxima.size(); ++b) {
      const auto first = row.begin() + static_cast<ptrdiff_t>(b * kRowBlock);
      const auto last = row.begin() + static_cast<ptrdiff_t>(std::min(n, (b + 1) * kRowBlock));
      ASSERT_EQ(maxima[b], *std::max_element(first, last)) << "seed " << seed << " block " << b;
    }
  }
}

TEST(RowMaxima, SeesEveryBrokenElement) {
  const IsaGuard guard;
  for (const Isa isa : SupportedIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    for (const size_t n : {1u, 15u, 16u, 63u, 64u, 65u, 130u, 200u}) {
      for (size_t at = 0; at < n; ++at) {
        std::vector<float> row(n, -3.0F);
        std::vector<float> maxima(RowBlocks(n));
        ASSERT_TRUE(RowMaxima(row, maxima));
        for (const float broken : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
          row[at] = broken;
          ASSERT_FALSE(RowMaxima(row, maxima)) << IsaName(isa) << " " << n << " " << at;
        }
        // Masked elements are no obstacle to the maxima.
        row[at] = -kInf;
        RowMaxima(row, maxima);
        ASSERT_EQ(maxima[at / kRowBlock], n - at / kRowBlock * kRowBlock == 1 ? -kInf : -3.0F);
        row[at] = std::numeric_limits<float>::max();
        ASSERT_TRUE(RowMaxima(row, maxima));
      }
    }
  }
}

TEST(RowWeights, AreTheirFormula) {
  Rng rng(12);
  for (int round = 0; round < 100; ++round) {
    const size_t n = 1 + rng.Below(700);
    std::vector<float> row = RandomRow(rng, n);
    if (round % 2 == 0) row[rng.Below(n)] = -kInf;
    const float max = *std::max_element(row.begin(), row.end());
    if (max == -kInf) continue;
    const auto scale = static_cast<float>(0.1 + 3 * rng.Uniform());
    const float floor = round % 3 == 0 ? 0.1F : 0.0F;
    std::vector<float> weights(n);
    std::vector<float> sums(RowBlocks(n));
    RowWeights(row, max, scale, floor, weights, sums);
    for (size_t b = 0; b < sums.size(); ++b) {
      double sum = 0;
      for (size_t i = b * kRowBlock; i < std::min(n, (b + 1) * kRowBlock); ++i) {
        const float one = RowWeight(row[i], max, scale);
        ASSERT_EQ(weights[i], one < floor ? 0.0F : one);
        const double x =
            (static_cast<double>(row[i]) - static_cast<double>(max)) * static_cast<double>(scale);
        // One rounding of the difference, one of the product, then Exp's 2e-7.
        const double relative = x > -80 ? 2e-7 - x * 1.2e-7 : 1;
        ASSERT_NEAR(one, std::exp(x), relative * std::exp(x) + 1e-37);
        sum += static_cast<double>(weights[i]);
      }
      ASSERT_NEAR(sums[b], sum, 1e-6 * sum);
    }
  }
}

TEST(RowWeights, SameBitsOnAllInstructionSets) {
  const IsaGuard guard;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const size_t n = 1 + rng.Below(1500);
    std::vector<float> row = RandomRow(rng, n);
    for (int i = 0; i < 3; ++i) row[rng.Below(n)] = -kInf;
    row[rng.Below(n)] = 0.5F;
    const auto scale = static_cast<float>(0.01 + 2 * rng.Uniform());
    std::vector<float> want;
    for (const Isa isa : SupportedIsas()) {  // the portable one first
      ASSERT_TRUE(SetIsa(isa).ok());
      std::vector<float> all(n + 2 * RowBlocks(n));
      const std::span<float> maxima = std::span(all).subspan(n, RowBlocks(n));
      RowMaxima(row, maxima);
      RowWeights(row, *std::max_element(maxima.begin(), maxima.end()), scale, 1e-4F,
                 std::span(all).first(n), std::span(all).last(RowBlocks(n)));
      if (want.empty()) want = all;
      ASSERT_EQ(std::memcmp(all.data(), want.data(), all.size() * sizeof(float)), 0)
          << IsaName(isa) << " seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kvasir
