#include "loadgen/sweep_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "loadgen/report.h"

namespace kvasir {
namespace {

constexpr int64_t kMs = 1'000'000;

// Due at due_ms, sent 1 ms later, tokens at these times, over with the last of them.
Outcome Answered(int64_t due_ms, const std::vector<int64_t>& token_ms) {
  Outcome outcome;
  outcome.http_status = 200;
  outcome.due_ns = due_ms * kMs;
  outcome.start_ns = (due_ms + 1) * kMs;
  for (const int64_t ms : token_ms) outcome.token_ns.push_back(ms * kMs);
  outcome.end_ns = token_ms.empty() ? outcome.start_ns : outcome.token_ns.back();
  outcome.output_tokens = static_cast<int64_t>(token_ms.size());
  outcome.prompt_tokens = 10;
  outcome.cached_tokens = 6;
  outcome.queue_ms = 5;
  return outcome;
}

Outcome Refused(int64_t due_ms, int status, bool retry_after) {
  Outcome outcome = Answered(due_ms, {});
  outcome.error = "http " + std::to_string(status);
  outcome.detail = "full";
  outcome.http_status = status;
  outcome.retry_after = retry_after;
  return outcome;
}

Outcome Failed(int64_t due_ms, const std::string& error, int64_t end_ms = 0) {
  Outcome outcome = Answered(due_ms, {});
  outcome.error = error;
  outcome.http_status = 0;
  outcome.end_ns = end_ms * kMs;
  return outcome;
}

TEST(LevelTally, CountsByHand) {
  // The window is 1 s to 3 s; good: 100 ms to the first token, then 20 ms each.
  LevelTally tally(0.100, 0.020, 1000 * kMs, 3000 * kMs);
  tally.Add(Answered(900, {950, 1010, 1030}));  // due in the ramp: only its tokens count
  tally.Add(Answered(1000, {1050, 1070}));      // good
  tally.Add(Answered(1100, {1300, 1310}));      // late
  tally.Add(Answered(1200, {1250, 1350}));      // slow
  tally.Add(Answered(2900, {2950, 3050}));      // one token after the window; slow
  tally.Add(Answered(3000, {3010}));            // due after the window
  tally.Add(Refused(1500, 429, true));
  tally.Add(Refused(1600, 429, false));
  tally.Add(Refused(1700, 503, true));
  tally.Add(Failed(1800, "connect"));
  tally.Add(Failed(1900, "not sent"));
  tally.Add(Failed(2000, "cut", 2600));
  SweepLevel level;
  level.load = 2;
  level.client_cpu = 0.5;
  tally.Fill(&level);
  EXPECT_EQ(level.load, 2);
  EXPECT_EQ(level.client_cpu, 0.5);
  EXPECT_DOUBLE_EQ(level.window_s, 2);
  EXPECT_EQ(level.offered, 10);
  EXPECT_EQ(level.completed, 4);
  EXPECT_EQ(level.unfinished, 1);
  EXPECT_EQ(level.refused_429, 2);
  EXPECT_EQ(level.refused_503, 1);
  EXPECT_EQ(level.refused_no_retry, 1);
  EXPECT_EQ(level.first_refusal, "http 429: full");
  EXPECT_EQ(level.errors, (std::map<std::string, int64_t>{{"connect", 1}}));
  EXPECT_EQ(level.not_sent, 1);
  EXPECT_EQ(level.good, 1);
  EXPECT_DOUBLE_EQ(level.good_rps(), 0.5);
  EXPECT_DOUBLE_EQ(level.refused_share(), 0.3);
  EXPECT_DOUBLE_EQ(level.out_tps, (2 + 2 + 2 + 2 + 1) / 2.0);
  // 50, 200, 50, 50 ms, and one that had waited 600 ms when it was cut.
  EXPECT_NEAR(level.ttft.p50, 0.050, 1e-9);
  EXPECT_FALSE(level.ttft.p50_at_least);
  EXPECT_NEAR(level.ttft.p99, 0.600, 1e-9);
  EXPECT_TRUE(level.ttft.p99_at_least);
  // Gaps of 60 (begun before the window), 20, 20, 10, 100 ms; that of 100 ms after it is not seen.
  EXPECT_NEAR(level.gap.p50, 0.020, 1e-9);
  EXPECT_NEAR(level.gap.p99, 0.100, 1e-9);
  EXPECT_NEAR(level.queue.p99, 0.005, 1e-9);
  EXPECT_EQ(level.prompt_tokens, 40);
  EXPECT_EQ(level.cached_tokens, 24);
  EXPECT_NEAR(level.send_lag_p99, 0.001, 1e-9);
}

TEST(LevelTally, SeveralTokensInAChunk) {
  LevelTally tally(1, 1, 0, 1000 * kMs);
  Outcome outcome = Answered(1, {10, 20});
  outcome.output_tokens = 6;
  tally.Add(outcome);
  SweepLevel level;
  tally.Fill(&level);
  EXPECT_DOUBLE_EQ(level.out_tps, 6);
}

TEST(LevelTally, EveryRequestIsCountedOnce) {
  const uint64_t seed = 11;
  Rng rng(seed);
  for (int round = 0; round < 200; ++round) {
    LevelTally tally(0.01, 0.01, 100 * kMs, 900 * kMs);
    int64_t due_inside = 0;
    for (int i = 0; i < 40; ++i) {
      const auto due = static_cast<int64_t>(rng.Below(1000));
      const auto at = due + 1 + static_cast<int64_t>(rng.Below(30));
      due_inside += due >= 100 && due < 900 ? 1 : 0;
      switch (rng.Below(5)) {
        case 0:
          tally.Add(Refused(due, rng.Below(2) == 0 ? 429 : 503, rng.Below(2) == 0));
          break;
        case 1:
          tally.Add(Failed(due, "cut", at));
          break;
        case 2:
          tally.Add(Failed(due, rng.Below(2) == 0 ? "not sent" : "timeout", at));
          break;
        default:
          tally.Add(Answered(due, {at, at + 5}));
      }
    }
    SweepLevel level;
    tally.Fill(&level);
    EXPECT_EQ(level.offered, due_inside) << "seed " << seed << " round " << round;
    EXPECT_EQ(level.completed + level.unfinished + level.refused() + level.errors_total() +
                  level.not_sent,
              level.offered);
    EXPECT_LE(level.good, level.completed);
  }
}

// What a request that still waits can turn out to be must not be below what is said.
TEST(QuantilesOf, WaitingOnesMakeALowerBound) {
  const uint64_t seed = 4;
  Rng rng(seed);
  int exact = 0, bounds = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> values(rng.Below(20)), waiting(rng.Below(4));
    for (double& value : values) value = static_cast<double>(1 + rng.Below(100));
    for (double& value : waiting) value = static_cast<double>(1 + rng.Below(100));
    if (values.size() + waiting.size() == 0) continue;
    const Quantiles q = QuantilesOf(values, waiting);
    std::vector<double> truth = values;
    for (const double age : waiting) truth.push_back(age + static_cast<double>(rng.Below(1000)));
    const double p50 = Percentile(truth, 0.5), p99 = Percentile(truth, 0.99);
    EXPECT_LE(q.p50, p50) << "seed " << seed << " round " << round;
    EXPECT_LE(q.p99, p99);
    EXPECT_TRUE(q.p50_at_least || q.p50 == p50) << "seed " << seed << " round " << round;
    EXPECT_TRUE(q.p99_at_least || q.p99 == p99) << "seed " << seed << " round " << round;
    ++(q.p50_at_least ? bounds : exact);
  }
  EXPECT_GT(exact, 100);
  EXPECT_GT(bounds, 100);
  EXPECT_TRUE(std::isnan(QuantilesOf({}).p50));
}

SweepReport Example() {
  SweepReport report;
  report.label = "a \"label\" <&>";
  report.url = "http://127.0.0.1:1";
  report.model = "m";
  report.seed = UINT64_MAX;
  report.capacity = 4.25;
  report.capacity_measured = true;
  report.slo_ttft_s = 1;
  report.slo_itl_s = 0.1;
  report.workload = "words";
  SweepLevel level;
  level.load = 0.25;
  level.rate = 1.0625;
  level.window_s = 15;
  level.offered = 16;
  level.completed = 10;
  level.unfinished = 1;
  level.refused_429 = 2;
  level.refused_503 = 1;
  level.refused_no_retry = 1;
  level.first_refusal = "http 429: full";
  level.errors = {{"connect", 1}};
  level.first_error = "connect: no";
  level.not_sent = 1;
  level.good = 9;
  level.out_tps = 123.5;
  level.ttft = {0.1, 0.9, false, true};
  level.gap = {0.01, 0.02, false, false};
  level.prompt_tokens = 100;
  level.cached_tokens = 50;
  level.hot_completed = 5;
  level.hot_ttft = {0.05, 0.07, false, false};
  level.send_lag_p99 = 0.001;
  level.client_cpu = 0.02;
  level.open_max = 12;
  level.server = {{"preemptions", 3}};
  report.levels = {level, level};
  report.levels[1].load = 10;
  return report;
}

TEST(SweepJson, RoundTrip) {
  const std::string text = SweepJson(Example());
  const Result<SweepReport> back = ParseSweepJson(text);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(SweepJson(*back), text);
  EXPECT_EQ(back->seed, UINT64_MAX);
  EXPECT_EQ(back->label, "a \"label\" <&>");
  ASSERT_EQ(back->levels.size(), 2U);
  const SweepLevel& level = back->levels[0];
  EXPECT_TRUE(level.ttft.p99_at_least);
  EXPECT_FALSE(level.ttft.p50_at_least);
  EXPECT_TRUE(std::isnan(level.queue.p50));  // null there
  EXPECT_EQ(level.server.at("preemptions"), 3);
  EXPECT_EQ(level.hot_completed, 5);
  EXPECT_EQ(level.refused(), 3);
}

TEST(SweepJson, AnythingElseIsRefused) {
  const std::string good = SweepJson(Example());
  for (const char* bad : {"", "{", "[]", "3", "null", "{\"kind\":1}", "{\"workloads\":[]}"}) {
    EXPECT_FALSE(ParseSweepJson(bad).ok()) << bad;
  }
  // Each member taken away or turned into something else: refused, or read; never worse.
  const uint64_t seed = 9;
  Rng rng(seed);
  const auto json = nlohmann::ordered_json::parse(good);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    auto changed = json;
    auto* at = &changed;
    while (at->is_structured() && !at->empty() && (at == &changed || rng.Below(3) != 0)) {
      auto it = at->begin();
      std::advance(it, static_cast<std::ptrdiff_t>(rng.Below(at->size())));
      at = &*it;
    }
    const nlohmann::ordered_json others[] = {
        nullptr, -1, 1e300, "x", nlohmann::ordered_json::array(), nlohmann::ordered_json::object(),
        true};
    *at = others[rng.Below(std::size(others))];
    refused += ParseSweepJson(changed.dump()).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
  std::string cut = good;
  while (!cut.empty()) {
    cut.resize(cut.size() - std::min<size_t>(cut.size(), 7));
    EXPECT_FALSE(ParseSweepJson(cut).ok());
  }
}

TEST(SweepTable, RowsSayWhatWentWrong) {
  const SweepReport report = Example();
  const std::string row = SweepTableRow(report.levels[0]);
  for (const char* piece : {"0.25", ">900", "2 x 429", "1 x 503", "1 of them without Retry-After",
                            "1 x connect", "1 unfinished", "1 not sent", "connect: no", "of 16:"}) {
    EXPECT_NE(row.find(piece), std::string::npos) << piece << " in " << row;
  }
  SweepLevel quiet;
  quiet.load = 1;
  EXPECT_EQ(SweepTableRow(quiet).find('\n'), std::string::npos);
  const std::string header = SweepTableHeader();
  EXPECT_EQ(std::count(header.begin(), header.end(), '\n'), 1);
}

}  // namespace
}  // namespace kvasir
