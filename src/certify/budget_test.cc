#include "certify/budget.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace kvasir {
namespace {

// Keeps every budget.
Measures Good() {
  Measures measures;
  measures.prefill = {10000, 0, 0.0003, 0.004, 0.1, 0.995};
  measures.decode = {2000, 0, 0.0003, 0.004, 0.1, 0.995};
  measures.ratio = 1;
  measures.buckets = {{0, 127, measures.prefill, measures.decode}};
  measures.greedy = {104, 128, 90, 10, 40};
  measures.retrieval = {{"needle", 100, 40, 40}};
  return measures;
}

TEST(Budget, StrictKeepsAll) {
  EXPECT_EQ(BestQuality(Good()), KvQuality::kStrict);
  for (const KvQuality quality : kKvQualities) {
    EXPECT_TRUE(Shortfalls(Good(), quality).empty()) << KvQualityName(quality);
    const auto parsed = ParseKvQuality(KvQualityName(quality), "kv-quality");
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, quality);
  }
  EXPECT_FALSE(ParseKvQuality("best", "kv-quality").ok());
}

TEST(Budget, EachLooserOneAllowsMore) {
  for (size_t i = 1; i < std::size(kKvQualities); ++i) {
    const KvBudget& hard = BudgetOf(kKvQualities[i - 1]);
    const KvBudget& soft = BudgetOf(kKvQualities[i]);
    EXPECT_LT(hard.mean, soft.mean);
    EXPECT_LT(hard.bucket_mean, soft.bucket_mean);
    EXPECT_LT(hard.p99, soft.p99);
    EXPECT_LT(hard.max, soft.max);
    EXPECT_GT(hard.top1, soft.top1);
    EXPECT_GE(soft.ratio, hard.ratio);
    EXPECT_GT(hard.greedy_median, soft.greedy_median);
    EXPECT_GT(hard.recall, soft.recall);
  }
}

// Each number by itself can fail a certificate, and the reason names it.
TEST(Budget, EveryNumberCounts) {
  const auto expect = [](const char* word, const std::function<void(Measures*)>& change) {
    Measures measures = Good();
    change(&measures);
    for (const KvQuality quality : kKvQualities) {
      const std::vector<std::string> reasons = Shortfalls(measures, quality);
      ASSERT_EQ(reasons.size(), 1U) << word;
      EXPECT_NE(reasons[0].find(word), std::string::npos) << reasons[0];
    }
    EXPECT_FALSE(BestQuality(measures).has_value());
  };
  expect("mean KLD", [](Measures* m) { m->prefill.mean = 0.05; });
  expect("mean KLD", [](Measures* m) { m->decode.mean = 0.05; });
  expect("mean KLD", [](Measures* m) { m->prefill.mean = NAN; });
  expect("p99", [](Measures* m) { m->prefill.p99 = 1; });
  expect("largest", [](Measures* m) { m->prefill.max = 5; });
  expect("top-1", [](Measures* m) { m->prefill.top1 = 0.8; });
  expect("finite", [](Measures* m) { m->prefill.broken = 1; });
  expect("positions 0-127", [](Measures* m) { m->buckets[0].prefill.mean = 0.1; });
  expect("(decode)", [](Measures* m) { m->buckets[0].decode.mean = 0.1; });
  expect("decode / prefill", [](Measures* m) { m->ratio = 1.5; });
  expect("greedy", [](Measures* m) { m->greedy.median = 2; });
  expect("retrieval", [](Measures* m) { m->retrieval[0].right = 10; });
}

TEST(Budget, AReasonShowsByHowMuchEvenIfThatIsLittle) {
  Measures measures = Good();
  measures.prefill.max = 4.00403767;
  const std::vector<std::string> reasons = Shortfalls(measures, KvQuality::kSmall);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0], "largest KLD 4.004 > 4 (prefill)");
}

// A share seen at a few positions is off by chance; at many it is not.
TEST(Budget, TopOneIsJudgedByHowMuchWasSeen) {
  const auto strict = [](int64_t positions, double top1) {
    Measures measures = Good();
    measures.prefill.count = positions;
    measures.prefill.top1 = top1;
    return Shortfalls(measures, KvQuality::kStrict).empty();
  };
  EXPECT_TRUE(strict(1536, 0.986));
  EXPECT_FALSE(strict(1536, 0.98));
  EXPECT_FALSE(strict(30000, 0.986));
  EXPECT_TRUE(strict(30000, 0.9895));
}

TEST(Budget, WhatWasHardlyMeasuredIsNotJudged) {
  Measures measures = Good();
  measures.buckets.push_back({128, 140, {13, 0, 1, 1, 1, 0}, {}});
  measures.retrieval = {{"needle", 100, kQuestions - 1, 0}};
  measures.greedy = {104, 16, 16, 2, 60};  // texts too short to show strict's limit
  EXPECT_TRUE(Shortfalls(measures, KvQuality::kStrict).empty());
  EXPECT_FALSE(BestQuality(Measures()).has_value()) << "nothing measured must not pass";
}

TEST(Budget, TheKnownFormatsFallWhereTheyShould) {
  // Numbers of the demo model: i8 rotated; K i8 with V of four bits; both of four bits.
  const auto with = [](double mean, double p99, double top1, int greedy) {
    Measures measures = Good();
    measures.prefill = measures.decode = {10000, 0, mean, p99, 0.9, top1};
    measures.buckets = {{0, 127, measures.prefill, {}}};
    measures.greedy.median = greedy;
    return BestQuality(measures);
  };
  EXPECT_EQ(with(0.0003, 0.004, 0.993, 100), KvQuality::kStrict);
  EXPECT_EQ(with(0.0057, 0.038, 0.960, 20), KvQuality::kBalanced);
  EXPECT_EQ(with(0.034, 0.26, 0.898, 8), KvQuality::kSmall);
  EXPECT_EQ(with(0.158, 1.1, 0.783, 4), std::nullopt);
  EXPECT_EQ(with(2.0, 7.3, 0.26, 1), std::nullopt);
}

}  // namespace
}  // namespace kvasir
