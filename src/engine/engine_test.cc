// The engine by example, on the runner that checks the bytes.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <thread>

#include "engine/fake_runner_test.h"
#include "engine/oracle_test.h"

namespace kvasir {
namespace {

using namespace testing_fake;  // NOLINT(google-build-using-namespace)

struct LastStats : StepObserver {
  void OnStep(const StepStats& s, const WorkerStats& w) override {
    step = s;
    stats = w;
    ++calls;
    EXPECT_TRUE(w.books.Balanced());
    EXPECT_GE(w.slots_allocated, w.slots_used);
    EXPECT_EQ(s.rows, s.prefill_rows + s.decode_rows);
  }
  StepStats step;
  WorkerStats stats;
  int calls = 0;
};

struct World {
  explicit World(int32_t blocks, EngineOptions options = {}, int block_tokens = 16,
                 int32_t context = 4096)
      : arena(FakeArena(blocks, block_tokens)), runner(arena.get(), 32, 512, 1) {
    WorkerInfo info;
    info.max_model_len = context;
    auto made = Engine::Make(options, info, &runner, arena.get(), &clock, &executor, &observer);
    KVASIR_CHECK(made.ok());
    engine = std::move(made).value();
  }
  static Request Make(uint64_t id, int32_t prompt, int32_t max_tokens) {
    Request request;
    request.id = RequestId(id);
    for (int32_t i = 0; i < prompt; ++i)
      request.prompt.push_back((i * 7 + static_cast<int32_t>(id)) % 32);
    request.sampling.max_tokens = max_tokens;
    request.sampling.seed = id;
    return request;
  }
  std::shared_ptr<RecordingSink> Send(const Request& request) {
    auto sink = std::make_shared<RecordingSink>(request.id, request.n);
    const Status status = engine->Submit(request, sink);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return sink;
  }
  void Step() {
    engine->Step();
    engine->CheckIntegrity();
  }
  void RunAll() {
    while (engine->Step()) engine->CheckIntegrity();
    const WorkerStats stats = engine->stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.waiting, 0);
    EXPECT_EQ(stats.books.free + stats.books.evictable, stats.books.total);
    EXPECT_LE(stats.slots_used, stats.slots_allocated);  // cached
  }
  ManualClock clock;
  SerialExecutor executor;
  LastStats observer;
  std::unique_ptr<CpuArena> arena;
  FakeRunner runner;
  std::unique_ptr<Engine> engine;
};

TEST(Engine, OneRequestGivesTheOraclesTokens) {
  World world(32);
  const Request request = World::Make(1, 50, 20);
  const auto sink = world.Send(request);
  EXPECT_EQ(world.engine->stats().waiting, 1);
  world.Step();
  EXPECT_EQ(world.engine->stats().running, 1);
  EXPECT_EQ(world.observer.step.prefill_rows, 50);
  world.RunAll();
  const OracleAnswer oracle = Oracle(request, 0, 32, 512, false);
  EXPECT_EQ(sink->choices[0].tokens, oracle.tokens);
  EXPECT_EQ(sink->choices[0].finish, FinishReason::kLength);
  EXPECT_EQ(sink->calls, 20);
  EXPECT_EQ(world.engine->stats().generation_tokens, 20u);
  EXPECT_EQ(world.engine->stats().prompt_tokens, 50u);
  EXPECT_FALSE(world.engine->Step());
}

// Case B01.
TEST(Engine, WhatCanNeverFitIsRefusedAtOnceAndTheGrowingOneEnds) {
  World world(32);
  const Status refused = world.engine->Submit(World::Make(1, 600, 5),
                                              std::make_shared<RecordingSink>(RequestId(1), 1));
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("512"), std::string::npos) << refused.message();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  const auto growing = world.Send(World::Make(2, 500, 200));
  for (uint64_t id = 3; id < 8; ++id) sinks.push_back(world.Send(World::Make(id, 20, 8)));
  world.RunAll();
  EXPECT_EQ(growing->choices[0].finish, FinishReason::kLength);
  EXPECT_EQ(growing->choices[0].tokens.size(), 12u);
  for (const auto& sink : sinks) EXPECT_EQ(sink->choices[0].tokens.size(), 8u);
}

