// The whole load generator against a fake server.
#include "loadgen/bench.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "loadgen/task_pool.h"

namespace kvasir {
namespace {

// A small HTTP server on a free port of 127.0.0.1 that answers as scripted.
class FakeServer {
 public:
  // What is written back for a request, byte for byte, before the connection is closed.
  using Answer = std::function<std::string(const std::string& head, const std::string& body)>;
  explicit FakeServer(Answer answer);
  ~FakeServer();
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int connections() const { return connections_; }
  int open_max() const { return open_max_; }  // most at once

 private:
  void Accept();
  void Serve(int fd);

  Answer answer_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0}, open_{0}, open_max_{0};
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  std::thread accepter_;
};

FakeServer::FakeServer(Answer answer) : answer_(std::move(answer)) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  KVASIR_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), length) == 0);
  KVASIR_CHECK(listen(listener_, 128) == 0);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.sin_port);
  accepter_ = std::thread([this] { Accept(); });
}

FakeServer::~FakeServer() {
  stopping_ = true;
  accepter_.join();
  for (std::thread& thread : threads_) thread.join();
  close(listener_);
}

void FakeServer::Accept() {
  while (!stopping_) {
    pollfd poller{listener_, POLLIN, 0};
    if (poll(&poller, 1, 10) <= 0) continue;
    const int fd = accept(listener_, nullptr, nullptr);
    if (fd < 0) continue;
    ++connections_;
    threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void FakeServer::Serve(int fd) {
  const int now_open = ++open_;
  for (int seen = open_max_; seen < now_open && !open_max_.compare_exchange_weak(seen, now_open);) {
  }
  std::string text;
  std::array<char, 4096> buffer{};
  size_t body_at = 0, body_size = 0;
  for (;;) {
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
    const size_t end = text.find("\r\n\r\n");
    if (end == std::string::npos) continue;
    body_at = end + 4;
    const size_t length = text.find("Content-Length: ");
    body_size = length < end ? std::stoul(text.substr(length + 16)) : 0;
    if (text.size() >= body_at + body_size) break;
  }
  const std::string reply = answer_(text.substr(0, body_at), text.substr(body_at));
  send(fd, reply.data(), reply.size(), MSG_NOSIGNAL);
  --open_;
  close(fd);
}

using Json = nlohmann::json;

std::string Plain(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) +
         " x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string Chunked(const std::vector<std::string>& events, bool whole = true) {
  std::string out =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n";
  for (const std::string& event : events) {
    const std::string data = "data: " + event + "\n\n";
    char size[32];
    std::snprintf(size, sizeof(size), "%zx\r\n", data.size());
    out += size + data + "\r\n";
  }
  return whole ? out + "0\r\n\r\n" : out;
}

// Streams as many tokens as asked for; half of the prompt counts as cached.
std::string GoodAnswer(const std::string& head, const std::string& body) {
  if (head.starts_with("GET /v1/models")) return Plain(200, R"({"data":[{"id":"fake"}]})");
  const Json json = Json::parse(body);
  const int tokens = json["max_tokens"];
  const size_t prompt = json["prompt"].is_array() ? json["prompt"].size() : 7;
  std::vector<std::string> events;
  for (int i = 0; i < tokens; ++i)
    events.push_back(R"({"choices":[{"text":"a","finish_reason":null}]})");
  events.push_back(R"({"choices":[{"text":"","finish_reason":"length"}]})");
  events.push_back(Json{{"choices", Json::array()},
                        {"usage",
                         {{"prompt_tokens", prompt},
                          {"completion_tokens", tokens},
                          {"prompt_tokens_details", {{"cached_tokens", prompt / 2}}}}}}
                       .dump());
  events.push_back("[DONE]");
  return Chunked(events);
}

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
  EXPECT_LE(server.open_max(), 4);  // the fake closes a moment after the client is done
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
  EXPECT_NE(message([](BenchOptions* o) { o->loop.traffic.shared_tokens = 300; }).find("--shared-len"),
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
