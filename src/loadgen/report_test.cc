#include "loadgen/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/hash.h"

namespace kvasir {
namespace {

Outcome Good(int64_t start_ms, std::vector<int64_t> token_ms, int64_t end_ms) {
  Outcome outcome;
  outcome.start_ns = start_ms * 1'000'000;
  outcome.end_ns = end_ms * 1'000'000;
  for (const int64_t ms : token_ms) outcome.token_ns.push_back(ms * 1'000'000);
  outcome.prompt_tokens = 10;
  outcome.output_tokens = static_cast<int64_t>(token_ms.size());
  outcome.cached_tokens = 4;
  return outcome;
}

TEST(Percentile, EqualsSortingNaively) {
  const uint64_t seed = 3;
  Rng rng(seed);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> values(1 + rng.Below(40));
    for (double& value : values) value = static_cast<double>(rng.Below(20));
    const double p = static_cast<double>(rng.Below(101)) / 100.0;
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const auto index = static_cast<size_t>(p * static_cast<double>(sorted.size()));
    EXPECT_EQ(Percentile(values, p), sorted[std::min(sorted.size() - 1, index)])
        << "seed " << seed << " round " << round;
  }
  EXPECT_TRUE(std::isnan(Percentile({}, 0.5)));
}

TEST(Summarize, CountsByHand) {
  Outcome refused;
  refused.error = "http 429";
  refused.detail = "queue full";
  const Summary s =
      Summarize("x", {Good(0, {100, 110, 130}, 140), refused, Good(50, {250}, 250)}, 2.0);
  EXPECT_EQ(s.requests, 3);
  EXPECT_EQ(s.ok, 2);
  EXPECT_EQ(s.errors.at("http 429"), 1);
  EXPECT_EQ(s.first_error, "http 429: queue full");
  EXPECT_DOUBLE_EQ(s.ttft_p50, 0.2);
  EXPECT_DOUBLE_EQ(s.ttft_max, 0.2);
  EXPECT_DOUBLE_EQ(s.itl_p50, 0.02);  // of 10 ms and 20 ms, index 1
  EXPECT_DOUBLE_EQ(s.e2e_p99, 0.2);
  EXPECT_DOUBLE_EQ(s.out_tps, 2.0);
  EXPECT_DOUBLE_EQ(s.prompt_tps, 10.0);
  EXPECT_EQ(s.cached_tokens, 8);
  EXPECT_NEAR(s.decode_tps_p50, 2 / 0.03, 1e-6);
}

TEST(Report, NothingSucceededIsStillPrintable) {
  Outcome refused;
  refused.error = "connect";
  refused.detail = "connect: Connection refused";
  Summary s = Summarize("w1", {refused}, 0.5);
  s.not_sent = 2;
  const std::string row = TableRow(s);
  EXPECT_NE(row.find("0/1"), std::string::npos);
  EXPECT_NE(row.find("1 x connect"), std::string::npos);
  EXPECT_NE(row.find("2 not sent"), std::string::npos);
  const auto json = nlohmann::json::parse(ReportJson({s}, "http://x:1", "m", 9));
  EXPECT_TRUE(json["workloads"][0]["ttft_p50"].is_null());
  EXPECT_EQ(json["workloads"][0]["errors"]["connect"], 1);
  EXPECT_EQ(json["seed"], 9);
}

TEST(Report, InvalidUtf8FromAServerDoesNotThrow) {
  Outcome refused;
  refused.error = "http 500";
  refused.detail = "\xff\xfe";
  EXPECT_FALSE(ReportJson({Summarize("x", {refused}, 1)}, "u", "m", 0).empty());
}

}  // namespace
}  // namespace kvasir
