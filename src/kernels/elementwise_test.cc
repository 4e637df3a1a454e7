#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernel_test_util.h"

namespace kvasir {
namespace {

using namespace testing_util;

TEST(Exp, IsCloseAndItsEndsAreDefined) {
  double worst = 0;
  for (uint32_t bits = 0; bits < 0xFFFFF000u; bits += 1013) {
    const float x = std::bit_cast<float>(bits);
    if (!(x >= -87.0F && x <= 88.0F)) continue;
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(Exp(x) - exact) / exact);
  }
  EXPECT_LT(worst, 1e-7);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(0.0F), 1.0F);
  EXPECT_EQ(Exp(-0.0F), 1.0F);
  EXPECT_EQ(Exp(-88.0F), 0.0F);
  EXPECT_EQ(Exp(-infinity), 0.0F);
  EXPECT_EQ(Exp(89.0F), infinity);
  EXPECT_EQ(Exp(infinity), infinity);
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_GT(Exp(-87.0F), 0.0F);
  EXPECT_LT(Exp(88.0F), infinity);
}

TEST(RmsNorm, IsItsFormula) {
  Rng rng(1);
  SerialExecutor serial;
  for (const size_t n : {1u, 7u, 16u, 100u, 576u}) {
    const std::vector<float> x = RandomFloats(rng, 3 * n);
    const std::vector<float> weight = RandomFloats(rng, n);
    std::vector<float> out(3 * n);
    RmsNorm(x.data(), n, 3, weight, 1e-5F, out.data(), n, serial);
    for (size_t r = 0; r < 3; ++r) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i) sum += std::pow(static_cast<double>(x[r * n + i]), 2);
      const double root = std::sqrt(sum / static_cast<double>(n) + 1e-5);
      // The sum: at most n/16 + 5 roundings; halved by the root, plus five more.
      const double relative = (static_cast<double>(n) / 32 + 9) * 0x1p-24;
      for (size_t i = 0; i < n; ++i) {
        const double want = x[r * n + i] * weight[i] / root;
        EXPECT_NEAR(out[r * n + i], want, relative * std::abs(want));
      }
    }
  }
}

TEST(SiluMul, IsItsFormulaAndMayBeInPlace) {
  Rng rng(2);
  SerialExecutor serial;
  std::vector<float> gate = RandomFloats(rng, 1000);
  for (float& g : gate) g *= 10;
  gate[3] = 1000;
  gate[4] = -1000;
  gate[5] = 0;
  const std::vector<float> up = RandomFloats(rng, 1000);
  std::vector<float> out(1000);
  SiluMul(gate.data(), 1000, up.data(), 1000, 1, 1000, out.data(), 1000, serial);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    const double want = g / (1 + std::exp(-g)) * up[i];
    EXPECT_NEAR(out[i], want, 3e-7 * std::abs(want) + 1e-35) << g;
  }
  std::vector<float> in_place = gate;
  SiluMul(in_place.data(), 1000, up.data(), 1000, 1, 1000, in_place.data(), 1000, serial);
  EXPECT_EQ(std::memcmp(in_place.data(), out.data(), 4000), 0);
}

TEST(Rope, TurnsPairsByPositionTimesTheta) {
  Rng rng(3);
  SerialExecutor serial;
  for (const int pairs : {1, 3, 8, 13, 16, 32, 40}) {
    std::vector<double> theta;
    for (int i = 0; i < pairs; ++i)
      theta.push_back(std::pow(10000.0, -static_cast<double>(i) / pairs));
    const RopeTable table(theta, 1.5F, 50);
    EXPECT_EQ(table.pairs(), pairs);
    const int dim = 2 * pairs + 6;  // the last six channels stay
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalves}) {
      const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(2 * 3 * dim));
      std::vector<float> y = x;
      const int32_t positions[] = {0, 49};
      ApplyRope(y.data(), static_cast<size_t>(3 * dim), 2, 3, dim, positions, table, style, serial);
      for (int head = 0; head < 6; ++head) {
        const float* before = x.data() + head * dim;
        const float* after = y.data() + head * dim;
        for (int i = 0; i < pairs; ++i) {
          const int a = style == RopeStyle::kInterleaved ? 2 * i : i;
          const int b = style == RopeStyle::kInterleaved ? 2 * i + 1 : i + pairs;
          const double angle = theta[static_cast<size_t>(i)] * positions[head / 3];
          const double c = 1.5 * std::cos(angle);
          const double s = 1.5 * std::sin(angle);
          EXPECT_NEAR(after[a], before[a] * c - before[b] * s, 2e-6);
          EXPECT_NEAR(after[b], before[b] * c + before[a] * s, 2e-6);
        }
        for (int i = 2 * pairs; i < dim; ++i) EXPECT_EQ(after[i], before[i]);
      }
    }
  }
}

