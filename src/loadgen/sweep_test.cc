// The event-driven client, its driver and the sweep against a fake server.
#include "loadgen/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "loadgen/fake_server_test.h"
#include "loadgen/load_driver.h"
#include "loadgen/workload.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

Target TargetOf(const FakeServer& server) {
  Target target;
  target.url = ParseHttpUrl(server.url()).value();
  target.model = "m";
  target.timeout_s = 60;
  return target;
}

TrafficOptions SmallTraffic() {
  TrafficOptions traffic;
  traffic.input = {4, 8};
  traffic.output = {1, 3};
  return traffic;
}

struct Driven {
  DriveResult result;
  std::vector<Outcome> outcomes;
  int64_t Count(const std::string& error) const {
    return std::count_if(outcomes.begin(), outcomes.end(),
                         [&](const Outcome& outcome) { return outcome.error == error; });
  }
};

Driven Drive(const FakeServer& server, const TrafficOptions& traffic_options,
             const DriveOptions& options, int connections_max = 100) {
  const Target target = TargetOf(server);
  const auto client = std::move(LoadClient::Create(target, connections_max)).value();
  const Traffic traffic(traffic_options, target, LoadShape());
  Driven driven;
  LoadDriver driver(client.get(), &traffic,
                    [&](const Outcome& outcome) { driven.outcomes.push_back(outcome); });
  driven.result = driver.Run(options);
  EXPECT_EQ(client->open(), 0);
  return driven;
}

DriveOptions OpenLoop(double rate, double duration_s) {
  DriveOptions options;
  options.rate = rate;
  options.duration_s = duration_s;
  options.drain_s = 60;
  options.seed = 3;
  return options;
}

TEST(PoissonProcess, IsAFunctionOfItsSeed) {
  PoissonProcess one(20, 5), same(20, 5), other(20, 6);
  double last = 0;
  bool differs = false;
  for (int i = 0; i < 10'000; ++i) {
    const double at = one.Next();
    EXPECT_GT(at, last);
    EXPECT_EQ(at, same.Next());
    differs |= at != other.Next();
    last = at;
  }
  EXPECT_NEAR(last, 500, 25);  // 5 standard deviations
  EXPECT_TRUE(differs);
}

TEST(LoadDriver, OpenLoopSendsEveryArrival) {
  FakeServer server(GoodAnswer);
  const Driven driven = Drive(server, SmallTraffic(), OpenLoop(300, 0.5));
  const size_t arrivals = PoissonArrivals(300, 0.5, 3).size();
  ASSERT_EQ(driven.outcomes.size(), arrivals);
  EXPECT_EQ(static_cast<size_t>(server.connections()), arrivals);
  for (const Outcome& outcome : driven.outcomes) {
    EXPECT_TRUE(outcome.ok()) << outcome.error << " " << outcome.detail;
    EXPECT_EQ(outcome.http_status, 200);
    EXPECT_EQ(static_cast<int64_t>(outcome.token_ns.size()), outcome.output_tokens);
    EXPECT_EQ(outcome.queue_ms, 2.5);
    EXPECT_GE(outcome.start_ns, outcome.due_ns);
    EXPECT_GE(outcome.token_ns.front(), outcome.start_ns);
    EXPECT_GE(outcome.end_ns, outcome.token_ns.back());
  }
}

TEST(LoadDriver, OpenLoopStaysWithinItsSockets) {
  std::atomic<bool> release{false};
  FakeServer server([&](const std::string& head, const std::string& body) {
    while (!release) std::this_thread::yield();
    return GoodAnswer(head, body);
  });
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    release = true;
  });
  const Driven driven = Drive(server, SmallTraffic(), OpenLoop(200, 0.3), 3);
  releaser.join();
  EXPECT_EQ(driven.outcomes.size(), PoissonArrivals(200, 0.3, 3).size());
  EXPECT_EQ(driven.Count(""), 3);
  EXPECT_EQ(driven.Count("not sent"), static_cast<int64_t>(driven.outcomes.size()) - 3);
  EXPECT_EQ(driven.result.open_max, 3);
  EXPECT_EQ(server.connections(), 3);
}

TEST(LoadDriver, CutsWhatIsOpenAfterTheDrain) {
  std::atomic<bool> release{false};
  FakeServer server([&](const std::string&, const std::string&) {
    while (!release) std::this_thread::yield();
    return std::string();
  });
  DriveOptions options = OpenLoop(100, 0.2);
  options.drain_s = 0.05;
  const Driven driven = Drive(server, SmallTraffic(), options);
  release = true;
  ASSERT_GT(driven.outcomes.size(), 3U);
  EXPECT_EQ(driven.Count("cut"), static_cast<int64_t>(driven.outcomes.size()));
}