// Case A08, in tokens: context 256.
TEST(Engine, TheEdgeOfTheContext) {
  for (const int32_t max_tokens : {0, 1, 10, 256}) {
    World world(64, {}, 16, 256);
    EXPECT_EQ(world.engine->info().max_model_len, 256);
    for (const int32_t prompt : {254, 255}) {
      const auto sink = world.Send(World::Make(static_cast<uint64_t>(prompt), prompt, max_tokens));
      world.RunAll();
      EXPECT_EQ(sink->choices[0].finish, FinishReason::kLength);
      EXPECT_EQ(sink->choices[0].tokens.size(),
                static_cast<size_t>(std::min(max_tokens, 256 - prompt)));
    }
    for (const int32_t prompt : {256, 257, 400}) {
      const Status refused = world.engine->Submit(World::Make(9, prompt, max_tokens),
                                                  std::make_shared<RecordingSink>(RequestId(9), 1));
      EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(refused.message().find("256"), std::string::npos);
      EXPECT_NE(refused.message().find(std::to_string(prompt)), std::string::npos);
    }
  }
}

// Case A09: the prompt is stored once, the choices differ, each ends by itself.
TEST(Engine, ChoicesShareThePromptAndDiffer) {
  World world(64);
  Request request = World::Make(7, 64, 24);
  request.n = 4;
  const auto sink = world.Send(request);
  world.Step();
  const WorkerStats stats = world.engine->stats();
  EXPECT_EQ(stats.running, 4);
  EXPECT_EQ(stats.books.total - stats.books.free, 4);
  EXPECT_EQ(stats.slots_used, 64);
  world.RunAll();
  EXPECT_EQ(world.engine->stats().prompt_tokens, 64u);
  EXPECT_EQ(world.engine->stats().computed_prefill_tokens, 64u);
  EXPECT_EQ(world.engine->stats().generation_tokens, 96u);
  for (int32_t c = 0; c < 4; ++c) {
    EXPECT_EQ(sink->choices[static_cast<size_t>(c)].tokens,
              Oracle(request, c, 32, 1024, false).tokens);
  }
  EXPECT_NE(sink->choices[0].tokens, sink->choices[1].tokens);
}

// Logits are computed for the rows that sample, never for the rest of a prompt.
TEST(Engine, OnlyRowsThatSampleAskForLogits) {
  EngineOptions options;
  options.max_num_batched_tokens = 16;
  World world(64, options);
  const auto first = world.Send(World::Make(1, 40, 5));
  world.Step();
  world.Step();
  EXPECT_EQ(world.runner.rows, 32);
  EXPECT_EQ(world.runner.logit_rows, 0);  // two chunks of a prompt that goes on
  const auto second = world.Send(World::Make(2, 50, 3));
  world.RunAll();
  EXPECT_EQ(world.runner.logit_rows, 5 + 3);
  EXPECT_EQ(world.runner.rows, 40 + 4 + 50 + 2);
  Request scored = World::Make(3, 30, 1);
  scored.sampling.prompt_logprobs = 0;
  const auto third = world.Send(scored);
  world.RunAll();
  EXPECT_EQ(world.runner.logit_rows, 5 + 3 + 29 + 1);  // unless their logprobs are asked for
}

TEST(Engine, PromptLogprobsComeOnceWithTheFirstEvent) {
  EngineOptions options;
  options.max_num_batched_tokens = 7;
  World world(64, options);
  Request request = World::Make(3, 40, 3);
  request.sampling.prompt_logprobs = 2;
  request.sampling.logprobs = 0;
  const auto sink = world.Send(request);
  Request only_prompt = World::Make(4, 30, 0);
  only_prompt.sampling.prompt_logprobs = 0;
  const auto nothing = world.Send(only_prompt);
  world.RunAll();
  ASSERT_NE(sink->prompt_logprobs, nullptr);
  ASSERT_EQ(sink->prompt_logprobs->size(), 39u);
  uint64_t history = kStartOfHistory;
  std::vector<float> logits(32);
  for (size_t i = 0; i < 39; ++i) {
    history = Extend(history, request.prompt[i]);
    FakeLogits(history, false, logits);
    EXPECT_TRUE(SameLogprobs((*sink->prompt_logprobs)[i],
                             ComputeLogprobs(logits, request.prompt[i + 1], 2)));
  }
  EXPECT_EQ(sink->choices[0].logprobs.size(), 3u);
  ASSERT_NE(nothing->prompt_logprobs, nullptr);
  EXPECT_EQ(nothing->prompt_logprobs->size(), 29u);
  EXPECT_EQ(nothing->choices[0].events, 1);
  EXPECT_TRUE(nothing->choices[0].tokens.empty());
  EXPECT_EQ(nothing->choices[0].finish, FinishReason::kLength);
}