// All operations on one random problem, results laid end to end.
std::vector<float> RunAll(uint64_t seed, Executor& executor) {
  Rng rng(seed);
  const int rows = static_cast<int>(1 + rng.Below(90));
  const auto n = 1 + rng.Below(700);
  const size_t ld = n + rng.Below(20);
  const size_t size = static_cast<size_t>(rows) * ld;
  const std::vector<float> x = RandomFloats(rng, size);
  std::vector<float> y = RandomFloats(rng, size);
  y[rng.Below(size)] = 1e30F;
  const std::vector<float> weight = RandomFloats(rng, n);
  std::vector<float> all(size, 0.0F);
  RmsNorm(x.data(), ld, rows, weight, 1e-6F, all.data(), ld, executor);
  std::vector<float> out(size, 0.0F);
  SiluMul(y.data(), ld, x.data(), ld, rows, static_cast<int>(n), out.data(), ld, executor);
  all.insert(all.end(), out.begin(), out.end());
  out = x;
  AddInPlace(out.data(), ld, y.data(), ld, rows, static_cast<int>(n), executor);
  all.insert(all.end(), out.begin(), out.end());
  if (n >= 2) {
    std::vector<double> theta;
    for (size_t i = 0; i < n / 2; ++i) theta.push_back(rng.Uniform());
    const RopeTable table(theta, 1.0F, 100);
    std::vector<int32_t> positions;
    for (int r = 0; r < rows; ++r) positions.push_back(static_cast<int32_t>(rng.Below(100)));
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalves}) {
      out = x;
      ApplyRope(out.data(), ld, rows, 1, static_cast<int>(n), positions, table, style, executor);
      all.insert(all.end(), out.begin(), out.end());
    }
  }
  return all;
}

TEST(Elementwise, SameBitsOnAllInstructionSetsAndThreads) {
  const IsaGuard guard;
  SerialExecutor serial;
  ShuffledExecutor shuffled(4);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    ASSERT_TRUE(SetIsa(Isa::kPortable).ok());
    const std::vector<float> want = RunAll(seed, serial);
    for (const Isa isa : SupportedIsas()) {
      ASSERT_TRUE(SetIsa(isa).ok());
      const std::vector<float> got = RunAll(seed, shuffled);
      ASSERT_EQ(got.size(), want.size());
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0)
          << IsaName(isa) << " seed " << seed;
    }
  }
}

// SiluMul with up = 1 shows e^x of every instruction set; a sweep over all magnitudes and the
// special values.
TEST(Elementwise, ExpIsTheSameOnAllInstructionSets) {
  const IsaGuard guard;
  SerialExecutor serial;
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x7F800000u; bits += 30011) {
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-std::bit_cast<float>(bits));
  }
  x.push_back(std::numeric_limits<float>::infinity());
  const std::vector<float> ones(x.size(), 1.0F);
  for (const Isa isa : SupportedIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    std::vector<float> out(x.size());
    SiluMul(x.data(), x.size(), ones.data(), x.size(), 1, static_cast<int>(x.size()), out.data(),
            x.size(), serial);
    for (size_t i = 0; i < x.size(); ++i) {
      const float want = x[i] / (1.0F + Exp(0.0F - x[i])) * 1.0F;
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(want))
          << IsaName(isa) << " " << x[i];
    }
  }
}

TEST(Isa, NamesAndChoice) {
  const IsaGuard guard;
  EXPECT_EQ(IsaName(Isa::kPortable), "portable");
  EXPECT_EQ(IsaName(Isa::kAvx2), "avx2");
  EXPECT_EQ(IsaName(Isa::kAvx512), "avx512");
  EXPECT_EQ(IsaName(Isa::kAmx), "amx");
  EXPECT_TRUE(IsaSupported(BestIsa()));
  EXPECT_TRUE(IsaSupported(CurrentIsa()));
  for (const Isa isa : kAllIsas) {
    const Status status = SetIsa(isa);
    EXPECT_EQ(status.ok(), IsaSupported(isa));
    if (status.ok()) {
      EXPECT_EQ(CurrentIsa(), isa);
    } else {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace kvasir
