// The whole load generator against a fake server.
#include "loadgen/bench.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "loadgen/fake_server_test.h"
#include "loadgen/task_pool.h"

namespace kvasir {
namespace {

Outcome RunAgainst(const FakeServer::Answer& answer) {
  FakeServer server(answer);
  Target target;
  target.url = ParseHttpUrl(server.url()).value();
  target.model = "m";
  target.timeout_s = 20;
  return RunCompletion(target, {{300, 301}, 2});
}

TEST(RunCompletion, Good) {
  const Outcome outcome = RunAgainst(GoodAnswer);
  EXPECT_TRUE(outcome.ok()) << outcome.error << outcome.detail;
  EXPECT_EQ(outcome.token_ns.size(), 2U);
  EXPECT_EQ(outcome.output_tokens, 2);
  EXPECT_EQ(outcome.prompt_tokens, 2);
  EXPECT_EQ(outcome.cached_tokens, 1);
}

TEST(RunCompletion, FaultsAreCountedByKind) {
  const std::string one = R"({"choices":[{"text":"a"}]})";
  const auto error_of = [](const std::string& reply) {
    return RunAgainst([&reply](const std::string&, const std::string&) { return reply; });
  };
  Outcome outcome = error_of(Plain(429, R"({"error":{"message":"queue full","code":429}})"));
  EXPECT_EQ(outcome.error, "http 429");
  EXPECT_EQ(outcome.detail, "queue full");
  EXPECT_EQ(error_of(Plain(500, "oh\nno")).detail, "oh no");
  EXPECT_EQ(error_of(Plain(404, "")).error, "http 404");
  EXPECT_EQ(error_of("").error, "broken stream");
  EXPECT_EQ(error_of("garbage\r\n\r\n").error, "broken stream");
  EXPECT_EQ(error_of(Chunked({one}, false)).error, "broken stream");
  EXPECT_EQ(error_of(Chunked({one})).detail, "ended without [DONE]");
  EXPECT_EQ(error_of(Chunked({"[1,"})).error, "broken stream");
  EXPECT_EQ(error_of(Chunked({"[DONE]"})).error, "no output");
  outcome = error_of(Chunked({one, R"({"error":{"message":"logits are not finite"}})"}));
  EXPECT_EQ(outcome.error, "error in stream");
  EXPECT_EQ(outcome.detail, "logits are not finite");
  // Without usage the chunks are counted.
  outcome = error_of(Chunked({one, one, "[DONE]"}));
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(outcome.output_tokens, 2);
}

TEST(RunCompletion, NobodyListens) {
  std::string url;
  { url = FakeServer(GoodAnswer).url(); }
  Target target;
  target.url = ParseHttpUrl(url).value();
  EXPECT_EQ(RunCompletion(target, {{1}, 1}).error, "connect");
}

TEST(RunCompletion, TimeLimit) {
  // A listener that never accepts nor answers.
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  Target target;
  target.url = ParseHttpUrl("127.0.0.1:" + std::to_string(ntohs(address.sin_port))).value();
  target.timeout_s = 0.2;
  EXPECT_EQ(RunCompletion(target, {{1}, 1}).error, "timeout");
  close(fd);
}

TEST(RunBench, AllWorkloadsAndTheSamePromptsTwice) {
  std::mutex mutex;
  std::multiset<std::string> runs[2];
  for (std::multiset<std::string>& bodies : runs) {
    FakeServer server([&](const std::string& head, const std::string& body) {
      const std::lock_guard lock(mutex);
      if (!body.empty()) bodies.insert(body);
      return GoodAnswer(head, body);
    });
    BenchOptions options;
    options.url = server.url();
    std::ostringstream log;
    const Result<BenchReport> report = RunBench(options, log, false);
    ASSERT_TRUE(report.ok()) << report.status().message();
    ASSERT_EQ(report->summaries.size(), 7U);  // w3 has two
    EXPECT_EQ(report->model, "fake");
    const int64_t requests[] = {3, 2, 8, 8, 32, 24, 1};
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(report->summaries[i].ok, requests[i]) << report->summaries[i].first_error;
      EXPECT_TRUE(report->summaries[i].errors.empty());
    }
    EXPECT_EQ(report->summaries[0].prompt_tokens, 3 * 512);
    EXPECT_EQ(report->summaries[0].output_tokens, 3 * 64);
    EXPECT_EQ(report->summaries[2].prompt_tokens, 8 * 2064);
    EXPECT_EQ(report->summaries[5].prompt_tokens, 4 * (700 + 824 + 948 + 1072 + 1196 + 1320));
  }
  EXPECT_EQ(runs[0].size(), 81U);  // with the warm-up and the two prompts of w6
  EXPECT_EQ(runs[0], runs[1]);
}

TEST(RunBench, ClosedLoopKeepsTheNumberOfUsers) {
  FakeServer server(GoodAnswer);
  BenchOptions options;
  options.url = server.url();
  options.model = "m";
  options.warm_up = false;
  options.loop.concurrency = 3;
  options.loop.requests = 40;
  options.loop.traffic.input = {20, 20};
  options.loop.traffic.shared_tokens = 20;
  options.loop.traffic.output = {2, 2};
  std::ostringstream log;
  const Result<BenchReport> report = RunBench(options, log, false);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->succeeded(), 40);
  EXPECT_EQ(server.connections(), 40);
  EXPECT_LE(server.open_max(), 3);
}

