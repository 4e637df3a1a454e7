#include "certify/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/hash.h"
#include "env/thread_pool.h"

namespace kvasir {
namespace {

std::vector<Divergence> CompareAll(const std::vector<std::vector<float>>& base,
                                   const std::vector<std::vector<float>>& candidate,
                                   Executor& executor) {
  DivergenceMeter meter(base.size(), base[0].size(), executor);
  for (size_t i = 0; i < base.size(); ++i) meter.SetBase(i, base[i]);
  EXPECT_TRUE(meter.FinishBase(base.size()));
  for (size_t i = 0; i < base.size(); ++i) meter.SetCandidate(i, candidate[i]);
  const auto found = meter.Compare();
  return {found.begin(), found.end()};
}

Divergence CompareOne(const std::vector<float>& base, const std::vector<float>& candidate) {
  SerialExecutor serial;
  return CompareAll({base}, {candidate}, serial)[0];
}

TEST(Divergence, OfADistributionAgainstItselfIsZero) {
  Rng rng(7);
  for (const size_t vocab : {1, 2, 17, 5000}) {
    std::vector<float> logits(vocab);
    for (float& x : logits) x = static_cast<float>(rng.Uniform() * 60 - 30);
    const Divergence same = CompareOne(logits, logits);
    EXPECT_EQ(same.kld, 0.0);
    EXPECT_TRUE(same.same_top && same.finite);
  }
}

TEST(Divergence, ClosedForms) {
  // p = (1/2, 1/2), q = (3/4, 1/4): D = ln(2/3)/2 + ln(2)/2 = ln(4/3)/2. A common shift of the
  // logits changes nothing.
  const Divergence half = CompareOne({5, 5}, {std::log(3.0F) - 9, -9});
  EXPECT_NEAR(half.kld, std::log(4.0 / 3.0) / 2, 1e-6);
  // The other way round: 3/4 ln(3/2) + 1/4 ln(1/2).
  const Divergence other = CompareOne({std::log(3.0F), 0}, {0, 0});
  EXPECT_NEAR(other.kld, 0.75 * std::log(1.5) - 0.25 * std::log(2.0), 1e-6);
  // A distribution that is one token to within e^-80 against the uniform one over n: ln n.
  std::vector<float> one(1000, -80.0F), uniform(1000, 3.0F);
  one[417] = 0;
  EXPECT_NEAR(CompareOne(one, uniform).kld, std::log(1000.0), 1e-9);
  // Uniform over n against uniform over half of them plus almost nothing elsewhere: the missing
  // half costs its distance d = 20 each: D = 20 / 2 - ln 2 + O(e^-20).
  std::vector<float> part(1000, -20.0F);
  for (size_t i = 0; i < 500; ++i) part[i] = 0;
  EXPECT_NEAR(CompareOne(uniform, part).kld, 10 - std::log(2.0), 1e-6);
}

TEST(Divergence, SmallDifferencesAreNotLostInRounding) {
  // Logits a and a + e * d: D = e^2 / 2 * Var_p(d) + O(e^3). With two equal tokens and d = (1, -1)
  // the variance is 1.
  const float e = 0x1p-10F;
  const Divergence small = CompareOne({0, 0}, {e, -e});
  const auto expected = static_cast<double>(e) * static_cast<double>(e) / 2;
  EXPECT_NEAR(small.kld, expected, expected * 1e-4);
}

TEST(Divergence, EqualsTheSumWrittenOut) {
  Rng rng(3);
  ThreadPool pool(3);
  std::vector<std::vector<float>> base(40, std::vector<float>(301)), candidate = base;
  for (auto* rows : {&base, &candidate}) {
    for (auto& row : *rows) {
      for (float& x : row) x = static_cast<float>(rng.Uniform() * 12);
    }
  }
  const auto found = CompareAll(base, candidate, pool);
  SerialExecutor serial;
  const auto alone = CompareAll(base, candidate, serial);
  for (size_t r = 0; r < base.size(); ++r) {
    long double za = 0, zb = 0, sum = 0;
    for (size_t i = 0; i < base[r].size(); ++i) {
      za += std::exp(static_cast<long double>(base[r][i]));
      zb += std::exp(static_cast<long double>(candidate[r][i]));
    }
    for (size_t i = 0; i < base[r].size(); ++i) {
      const auto p = std::exp(static_cast<long double>(base[r][i])) / za;
      const auto q = std::exp(static_cast<long double>(candidate[r][i])) / zb;
      sum += p * std::log(p / q);
    }
    EXPECT_NEAR(found[r].kld, static_cast<double>(sum), 1e-12);
    EXPECT_EQ(found[r].kld, alone[r].kld) << "threads changed a bit";
    EXPECT_EQ(found[r].same_top, Likeliest(base[r]) == Likeliest(candidate[r]));
  }
}

TEST(Divergence, OddLogitsAreSeen) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(CompareOne({1, 2}, {kNan, 2}).finite);
  EXPECT_FALSE(CompareOne({1, 2}, {1, INFINITY}).finite);
  SerialExecutor serial;
  DivergenceMeter meter(2, 2, serial);
  meter.SetBase(0, std::vector<float>{1, 2});
  meter.SetBase(1, std::vector<float>{1, kNan});
  EXPECT_TRUE(meter.FinishBase(1));
  EXPECT_FALSE(meter.FinishBase(2));
}

TEST(Likeliest, FirstOfEquals) {
  EXPECT_EQ(Likeliest(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(Likeliest(std::vector<float>{NAN, -5, NAN}), 1);
  EXPECT_EQ(Likeliest(std::vector<float>{NAN, NAN}), 0);
}

TEST(DivergenceMeter, HoldsAFewRowsOfAnyVocabulary) {
  EXPECT_EQ(DivergenceMeter::RowsFor(512), 128);
  EXPECT_EQ(DivergenceMeter::RowsFor(49152) % 16, 0);
  EXPECT_EQ(DivergenceMeter::RowsFor(10'000'000), 16);
}

}  // namespace
}  // namespace kvasir