// Cases B03, M02: abnormal ends give everything back within one step.
TEST(Engine, CancelInEveryStateReturnsTheBlocks) {
  EngineOptions options;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 16;
  World world(32, options);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  Request many = World::Make(1, 20, 50);
  many.n = 3;
  sinks.push_back(world.Send(many));                     // will be decoding
  sinks.push_back(world.Send(World::Make(2, 100, 50)));  // in mid-prefill
  sinks.push_back(world.Send(World::Make(3, 10, 50)));   // in the queue
  for (int i = 0; i < 4; ++i) world.Step();
  sinks.push_back(world.Send(World::Make(4, 10, 50)));                       // in the inbox
  for (uint64_t id = 1; id <= 5; ++id) world.engine->Cancel(RequestId(id));  // 5 is unknown
  world.engine->Cancel(RequestId(1));
  world.Step();
  const WorkerStats stats = world.engine->stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.books.free + stats.books.evictable, 32);
  EXPECT_EQ(world.observer.stats.running, 0);
  for (const auto& sink : sinks) {
    for (const auto& choice : sink->choices) EXPECT_EQ(choice.finish, FinishReason::kCancelled);
  }
  const Request after = World::Make(6, 30, 10);
  const auto sink = world.Send(after);
  world.RunAll();
  EXPECT_EQ(sink->choices[0].tokens, Oracle(after, 0, 32, 512, false).tokens);
}

TEST(Engine, FinishChoiceIsSilentAndLeavesTheOthers) {
  World world(32);
  Request request = World::Make(1, 20, 10);
  request.n = 2;
  const auto sink = world.Send(request);
  for (int i = 0; i < 3; ++i) world.Step();
  sink->choices[0].finished_by_us = true;
  world.engine->FinishChoice(RequestId(1), 0);
  world.engine->FinishChoice(RequestId(1), 7);
  world.engine->FinishChoice(RequestId(2), 0);
  world.RunAll();
  EXPECT_EQ(sink->choices[0].tokens.size(), 3u);
  EXPECT_EQ(sink->choices[1].tokens.size(), 10u);
}

TEST(Engine, AQueueHasALimitAndFreeSeatsDoNotCount) {
  EngineOptions options;
  options.max_num_seqs = 1;
  options.max_queue = 1;
  World world(32, options);
  const auto running = world.Send(World::Make(1, 5, 10));
  const auto waiting = world.Send(World::Make(2, 5, 10));
  const auto refuse = [&] {
    const Status status = world.engine->Submit(World::Make(3, 5, 10),
                                               std::make_shared<RecordingSink>(RequestId(3), 1));
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  };
  refuse();
  world.Step();
  refuse();
  world.engine->Cancel(RequestId(2));
  world.Step();
  (void)world.Send(World::Make(4, 5, 10));
  refuse();
  world.RunAll();
  EXPECT_EQ(running->choices[0].finish, FinishReason::kLength);
}

