// The rules of docs/scheduler.md by example: preemption, orders and ageing, estimates of output.
// cost_model_test.cc has what is learnt about time.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "scheduler/test_rig.h"

namespace kvasir {
namespace {

constexpr int64_t kSecond = 1'000'000'000, kMilli = 1'000'000;

SchedulerOptions Options(int32_t seqs, int32_t budget, PreemptMode mode = PreemptMode::kRecompute) {
  SchedulerOptions options;
  options.max_model_len = 1000;
  options.max_num_seqs = seqs;
  options.max_num_batched_tokens = budget;
  options.reserve_blocks = 0;
  options.growth_share = 0;
  options.preempt = mode;
  return options;
}

KvCacheOptions Cache(int32_t blocks, int32_t host_slots = 0) {
  KvCacheOptions options;
  options.blocks = {blocks};
  options.host_slots = host_slots;
  return options;
}

RigRequest Make(uint64_t id, int32_t prompt, int32_t max_tokens, int32_t priority = 0) {
  RigRequest request;
  request.id = id;
  for (int32_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<TokenId>(id * 10000) + i);
  }
  request.max_tokens = max_tokens;
  request.priority = priority;
  return request;
}

// Runs to the end; everybody said what the oracle says.
void Finish(SchedulerRig& rig, std::vector<uint64_t> ids) {
  for (int steps = 0; !rig.scheduler().idle(); ++steps) {
    ASSERT_LT(steps, 2000);
    rig.Step();
  }
  for (const uint64_t id : ids) {
    const auto [said, end] = rig.Oracle(id, 0);
    EXPECT_EQ(rig.told.at({id, 0}), said) << id;
    EXPECT_EQ(rig.ended.at({id, 0}), end) << id;
  }
  EXPECT_EQ(rig.cache().books().pinned + rig.cache().books().filling, 0);
  EXPECT_EQ(rig.cache().free_host_slots(), rig.host_slots());
}

StepCost Cost(int32_t prefill, int32_t decode, int64_t ns) {
  StepCost cost;
  cost.prefill_rows = prefill;
  cost.decode_rows = decode;
  cost.run_ns = ns;
  return cost;
}

// ---- Preemption

TEST(SchedulerPreempt, ALaterOneGoesAndComesBackToItsPlace) {
  SchedulerRig rig(Cache(4), Options(8, 512));
  rig.Add(Make(1, 32, 20));
  rig.Add(Make(2, 30, 20));
  rig.Step();  // both have two blocks; 1 needs a third now
  EXPECT_EQ(rig.Step(), "1.0[32+1]! ");
  EXPECT_EQ(rig.scheduler().counts().preemptions, 1u);
  rig.Add(Make(3, 1, 1));
  // 2 (31 tokens, two blocks) does not fit beside 1 with its three; 3 stays behind it.
  EXPECT_EQ(rig.scheduler().counts().waiting, 2);
  for (int i = 0; i < 18; ++i) EXPECT_EQ(rig.Step().substr(0, 4), "1.0[");
  const std::string resumed = rig.Step();
  EXPECT_EQ(resumed.substr(0, 4), "2.0[");
  EXPECT_NE(resumed.find("3.0[0+1]"), std::string::npos);
  Finish(rig, {1, 2, 3});
}

TEST(SchedulerPreempt, TheVictimIsWhoLosesLeast) {
  SchedulerRig rig(Cache(9), Options(8, 512));
  rig.Add(Make(1, 47, 20));  // 3 blocks, needs a fourth after one token more
  rig.Add(Make(2, 20, 20));  // 2 blocks, 20 tokens: the least
  rig.Add(Make(3, 60, 20));  // 4 blocks: the pool is full
  EXPECT_EQ(rig.Step(), "1.0[0+47]! 2.0[0+20]! 3.0[0+60]! ");
  EXPECT_EQ(rig.Step(), "1.0[47+1]! 2.0[20+1]! 3.0[60+1]! ");
  EXPECT_EQ(rig.Step(), "1.0[48+1]! 3.0[61+1]! ");
  Finish(rig, {1, 2, 3});
}

TEST(SchedulerPreempt, WhatOthersHoldIsNotLost) {
  SchedulerRig rig(Cache(10), Options(8, 512));
  rig.Add(Make(1, 47, 20));           // 3 blocks
  rig.Add(Make(2, 60, 9));            // 4 blocks
  RigRequest third = Make(3, 60, 9);  // shares three of them: one of its own, 12 tokens in it
  std::copy_n(rig.request(2).prompt.begin(), 48, third.prompt.begin());
  rig.Add(third);
  rig.Add(Make(4, 20, 9));  // 2 blocks, 20 tokens
  EXPECT_EQ(rig.Step(), "1.0[0+47]! 2.0[0+60]! 4.0[0+20]! ");
  EXPECT_EQ(rig.Step(), "1.0[47+1]! 2.0[60+1]! 4.0[20+1]! 3.0[48+12]! ");
  EXPECT_EQ(rig.Step(), "1.0[48+1]! 2.0[61+1]! 4.0[21+1]! ");
  Finish(rig, {1, 2, 3, 4});
}

TEST(SchedulerPreempt, TheLastGoesItselfAndTheFirstNever) {
  SchedulerRig rig(Cache(4), Options(8, 512));
  rig.Add(Make(1, 30, 30));
  rig.Add(Make(2, 32, 30));  // needs its third block first, has nobody behind it
  rig.Step();
  EXPECT_EQ(rig.Step(), "1.0[30+1]! ");
  EXPECT_EQ(rig.scheduler().counts().preemptions, 1u);
  Finish(rig, {1, 2});
}

TEST(SchedulerPreempt, SwapComesBackWithoutComputingAnything) {
  SchedulerRig rig(Cache(4, 4), Options(8, 512, PreemptMode::kSwap));
  rig.Add(Make(1, 32, 20));
  rig.Add(Make(2, 30, 20));
  rig.Step();
  ScheduledBatch batch = rig.Plan();
  ASSERT_EQ(batch.preempted, 1);
  int swaps = 0;
  for (const BlockMove& move : batch.moves) swaps += move.kind == BlockMove::Kind::kSwapOut;
  EXPECT_EQ(swaps, 2);
  rig.Run(batch);
  rig.Commit(std::move(batch));
  EXPECT_EQ(rig.cache().free_host_slots(), 2);
  std::string step;
  while ((step = rig.Step()).find("2.0") == std::string::npos) ASSERT_FALSE(step.empty());
  EXPECT_EQ(step, "2.0[30+1]! ");
  EXPECT_EQ(rig.scheduler().counts().preemptions_swap, 1u);
  EXPECT_EQ(rig.scheduler().counts().computed_prefill_tokens, 62u);
  Finish(rig, {1, 2});
}

TEST(SchedulerPreempt, WithoutHostSlotsItIsRecompute) {
  SchedulerRig rig(Cache(4, 1), Options(8, 512, PreemptMode::kSwap));
  rig.Add(Make(1, 32, 20));
  rig.Add(Make(2, 30, 20));
  Finish(rig, {1, 2});
  EXPECT_EQ(rig.scheduler().counts().preemptions, 1u);
  EXPECT_EQ(rig.scheduler().counts().preemptions_swap, 0u);
}

TEST(SchedulerPreempt, AutoTakesTheCheaperByMeasuredCost) {
  for (const bool swap_is_cheap : {true, false}) {
    SchedulerRig rig(Cache(4, 4), Options(8, 512, PreemptMode::kAuto));
    StepCost cost = Cost(100, 0, 100 * 1000);  // 1 us a row: 30 us to compute again
    cost.moved_blocks = 1;
    cost.move_ns = swap_is_cheap ? 5'000 : 10'000;  // two blocks out and in
    rig.scheduler().Observe(cost);
    rig.Add(Make(1, 32, 20));
    rig.Add(Make(2, 30, 20));
    Finish(rig, {1, 2});
    EXPECT_EQ(rig.scheduler().counts().preemptions, 1u);
    EXPECT_EQ(rig.scheduler().counts().preemptions_swap, swap_is_cheap ? 1u : 0u);
  }
}

TEST(SchedulerPreempt, ASwappedOneMayBeCancelled) {
  SchedulerRig rig(Cache(4, 4), Options(8, 512, PreemptMode::kSwap));
  rig.Add(Make(1, 32, 20));
  rig.Add(Make(2, 30, 20));
  rig.Step();
  rig.Step();
  EXPECT_EQ(rig.cache().free_host_slots(), 2);
  EXPECT_EQ(rig.scheduler().Cancel(RequestId(2)), std::vector<int32_t>{0});
  rig.scheduler().CheckIntegrity();
  Finish(rig, {1});
}

// ---- Orders

TEST(SchedulerOrder, PriorityComesFirstAndAgeMakesUpForIt) {
  SchedulerOptions options = Options(1, 512);
  options.policy = SchedulingPolicy::kPriority;
  SchedulerRig rig(Cache(64), options);
  rig.Add(Make(1, 4, 3, -100));  // holds the only seat
  rig.Step();
  rig.Add(Make(2, 4, 1, 2));  // worth 60 s of waiting
  rig.Add(Make(3, 4, 1, 1));
  rig.now_ns = 29 * kSecond;
  rig.Add(Make(4, 4, 1, 1));  // later than 3 by 29 s, but before 2
  rig.now_ns = 31 * kSecond;
  rig.Add(Make(5, 4, 1, 1));  // 2 has waited longer than its step
  std::string order;
  while (!rig.scheduler().idle()) order += rig.Step();
  EXPECT_EQ(order, "1.0[4+1]! 1.0[5+1]! 3.0[0+4]! 4.0[0+4]! 2.0[0+4]! 5.0[0+4]! ");
}

TEST(SchedulerOrder, NobodyStarvesBehindAStreamOfUrgentOnes) {
  SchedulerOptions options = Options(1, 512);
  options.policy = SchedulingPolicy::kPriority;
  SchedulerRig rig(Cache(64), options);
  rig.Add(Make(1, 4, 2, 3));
  int64_t done_at = -1;
  for (uint64_t id = 2; id < 200 && done_at < 0; ++id) {
    rig.Add(Make(id, 4, 1, 0));
    rig.now_ns += kSecond;
    rig.Step();
    if (rig.ended.contains({1, 0})) done_at = rig.now_ns;
  }
  EXPECT_GE(done_at, 90 * kSecond);
  EXPECT_LE(done_at, 95 * kSecond);
}

TEST(SchedulerOrder, AnUrgentOnePreemptsForASeatOnceAndWithoutPingPong) {
  for (const PreemptMode mode : {PreemptMode::kRecompute, PreemptMode::kSwap}) {
    SchedulerOptions options = Options(2, 512, mode);
    options.policy = SchedulingPolicy::kPriority;
    SchedulerRig rig(Cache(64, 64), options);
    rig.Add(Make(1, 40, 30, 1));
    rig.Add(Make(2, 20, 30, 1));
    rig.Step();
    rig.Add(Make(3, 8, 5, 0));
    EXPECT_EQ(rig.Step(), "1.0[40+1]! 3.0[0+8]! ");  // 2 loses less
    for (int i = 0; i < 4; ++i) EXPECT_EQ(rig.Step().substr(0, 4), "3.0[");
    EXPECT_EQ(rig.Step(), "1.0[45+1]! 2.0[20+1]! ");  // found again, whichever way
    Finish(rig, {1, 2, 3});
    EXPECT_EQ(rig.scheduler().counts().preemptions, 1u);
    EXPECT_EQ(rig.scheduler().counts().preemptions_priority, 1u);
  }
}

TEST(SchedulerOrder, AnUrgentOnePreemptsForBlocks) {
  SchedulerOptions options = Options(8, 512);
  options.policy = SchedulingPolicy::kPriority;
  SchedulerRig rig(Cache(8), options);
  rig.Add(Make(1, 50, 9, 1));  // 4 blocks
  rig.Add(Make(2, 40, 9, 1));  // 3
  rig.Step();
  rig.Add(Make(3, 60, 9, 1));  // of the same priority: waits
  EXPECT_EQ(rig.Step(), "1.0[50+1]! 2.0[40+1]! ");
  rig.Add(Make(4, 60, 9, 0));  // 4 blocks: 2 goes
  EXPECT_EQ(rig.Step(), "1.0[51+1]! 4.0[0+60]! ");
  Finish(rig, {1, 2, 3, 4});
}

TEST(SchedulerOrder, RowsGoToTheUrgentOneToo) {
  SchedulerOptions options = Options(8, 64);
  options.policy = SchedulingPolicy::kPriority;
  SchedulerRig rig(Cache(100), options);
  rig.Add(Make(1, 600, 1, 1));
  rig.Step();
  rig.Add(Make(2, 200, 1, 1));  // later by rank and long itself: waits for the rest of 1
  EXPECT_EQ(rig.Step(), "1.0[64+64] ");
  rig.Add(Make(3, 100, 1, 0));
  EXPECT_EQ(rig.Step(), "1.0[128+16] 3.0[0+48] ");
  EXPECT_EQ(rig.Step(), "3.0[48+52]! 1.0[144+12] ");
  EXPECT_EQ(rig.Step(), "1.0[156+64] ");
  Finish(rig, {1, 2, 3});
}

// What needs little does not wait for all chunks of a long one, at any size of a step.
TEST(SchedulerOrder, AShortPromptGetsHalfOfTheRowsBesideALongOne) {
  for (const int32_t budget : {16, 64, 128}) {
    SCOPED_TRACE(budget);
    SchedulerRig rig(Cache(400), Options(8, budget));
    rig.Add(Make(1, 900, 1));
    rig.Step();
    rig.Add(Make(2, 60, 2));
    int steps = 0;
    while (rig.scheduler().first_admission(RequestId(2)) == std::nullopt && ++steps < 3) rig.Step();
    EXPECT_LE(steps, 1) << "it comes in at once";
    while (rig.scheduler().first_admission(RequestId(2)) && ++steps < 100) rig.Step();
    EXPECT_LE(steps, 2 + 60 / (budget / 2)) << "and is done with half of the rows";
    Finish(rig, {1, 2});
  }
}

TEST(SchedulerOrder, EqualPriorityNeverPreempts) {
  SchedulerOptions options = Options(2, 100);
  options.policy = SchedulingPolicy::kPriority;
  SchedulerRig rig(Cache(64), options);
  rig.Add(Make(1, 60, 9));
  RigRequest same = Make(2, 60, 9);
  same.prompt = rig.request(1).prompt;
  rig.Add(same);            // waits for the tokens of 1
  rig.Add(Make(3, 8, 20));  // passes it and takes the last seat
  EXPECT_EQ(rig.Step(), "1.0[0+60]! 3.0[0+8]! ");
  // 2 stands before 3 in rank and finds no seat.
  for (int i = 0; i < 8; ++i) EXPECT_EQ(rig.Step().substr(0, 4), "1.0[");
  Finish(rig, {1, 2, 3});
  EXPECT_EQ(rig.scheduler().counts().preemptions, 0u);
}

TEST(SchedulerOrder, WhoWaitsForTokensPreemptsNobodyTwice) {
  SchedulerOptions options = Options(2, 32);
  options.policy = SchedulingPolicy::kPriority;
  SchedulerRig rig(Cache(64), options);
  rig.Add(Make(2, 20, 40, 1));
  rig.Add(Make(1, 160, 1, 1));
  EXPECT_EQ(rig.Step(), "2.0[0+20]! 1.0[0+12] ");
  EXPECT_EQ(rig.Step(), "2.0[20+1]! 1.0[12+31] ");
  RigRequest urgent = Make(3, 160, 1, 0);
  urgent.prompt = rig.request(1).prompt;
  rig.Add(urgent);
  // It takes the seat of 2, then sees that 1 is at its tokens. 2 does not come back at once.
  EXPECT_EQ(rig.Step(), "1.0[43+16] ");
  EXPECT_NE(rig.Step().find("2.0["), std::string::npos);
  Finish(rig, {1, 2, 3});
  EXPECT_EQ(rig.scheduler().counts().preemptions, 1u);
}

TEST(SchedulerOrder, PrefixPutsCachedPromptsFirstWithinABound) {
  SchedulerOptions options = Options(1, 512);
  options.policy = SchedulingPolicy::kPrefix;
  SchedulerRig rig(Cache(64), options);
  rig.Add(Make(1, 100, 1));
  rig.Step();
  rig.Add(Make(2, 8, 4));
  rig.Step();  // holds the seat
  rig.Add(Make(3, 50, 1));
  RigRequest cached = Make(4, 0, 1);
  cached.prompt = rig.request(1).prompt;  // 99 tokens there: worth 99 ms
  rig.now_ns = 50 * kMilli;
  rig.Add(cached);
  cached.id = 5;
  rig.now_ns = 120 * kMilli;
  rig.Add(cached);  // too late to pass 3
  std::string order;
  while (!rig.scheduler().idle()) order += rig.Step();
  EXPECT_EQ(order.substr(order.find("4.0")), "4.0[99+1]! 3.0[0+50]! 5.0[99+1]! ");
}

TEST(SchedulerOrder, PrefixLooksUpAgainWhatWaits) {
  SchedulerOptions options = Options(1, 512);
  options.policy = SchedulingPolicy::kPrefix;
  SchedulerRig rig(Cache(64), options);
  rig.Add(Make(1, 100, 4));
  rig.Add(Make(2, 60, 1));
  RigRequest like = Make(3, 0, 1);
  like.prompt = rig.request(1).prompt;  // nothing of it is cached yet
  rig.Add(like);
  std::string order;
  while (!rig.scheduler().idle()) order += rig.Step();
  EXPECT_NE(order.find("3.0[99+1]! 2.0[0+60]! "), std::string::npos) << order;
}

// ---- Estimates

TEST(SchedulerEstimate, RoomForExpectedOutputIsKept) {
  SchedulerOptions options = Options(8, 512);
  options.growth_share = 1;
  SchedulerRig rig(Cache(20), options);
  rig.Add(Make(1, 16, 65));
  while (!rig.scheduler().idle()) rig.Step();
  EXPECT_EQ(rig.scheduler().counts().expected_output, 65);
  // Each is expected to grow from 1 block to 6 (16 + 65 tokens): three fit into 20, a fourth not.
  for (uint64_t id = 2; id <= 5; ++id) rig.Add(Make(id, 16, 1000));
  EXPECT_EQ(rig.Step(), "2.0[0+16]! 3.0[0+16]! 4.0[0+16]! ");
  // Who may say little is expected to say little.
  rig.scheduler().Cancel(RequestId(5));
  rig.Add(Make(6, 16, 2));
  EXPECT_NE(rig.Step().find("6.0[0+16]!"), std::string::npos);
}

TEST(SchedulerEstimate, OutputIsADecayingMeanOfWhatFinished) {
  OutputEstimate estimate;
  EXPECT_EQ(estimate.Remaining(0, 100), 0);
  for (int i = 0; i < 200; ++i) estimate.Finished(50);
  EXPECT_EQ(estimate.Remaining(0, 100), 50);
  EXPECT_EQ(estimate.Remaining(20, 100), 30);
  EXPECT_EQ(estimate.Remaining(20, 40), 20);
  EXPECT_EQ(estimate.Remaining(70, 100), 0);
  for (int i = 0; i < 400; ++i) estimate.Finished(10);
  EXPECT_LT(estimate.mean(), 11);
}

TEST(SchedulerEstimate, RetryAfterIsThePaceOfAdmissions) {
  SchedulerRig rig(Cache(64), Options(1, 512));
  EXPECT_EQ(rig.scheduler().counts().retry_after_s, 1);
  for (uint64_t id = 1; id <= 20; ++id) rig.Add(Make(id, 4, 4));
  while (rig.scheduler().counts().fresh > 2) {
    rig.Step();
    rig.now_ns += 2 * kSecond;  // four steps each
  }
  EXPECT_NEAR(rig.scheduler().counts().retry_after_s, 8, 0.5);
  // Somebody holds the seat for a long time: the estimate grows with it.
  rig.now_ns += 100 * kSecond;
  rig.Step();
  EXPECT_GT(rig.scheduler().counts().retry_after_s, 50);
}

}  // namespace
}  // namespace kvasir