TEST(RunBench, OpenLoopBoundsWhatIsInFlight) {
  std::atomic<bool> release{false};
  FakeServer server([&](const std::string& head, const std::string& body) {
    while (!release) std::this_thread::yield();
    return GoodAnswer(head, body);
  });
  Target target;
  target.url = ParseHttpUrl(server.url()).value();
  LoopOptions loop;
  loop.rate = 200;
  loop.duration_s = 0.3;
  loop.in_flight_max = 2;
  loop.traffic.input = {4, 4};
  loop.traffic.output = {1, 1};
  const size_t arrivals = PoissonArrivals(loop.rate, loop.duration_s, 1).size();
  ASSERT_GT(arrivals, 4U);
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    release = true;
  });
  const Result<Summary> ran = RunOpenLoop(loop, target, LoadShape(), {});
  releaser.join();
  ASSERT_TRUE(ran.ok()) << ran.status().message();
  const Summary& summary = *ran;
  EXPECT_EQ(summary.ok + summary.not_sent, static_cast<int64_t>(arrivals));
  EXPECT_LE(server.open_max(), 2);
}

TEST(RunBench, FailsWithoutAServerAndCountsRefusals) {
  std::string url;
  { url = FakeServer(GoodAnswer).url(); }
  BenchOptions options;
  options.url = url;
  std::ostringstream log;
  EXPECT_EQ(RunBench(options, log, false).status().code(), StatusCode::kUnavailable);
  FakeServer server([](const std::string&, const std::string&) { return Plain(401, "{}"); });
  options.url = server.url();
  EXPECT_EQ(RunBench(options, log, false).status().code(), StatusCode::kUnavailable);
  options.model = "m";
  options.only = {"w1"};
  const Result<BenchReport> report = RunBench(options, log, false);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->succeeded(), 0);
  EXPECT_EQ(report->summaries.at(0).errors.at("http 401"), 3);
}

TEST(RunBench, SendsTheKey) {
  FakeServer server([](const std::string& head, const std::string& body) {
    return head.find("Authorization: Bearer s3cret\r\n") == std::string::npos
               ? Plain(401, "")
               : GoodAnswer(head, body);
  });
  BenchOptions options;
  options.url = server.url();
  options.api_key = "s3cret";
  options.text = true;
  options.only = {"w1"};
  std::ostringstream log;
  const Result<BenchReport> report = RunBench(options, log, false);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->succeeded(), 3);
}

TEST(BenchOptions, NamesFlagAndLimit) {
  const auto message = [](auto change) {
    BenchOptions options;
    change(&options);
    return options.Validate().message();
  };
  EXPECT_EQ(message([](BenchOptions*) {}), "");
  EXPECT_NE(message([](BenchOptions* o) { o->only = {"w7"}; }).find("--only"), std::string::npos);
  EXPECT_NE(message([](BenchOptions* o) { o->shape.vocab = 300; }).find("--vocab"),
            std::string::npos);
  EXPECT_NE(message([](BenchOptions* o) { o->loop.rate = -1; }).find("--rate"), std::string::npos);
  EXPECT_NE(message([](BenchOptions* o) { o->loop.rate = 1; }).find("--duration"),
            std::string::npos);
  EXPECT_NE(
      message([](BenchOptions* o) { o->loop.traffic.shared_tokens = 300; }).find("--shared-len"),
      std::string::npos);
  EXPECT_NE(message([](BenchOptions* o) { o->loop.concurrency = 5000; }).find("--concurrency"),
            std::string::npos);
}

TEST(PoissonArrivals, MeanRateAndOrder) {
  const std::vector<double> arrivals = PoissonArrivals(50, 200, 5);
  EXPECT_NEAR(static_cast<double>(arrivals.size()), 10'000, 500);  // 5 standard deviations
  EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
  EXPECT_LT(arrivals.back(), 200);
  EXPECT_EQ(arrivals, PoissonArrivals(50, 200, 5));
  EXPECT_NE(arrivals, PoissonArrivals(50, 200, 6));
}

TEST(TaskPool, BoundsAndRunsAll) {
  std::atomic<int> running{0}, most{0}, done{0};
  {
    TaskPool pool(3);
    for (int i = 0; i < 100; ++i) {
      pool.Start([&] {
        const int now = ++running;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        std::this_thread::yield();
        --running;
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 100);
  EXPECT_LE(most, 3);
}

}  // namespace
}  // namespace kvasir
