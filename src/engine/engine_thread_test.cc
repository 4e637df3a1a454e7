// The engine in its own thread with callers from several: meant for ThreadSanitizer, and true
// without it.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/fake_runner_test.h"
#include "engine/oracle_test.h"
#include "env/thread_pool.h"

namespace kvasir {
namespace {

using namespace testing_fake;  // NOLINT(google-build-using-namespace)

// Counts, in the engine's thread; waited for in the caller's.
class WaitingSink final : public EventSink {
 public:
  explicit WaitingSink(int32_t n) : open_(n) {}
  void OnTokens(std::vector<TokenEvent>& events) override {
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events) {
      if (event.token >= 0) tokens_.push_back(event.token);
      if (event.finish != FinishReason::kNone) --open_;
    }
    changed_.notify_all();
  }
  std::vector<TokenId> WaitForTokens(size_t tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ <= 0 || tokens_.size() >= tokens; });
    return tokens_;
  }
  std::vector<TokenId> WaitForEnd() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ <= 0; });
    EXPECT_EQ(open_, 0);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t open_;
  std::vector<TokenId> tokens_;
};

Request MakeRequest(uint64_t id, int32_t max_tokens) {
  Request request;
  request.id = RequestId(id);
  for (uint64_t i = 0; i < 1 + id % 40; ++i)
    request.prompt.push_back(static_cast<TokenId>((id + i) % 16));
  request.sampling.max_tokens = max_tokens;
  request.sampling.seed = id;
  return request;
}

struct Observer : StepObserver {
  void OnStep(const StepStats&, const WorkerStats& stats) override {
    EXPECT_TRUE(stats.books.Balanced());
    ++steps;
  }
  std::atomic<int64_t> steps{0};
};

TEST(EngineThread, FourSubmittersThatCancelStallAndLookAtTheStats) {
  const SteadyClock clock;
  ThreadPool executor(2);
  Observer observer;
  const auto arena = FakeArena(24, 8);
  FakeRunner runner(arena.get(), 16, 64, 1);
  EngineOptions options;
  options.max_num_seqs = 6;
  options.max_num_batched_tokens = 16;
  auto engine =
      std::move(Engine::Make(options, {}, &runner, arena.get(), &clock, &executor, &observer))
          .value();
  engine->Start();
  std::atomic<int64_t> exact{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(100 + t);
      for (uint64_t i = 0; i < 60; ++i) {
        Request request = MakeRequest(t * 1000 + i, 1 + static_cast<int32_t>(rng.Below(30)));
        if (rng.Below(4) == 0) request.n = 2;
        const auto sink = std::make_shared<WaitingSink>(request.n);
        const Request copy = request;
        const Status status = engine->Submit(std::move(request), sink);
        ASSERT_TRUE(status.ok()) << status.ToString();
        const uint64_t what = rng.Below(4);
        if (what == 0) {
          engine->Cancel(copy.id);
        } else if (what == 1) {
          (void)sink->WaitForTokens(3);
          engine->Cancel(copy.id);
        }
        (void)engine->stats();
        const std::vector<TokenId> tokens = sink->WaitForEnd();
        if (what > 1 && copy.n == 1) {
          EXPECT_EQ(tokens, Oracle(copy, 0, 16, engine->info().max_model_len, false).tokens);
          ++exact;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  engine->Drain(60'000'000'000);
  const WorkerStats stats = engine->stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.books.free + stats.books.evictable, stats.books.total);
  EXPECT_GT(exact.load(), 50);
  engine->Stop();
  EXPECT_EQ(observer.steps.load() > 0, true);
  EXPECT_EQ(engine->Submit(MakeRequest(9, 1), std::make_shared<WaitingSink>(1)).code(),
            StatusCode::kUnavailable);
}

TEST(EngineThread, DrainCutsWhatDoesNotEndInTime) {
  const SteadyClock clock;
  SerialExecutor executor;
  const auto arena = FakeArena(4096, 8);
  FakeRunner runner(arena.get(), 16, 64, 1);
  auto engine =
      std::move(Engine::Make({}, {}, &runner, arena.get(), &clock, &executor, nullptr)).value();
  engine->Start();
  const auto sink = std::make_shared<WaitingSink>(1);
  ASSERT_TRUE(engine->Submit(MakeRequest(1, 30000), sink).ok());
  (void)sink->WaitForTokens(1);
  engine->Drain(1);
  EXPECT_LT(sink->WaitForEnd().size(), 30000u);
  EXPECT_EQ(engine->stats().books.free + engine->stats().books.evictable, 4096);
}

TEST(EngineThread, StopWithWorkInEveryPlaceGivesEachAnEnd) {
  const SteadyClock clock;
  SerialExecutor executor;
  const auto arena = FakeArena(64, 8);
  FakeRunner runner(arena.get(), 16, 64, 1);
  EngineOptions options;
  options.max_num_seqs = 2;
  auto engine =
      std::move(Engine::Make(options, {}, &runner, arena.get(), &clock, &executor, nullptr))
          .value();
  engine->Start();
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (uint64_t id = 1; id <= 20; ++id) {
    sinks.push_back(std::make_shared<WaitingSink>(1));
    ASSERT_TRUE(engine->Submit(MakeRequest(id, 10000), sinks.back()).ok());
  }
  engine->Stop();
  for (const auto& sink : sinks) (void)sink->WaitForEnd();
  EXPECT_EQ(engine->stats().books.free + engine->stats().books.evictable, 64);
}

}  // namespace
}  // namespace kvasir