TEST(LoadDriver, RefusalsAndFaultsAreToldApart) {
  std::atomic<int> number{0};
  FakeServer server([&](const std::string& head, const std::string& body) {
    switch (number++ % 6) {
      case 0:
        return Plain(429, R"({"error":{"message":"full"}})", "Retry-After: 1\r\n");
      case 1:
        return Plain(503, "{}");
      case 2:
        return std::string("nonsense\r\n\r\n");
      case 3:
        return std::string();  // closes at once
      case 4:
        return Chunked({R"({"choices":[{"text":"a","finish_reason":null}]})"}, false);
      default:
        return GoodAnswer(head, body);
    }
  });
  const Driven driven = Drive(server, SmallTraffic(), OpenLoop(200, 0.3));
  const auto total = static_cast<int64_t>(driven.outcomes.size());
  ASSERT_GT(total, 20);
  EXPECT_NEAR(static_cast<double>(driven.Count("http 429")), total / 6.0, 1);
  EXPECT_NEAR(static_cast<double>(driven.Count("http 503")), total / 6.0, 1);
  EXPECT_NEAR(static_cast<double>(driven.Count("broken stream")), total / 2.0, 2);
  EXPECT_NEAR(static_cast<double>(driven.Count("")), total / 6.0, 1);
  for (const Outcome& outcome : driven.outcomes) {
    EXPECT_EQ(outcome.retry_after, outcome.http_status == 429);
    if (outcome.http_status == 429) {
      EXPECT_EQ(outcome.detail, "full");
    }
  }
}

TEST(LoadDriver, TimesOutAndSeesNobody) {
  FakeServer server([](const std::string&, const std::string&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return std::string();
  });
  Target target = TargetOf(server);
  target.timeout_s = 0.2;
  std::vector<LoadClient::Finished> finished;
  const auto client = std::move(LoadClient::Create(target, 4)).value();
  CompletionJob job;
  job.prompt = {300};
  ASSERT_TRUE(client->Send(client->Bytes(job), job, 7, SteadyNowNs()));
  while (finished.empty()) client->Poll(SteadyNowNs() + 10'000'000, &finished);
  EXPECT_EQ(finished[0].tag, 7U);
  EXPECT_EQ(finished[0].outcome.error, "timeout");

  std::string url;
  { url = FakeServer(GoodAnswer).url(); }
  target.url = ParseHttpUrl(url).value();
  const auto nobody = std::move(LoadClient::Create(target, 4)).value();
  finished.clear();
  ASSERT_TRUE(nobody->Send(nobody->Bytes(job), job, 8, SteadyNowNs()));
  while (finished.empty()) nobody->Poll(SteadyNowNs() + 10'000'000, &finished);
  EXPECT_EQ(finished[0].outcome.error, "connect");
  target.url.host = "no-such-host.invalid";
  EXPECT_EQ(LoadClient::Create(target, 4).status().code(), StatusCode::kUnavailable);
}

TEST(LoadDriver, ClosedLoopKeepsTheNumberOfUsers) {
  FakeServer server(GoodAnswer);
  DriveOptions options;
  options.users = 4;
  options.duration_s = 0.3;
  options.drain_s = 60;
  const Driven driven = Drive(server, SmallTraffic(), options);
  EXPECT_GT(driven.outcomes.size(), 8U);
  EXPECT_EQ(driven.Count(""), static_cast<int64_t>(driven.outcomes.size()));
  EXPECT_EQ(driven.result.open_max, 4);
}

TEST(LoadDriver, LaterTurnsContainTheAnswers) {
  std::mutex mutex;
  std::multimap<size_t, PromptUnits> prompts;  // by length
  FakeServer server([&](const std::string& head, const std::string& body) {
    const std::lock_guard lock(mutex);
    const PromptUnits prompt = Json::parse(body)["prompt"];
    prompts.emplace(prompt.size(), prompt);
    return GoodAnswer(head, body);
  });
  TrafficOptions traffic;
  traffic.input = {4, 4};
  traffic.output = {2, 2};
  traffic.turns = 3;
  const Driven driven = Drive(server, traffic, OpenLoop(60, 0.5));
  EXPECT_EQ(driven.Count(""), static_cast<int64_t>(driven.outcomes.size()));
  // 4, then 4 + answer 2 + 4, then 10 + 2 + 4; a turn that was due after the end was not sent.
  ASSERT_GT(prompts.count(4), 2U);
  ASSERT_GT(prompts.count(10), 1U);
  EXPECT_EQ(prompts.count(4) + prompts.count(10) + prompts.count(16), prompts.size());
  std::set<PromptUnits> first_turns;
  for (auto [it, end] = prompts.equal_range(4); it != end; ++it) first_turns.insert(it->second);
  for (auto [it, end] = prompts.equal_range(10); it != end; ++it) {
    const PromptUnits& prompt = it->second;
    EXPECT_TRUE(first_turns.contains(PromptUnits(prompt.begin(), prompt.begin() + 4)));
    EXPECT_EQ(prompt[4], 300);  // the fake's answer
    EXPECT_EQ(prompt[5], 301);
  }
}

