#include "certify/measures.h"

#include <gtest/gtest.h>

#include "certify/budget.h"

namespace kvasir {
namespace {

using Mode = MeasuredPart::Mode;

MeasuredPart TextPart(Mode mode, int sequence, const std::vector<int64_t>& kld, bool same = true) {
  MeasuredPart part;
  part.mode = mode;
  part.result.text.push_back({sequence, kld, std::string(kld.size(), same ? '1' : '0')});
  return part;
}

TEST(PositionBuckets, CoverEachPositionOnce) {
  for (const int32_t max_len : {1, 5, 127, 128, 129, 511, 512, 513, 1024, 2000, 8192, 131072}) {
    const std::vector<Bucket> buckets = PositionBuckets(max_len);
    int32_t next = 0;
    for (const Bucket& bucket : buckets) {
      EXPECT_EQ(bucket.first, next) << max_len;
      EXPECT_GE(bucket.last, bucket.first);
      next = bucket.last + 1;
    }
    EXPECT_EQ(next, max_len);
  }
  EXPECT_EQ(PositionBuckets(8192).size(), 6U);
  EXPECT_EQ(PositionBuckets(8192)[2].first, 512);
}

TEST(SumUp, MeansPercentilesAndBuckets) {
  std::vector<int64_t> kld(200);
  for (size_t i = 0; i < kld.size(); ++i) kld[i] = static_cast<int64_t>(i) * 1000;  // microunits
  MeasuredPart part = TextPart(Mode::kPrefill, 0, kld);
  part.result.text[0].same_top[3] = '0';
  part.result.text[0].same_top[130] = '0';
  const Measures sum = SumUp(std::vector{part}, 200, 8);
  EXPECT_EQ(sum.prefill.count, 200);
  EXPECT_DOUBLE_EQ(sum.prefill.mean, 99.5e-6);
  EXPECT_DOUBLE_EQ(sum.prefill.p99, 197e-6);  // 198 of 200 do not exceed it
  EXPECT_DOUBLE_EQ(sum.prefill.max, 199e-6);
  EXPECT_DOUBLE_EQ(sum.prefill.top1, 0.99);
  ASSERT_EQ(sum.buckets.size(), 2U);
  EXPECT_EQ(sum.buckets[0].prefill.count, 128);
  EXPECT_DOUBLE_EQ(sum.buckets[0].prefill.mean, 63.5e-6);
  EXPECT_EQ(sum.buckets[1].prefill.count, 72);
  EXPECT_EQ(sum.buckets[1].decode.count, 0);
  EXPECT_EQ(sum.ratio, 0) << "nothing was read in both modes";
}

TEST(SumUp, BrokenPositionsAreCountedApart) {
  const Measures sum =
      SumUp(std::vector{TextPart(Mode::kPrefill, 0, {2000, TextScores::kNotFinite, 4000})}, 3, 8);
  EXPECT_EQ(sum.prefill.count, 3);
  EXPECT_EQ(sum.prefill.broken, 1);
  EXPECT_DOUBLE_EQ(sum.prefill.mean, 3e-6);
  for (const KvQuality quality : kKvQualities) EXPECT_FALSE(Shortfalls(sum, quality).empty());
}

TEST(SumUp, TheRatioIsOfSequencesReadInBothModes) {
  const std::vector parts = {
      TextPart(Mode::kPrefill, 0, {1'000'000'000}),  // not in decode mode
      TextPart(Mode::kPrefill, 1, {1'000'000, 3'000'000}),
      TextPart(Mode::kDecode, 1, {5'000'000, 7'000'000}),
  };
  EXPECT_NEAR(SumUp(parts, 2, 8).ratio, 3, 1e-3);
  // Two formats that are both exact: no 0 / 0.
  const std::vector exact = {TextPart(Mode::kPrefill, 0, {0}), TextPart(Mode::kDecode, 0, {0})};
  EXPECT_EQ(SumUp(exact, 1, 8).ratio, 1);
}

TEST(SumUp, GreedyAndRetrieval) {
  MeasuredPart a, b;
  a.result.first_difference = {7, 1, 2, 3, 4};
  b.result.first_difference = {5, 8, 6, 8, 8};
  a.result.cells = {{"repeat", 32, 3, 2}, {"needle", 64, 1, 1}};
  b.result.cells = {{"repeat", 32, 5, 5}};
  const Measures sum = SumUp(std::vector{a, b}, 128, 8);
  EXPECT_EQ(sum.greedy.prompts, 10);
  EXPECT_EQ(sum.greedy.median, 5);
  EXPECT_EQ(sum.greedy.p10, 1);
  EXPECT_EQ(sum.greedy.same, 3);
  ASSERT_EQ(sum.retrieval.size(), 2U);
  EXPECT_EQ(sum.retrieval[0].kind, "needle");
  EXPECT_EQ(sum.retrieval[1].counted, 8);
  EXPECT_EQ(sum.retrieval[1].right, 7);
  EXPECT_EQ(sum.questions(), 9);
  EXPECT_NEAR(sum.recall(), 8.0 / 9, 1e-12);
}

TEST(Measures, SurviveJson) {
  MeasuredPart part = TextPart(Mode::kPrefill, 0, {1, 2, 3, 400});
  part.result.cells = {{"needle", 64, 3, 1}};
  part.result.first_difference = {3, 4};
  const std::vector parts = {part, TextPart(Mode::kDecode, 0, {1, 2, 3, 500}, false)};
  const Measures sum = SumUp(parts, 4, 16);
  const std::string text = MeasuresToJson(sum).dump();
  const auto back = MeasuresFromJson(nlohmann::json::parse(text));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(MeasuresToJson(*back).dump(), text);
  // Each field missing or of another kind is refused by name.
  const nlohmann::json good = nlohmann::json::parse(text);
  for (const auto& [key, value] : good.items()) {
    nlohmann::json bad = good;
    bad.erase(key);
    EXPECT_EQ(MeasuresFromJson(bad).status().code(), StatusCode::kDataLoss) << key;
    bad = good;
    bad[key] = "x";
    const Status status = MeasuresFromJson(bad).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << key;
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  }
  nlohmann::json negative = good;
  negative["prefill"]["kld_mean"] = -1;
  EXPECT_FALSE(MeasuresFromJson(negative).ok());
  EXPECT_FALSE(MeasuresFromJson(nlohmann::json::array()).ok());
}

TEST(PartResult, SurvivesJson) {
  PartResult result;
  result.text.push_back({3, {5, TextScores::kNotFinite}, "10"});
  result.first_difference = {1, 2};
  result.cells = {{"repeat", 16, 2, 1}};
  const nlohmann::json good = PartResultToJson(result);
  const auto back = PartResultFromJson(good);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(PartResultToJson(*back), good);
  nlohmann::json bad[5];
  for (auto& json : bad) json = good;
  bad[0]["text"][0]["same"] = "1";
  bad[1]["text"][0]["kld"][0] = 0.5;
  bad[2].erase("cells");
  bad[3]["first_difference"] = {{"x", 1}};
  bad[4] = 5;
  for (const auto& json : bad) EXPECT_FALSE(PartResultFromJson(json).ok()) << json;
}

TEST(TextScores, KeepsBillionths) {
  TextScores scores;
  scores.Add({1.25e-7, true, true});
  scores.Add({2.0, false, true});
  scores.Add({1e300, true, true});
  scores.Add({0, true, false});
  EXPECT_EQ(scores.kld, (std::vector<int64_t>{125, 2'000'000'000, 1'000'000'000'000'000, -1}));
  EXPECT_EQ(scores.same_top, "1010");
}

}  // namespace
}  // namespace kvasir