TEST(Engine, WaitingHasAnEnd) {
  EngineOptions options;
  options.max_num_seqs = 1;
  options.queue_timeout_s = 2;
  World world(32, options);
  (void)world.Send(World::Make(1, 5, 100));
  Request two = World::Make(2, 5, 10);
  const auto timed_out = world.Send(two);
  Request three = World::Make(3, 5, 10);
  three.deadline_ns = 1'000'000'000;
  const auto late = world.Send(three);
  world.Step();
  world.clock.Advance(1'000'000'000);
  world.Step();
  EXPECT_EQ(late->choices[0].error.code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(timed_out->Done());
  world.clock.Advance(1'000'000'000);
  world.Step();
  EXPECT_EQ(timed_out->choices[0].finish, FinishReason::kError);
  EXPECT_NE(timed_out->choices[0].error.message().find("2.0 s"), std::string::npos)
      << timed_out->choices[0].error.message();
  world.RunAll();
}

TEST(Engine, ARunThatFailsEndsItsSequencesAndTheEngineLives) {
  World world(32);
  world.runner.failure_rate = 1;
  const auto lost = world.Send(World::Make(1, 5, 10));
  world.Step();
  EXPECT_EQ(lost->choices[0].finish, FinishReason::kError);
  EXPECT_EQ(lost->choices[0].error.message(), "the fake runner failed");
  world.runner.failure_rate = 0;
  const auto fine = world.Send(World::Make(2, 5, 10));
  world.RunAll();
  EXPECT_EQ(fine->choices[0].finish, FinishReason::kLength);
}

TEST(Engine, BadValuesAreRefusedAndNothingFollows) {
  World world(32);
  const auto refuse = [&](const std::string& field, auto change) {
    Request request = World::Make(1, 5, 5);
    change(request);
    const auto sink = std::make_shared<RecordingSink>(RequestId(1), 1);
    const Status status = world.engine->Submit(request, sink);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.field(), field) << status.ToString();
    world.RunAll();
    EXPECT_EQ(sink->calls, 0);
  };
  refuse("prompt", [](Request& r) { r.prompt.clear(); });
  refuse("prompt", [](Request& r) { r.prompt[2] = 32; });
  refuse("prompt", [](Request& r) { r.prompt[2] = -1; });
  refuse("n", [](Request& r) { r.n = 0; });
  refuse("n", [](Request& r) { r.n = -1; });
  refuse("n", [](Request& r) { r.n = 257; });
  refuse("temperature", [](Request& r) { r.sampling.temperature = -1; });
  (void)world.Send(World::Make(1, 5, 5));
  refuse("request_id", [](Request&) {});
}

TEST(Engine, OptionsNameTheirFlag) {
  const auto refused = [](const std::string& flag, auto change) {
    EngineOptions options;
    change(options);
    EXPECT_EQ(options.Validate().field(), flag);
  };
  EXPECT_TRUE(EngineOptions().Validate().ok());
  refused("--max-model-len", [](EngineOptions& o) { o.max_model_len = -1; });
  refused("--max-num-seqs", [](EngineOptions& o) { o.max_num_seqs = 0; });
  refused("--max-num-batched-tokens", [](EngineOptions& o) { o.max_num_batched_tokens = -1; });
  refused("--max-queue", [](EngineOptions& o) { o.max_queue = -1; });
  refused("--queue-timeout", [](EngineOptions& o) { o.queue_timeout_s = 0; });
  refused("--reserve-blocks", [](EngineOptions& o) { o.reserve_blocks = 1; });
}

TEST(Engine, DrainFinishesWhatRunsAndRefusesTheRest) {
  World world(32);
  const auto sink = world.Send(World::Make(1, 5, 10));
  world.engine->Drain(60'000'000'000);
  EXPECT_EQ(sink->choices[0].finish, FinishReason::kLength);
  EXPECT_EQ(world.engine->Submit(World::Make(2, 5, 10), sink).code(), StatusCode::kUnavailable);
  World other(32);
  const auto cut = other.Send(World::Make(1, 5, 400));
  other.engine->Drain(0);
  EXPECT_EQ(cut->choices[0].finish, FinishReason::kCancelled);
  World stopped(32);
  const auto unfinished = stopped.Send(World::Make(1, 5, 400));
  stopped.Step();
  const auto in_inbox = stopped.Send(World::Make(2, 5, 400));
  stopped.engine->Stop();
  EXPECT_EQ(unfinished->choices[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(in_inbox->choices[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(stopped.engine->stats().books.free + stopped.engine->stats().books.evictable, 32);
}

}  // namespace
}  // namespace kvasir