TEST(CapacityOf, CountsTokensInTheWindow) {
  Outcome whole;
  whole.token_ns = {1'000'000'000, 1'500'000'000, 2'500'000'000, 3'500'000'000};
  Outcome cut = whole;
  cut.error = "cut";
  cut.token_ns.resize(2);
  // From 1 s to 3 s: 3 + 2 tokens in 2 s at 4 a request.
  EXPECT_DOUBLE_EQ(CapacityOf({whole, cut}, 1'000'000'000, 3'000'000'000), 5 / 2.0 / 4.0);
  EXPECT_EQ(CapacityOf({cut}, 0, 3'000'000'000), 0);
  EXPECT_EQ(CapacityOf({}, 0, 1), 0);
}

TEST(PrometheusSums, AddsUpTheSeriesOfAName) {
  const auto sums = PrometheusSums(
      "# HELP a b\n# TYPE a counter\na{x=\"1 } \",y=\"2\"} 3\na{x=\"2\"} 4.5 1700000000\nb 1e3\r\n"
      "nonsense\n{} 4\nc{\n\nd NaN");
  EXPECT_EQ(sums.at("a"), 7.5);
  EXPECT_EQ(sums.at("b"), 1000);
  EXPECT_FALSE(sums.contains("nonsense"));
  EXPECT_FALSE(sums.contains(""));
}

SweepOptions TinySweep() {
  SweepOptions options;
  options.loads = {0.5, 2};
  options.capacity_users = 3;
  options.capacity_s = 0.3;
  options.level_s = 0.3;
  options.settle_s = 0;
  options.drain_s = 30;
  options.capacity = 100;
  options.traffic = SmallTraffic();
  return options;
}

TEST(RunSweep, GivenCapacity) {
  FakeServer server(GoodAnswer);
  std::ostringstream log;
  const Result<SweepReport> report =
      RunSweep(TinySweep(), TargetOf(server), LoadShape(), log, false);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->capacity, 100);
  EXPECT_FALSE(report->capacity_measured);
  ASSERT_EQ(report->levels.size(), 2U);
  for (const SweepLevel& level : report->levels) {
    EXPECT_EQ(level.rate, level.load * 100);
    EXPECT_GT(level.offered, 0);
    EXPECT_EQ(level.completed, level.offered) << level.first_error;
    EXPECT_EQ(level.refused(), 0);
    EXPECT_EQ(level.server.at("steps"), 0);  // the fake's counter stands still
  }
  const std::string text = log.str();
  EXPECT_NE(text.find("(given)"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 + 2 + 2) << text;
}

TEST(RunSweep, MeasuresTheCapacity) {
  FakeServer server(GoodAnswer);
  SweepOptions options = TinySweep();
  options.capacity = 0;
  options.loads = {0.01};
  std::ostringstream log;
  const Result<SweepReport> report = RunSweep(options, TargetOf(server), LoadShape(), log, false);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->capacity_measured);
  EXPECT_GT(report->capacity, 0);
  FakeServer full([](const std::string&, const std::string&) {
    return Plain(429, R"({"error":{"message":"the queue is full"}})", "Retry-After: 1\r\n");
  });
  const Result<SweepReport> none = RunSweep(options, TargetOf(full), LoadShape(), log, false);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("the queue is full"), std::string::npos);
}

TEST(SweepOptions, NamesTheFlag) {
  const auto field = [](auto change) {
    SweepOptions options;
    change(&options);
    return options.Validate().field();
  };
  EXPECT_EQ(field([](SweepOptions*) {}), "");
  EXPECT_EQ(field([](SweepOptions* o) { o->loads = {}; }), "loads");
  EXPECT_EQ(field([](SweepOptions* o) { o->loads = {0}; }), "loads");
  EXPECT_EQ(field([](SweepOptions* o) { o->capacity = -1; }), "capacity");
  EXPECT_EQ(field([](SweepOptions* o) { o->capacity_users = 0; }), "capacity-users");
  EXPECT_EQ(field([](SweepOptions* o) { o->level_s = 0; }), "duration");
  EXPECT_EQ(field([](SweepOptions* o) { o->ramp = 1; }), "ramp");
  EXPECT_EQ(field([](SweepOptions* o) { o->drain_s = -1; }), "drain");
  EXPECT_EQ(field([](SweepOptions* o) { o->slo_ttft_s = 0; }), "slo-ttft");
  EXPECT_EQ(field([](SweepOptions* o) { o->slo_itl_s = -1; }), "slo-itl");
  EXPECT_EQ(field([](SweepOptions* o) { o->connections_max = 0; }), "in-flight");
  EXPECT_EQ(field([](SweepOptions* o) { o->traffic.turns = 0; }), "turns");
}

}  // namespace
}  // namespace kvasir
