// The rules of docs/scheduler.md by example: the plan of a step, admission, joining, ends.
// Preemption, orders and estimates: scheduler_order_test.cc.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "scheduler/test_rig.h"

namespace kvasir {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

SchedulerOptions Options(int32_t seqs, int32_t budget, int32_t max_len = 1000) {
  SchedulerOptions options;
  options.max_model_len = max_len;
  options.max_num_seqs = seqs;
  options.max_num_batched_tokens = budget;
  options.reserve_blocks = 0;
  options.growth_share = 0;
  return options;
}

KvCacheOptions Cache(int32_t blocks) {
  KvCacheOptions options;
  options.blocks = {blocks};
  options.host_slots = blocks;
  return options;
}

// Prompts of different ids share nothing; `like` shares its first `common` tokens with another's.
std::vector<TokenId> Tokens(uint64_t id, int32_t count, uint64_t like = 0, int32_t common = 0) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>((i < common ? like : id) * 10000) + i);
  }
  return tokens;
}

RigRequest Make(uint64_t id, int32_t prompt, int32_t max_tokens, int32_t choices = 1) {
  RigRequest request;
  request.id = id;
  request.prompt = Tokens(id, prompt);
  request.max_tokens = max_tokens;
  request.choices = choices;
  return request;
}

RigRequest Same(uint64_t id, const RigRequest& as) {
  RigRequest request = as;
  request.id = id;
  return request;
}

int64_t Held(SchedulerRig& rig) {
  const PoolBooks books = rig.cache().books();
  return books.total - books.free - books.evictable;
}

void ExpectOracle(const SchedulerRig& rig, uint64_t id, int32_t choice = 0) {
  const auto [said, end] = rig.Oracle(id, choice);
  EXPECT_EQ(rig.told.at({id, choice}), said);
  EXPECT_EQ(rig.ended.at({id, choice}), end);
}

TEST(Scheduler, PrefillInChunksThenDecode) {
  SchedulerRig rig(Cache(32), Options(4, 32));
  rig.Add(Make(1, 70, 3));
  for (const char* expected :
       {"1.0[0+32] ", "1.0[32+32] ", "1.0[64+6]! ", "1.0[70+1]! ", "1.0[71+1]! "}) {
    EXPECT_EQ(rig.Step(), expected);
  }
  ExpectOracle(rig, 1);
  EXPECT_TRUE(rig.scheduler().idle());
  EXPECT_EQ(Held(rig), 0);
  EXPECT_EQ(rig.scheduler().counts().prompt_tokens, 70u);
  EXPECT_EQ(rig.scheduler().counts().computed_prefill_tokens, 70u);
}

TEST(Scheduler, DecodesAreInEveryStepWhileALongPromptIsPrefilled) {
  SchedulerRig rig(Cache(200), Options(8, 32));
  rig.Add(Make(1, 4, 100));
  rig.Add(Make(2, 4, 100));
  rig.Step();
  rig.Add(Make(3, 500, 10));
  for (int step = 0; step < 16; ++step) {
    const std::string at = std::to_string(step * 30);
    EXPECT_EQ(rig.Step(), "1.0[" + std::to_string(4 + step) + "+1]! 2.0[" +
                              std::to_string(4 + step) + "+1]! 3.0[" + at + "+30] ");
  }
}

TEST(Scheduler, AShortPromptDoesNotWaitForAllChunksOfALongOne) {
  SchedulerRig rig(Cache(200), Options(8, 64));
  rig.Add(Make(1, 600, 10));
  rig.Step();
  for (uint64_t id = 2; id <= 4; ++id) rig.Add(Make(id, 8, 1));
  EXPECT_EQ(rig.Step(), "1.0[64+40] 2.0[0+8]! 3.0[0+8]! 4.0[0+8]! ");
  // With nobody short it has all rows again; of another long one it keeps the lead.
  rig.Add(Make(5, 300, 1));
  EXPECT_EQ(rig.Step(), "1.0[104+64] ");
}

TEST(Scheduler, HeadThatDoesNotFitIsNotOvertaken) {
  SchedulerRig rig(Cache(10), Options(8, 512));
  rig.Add(Make(1, 100, 50));  // 7 blocks
  rig.Step();
  rig.Add(Make(2, 100, 50));  // 7 blocks: waits
  rig.Add(Make(3, 5, 5));     // would fit
  EXPECT_EQ(rig.Step(), "1.0[100+1]! ");
  EXPECT_EQ(rig.scheduler().counts().waiting, 2);
  EXPECT_EQ(rig.scheduler().Cancel(RequestId(1)), std::vector<int32_t>{0});
  EXPECT_EQ(rig.Step(), "2.0[0+100]! 3.0[0+5]! ");
}

TEST(Scheduler, WatermarkIsKeptFreeUnlessNothingRuns) {
  SchedulerOptions options = Options(8, 512);
  options.reserve_blocks = 0.2;  // 2 blocks
  SchedulerRig rig(Cache(10), options);
  rig.Add(Make(1, 150, 9));  // all 10 blocks: alone it may
  EXPECT_EQ(rig.Step(), "1.0[0+150]! ");
  EXPECT_EQ(Held(rig), 10);
  rig.scheduler().Cancel(RequestId(1));
  rig.Add(Make(2, 16, 100));  // 1 block
  rig.Add(Make(3, 112, 9));   // 7 blocks, 2 stay
  rig.Add(Make(4, 1, 9));     // would leave 1: waits
  EXPECT_EQ(rig.Step(), "2.0[0+16]! 3.0[0+112]! ");
  EXPECT_EQ(rig.scheduler().counts().waiting, 1);
}

TEST(Scheduler, SeatsLimitWhoRunsAndNeverExceedTheBudget) {
  SchedulerRig rig(Cache(100), Options(8, 3));
  EXPECT_EQ(rig.scheduler().seats(), 3);
  for (uint64_t id = 1; id <= 5; ++id) rig.Add(Make(id, 1, 50));
  rig.Step();
  EXPECT_EQ(rig.Step(), "1.0[1+1]! 2.0[1+1]! 3.0[1+1]! ");
  EXPECT_EQ(rig.scheduler().counts().running, 3);
  EXPECT_EQ(rig.scheduler().counts().waiting, 2);
  EXPECT_FALSE(rig.scheduler().Admissible(4, 4).ok());
}

TEST(Scheduler, AloneInAnExhaustedPoolEndsWithLength) {
  SchedulerRig rig(Cache(2), Options(8, 512));
  rig.Add(Make(1, 31, 20));
  rig.Step();
  rig.Step();
  ScheduledBatch batch = rig.Plan();
  EXPECT_TRUE(batch.empty());
  ASSERT_EQ(batch.exhausted.size(), 1u);
  EXPECT_EQ(batch.exhausted[0], (ChoiceId{RequestId(1), 0}));
  EXPECT_TRUE(rig.scheduler().idle());
  EXPECT_EQ(Held(rig), 0);
}

TEST(Scheduler, ChoicesShareThePromptAndCopyItsTail) {
  SchedulerRig rig(Cache(20), Options(8, 512));
  rig.Add(Make(1, 40, 5, 3));
  ScheduledBatch first = rig.Plan();
  EXPECT_EQ(rig.scheduler().OpenChoices(first.items[0]), (std::vector<int32_t>{0, 1, 2}));
  rig.Run(first);
  rig.Commit(std::move(first));
  EXPECT_EQ(Held(rig), 3);  // the prompt stored once
  EXPECT_EQ(rig.scheduler().counts().running, 3);
  EXPECT_EQ(rig.Step(), "1.0[40+1]! 1.1[40+1]! 1.2[40+1]! ");
  EXPECT_EQ(Held(rig), 5);  // a last block each
  EXPECT_EQ(rig.scheduler().counts().prompt_tokens, 40u);
  EXPECT_TRUE(rig.scheduler().FinishChoice(RequestId(1), 1));
  EXPECT_FALSE(rig.scheduler().FinishChoice(RequestId(1), 1));
  while (!rig.Step().empty()) {
  }
  ExpectOracle(rig, 1, 0);
  ExpectOracle(rig, 1, 2);
  EXPECT_EQ(Held(rig), 0);
}

TEST(Scheduler, LeadComputesOnForTheOthersWhenChoiceZeroWasFinished) {
  SchedulerRig rig(Cache(20), Options(3, 20));
  rig.Add(Make(1, 40, 5, 3));
  rig.Step();
  EXPECT_TRUE(rig.scheduler().FinishChoice(RequestId(1), 0));
  rig.scheduler().CheckIntegrity();
  EXPECT_EQ(rig.scheduler().counts().free_seats, 1);
  rig.Step();
  EXPECT_EQ(rig.Step(), "1.1[40+1]! 1.2[40+1]! ");
}

TEST(Scheduler, QueueTimeoutAndDeadlineHitOnlyTheNeverAdmitted) {
  SchedulerOptions options = Options(8, 512);
  options.queue_timeout_ns = 60 * kSecond;
  SchedulerRig rig(Cache(4), options);
  rig.Add(Make(1, 60, 50));
  rig.Step();
  rig.now_ns = 10 * kSecond;
  rig.Add(Make(2, 60, 5));
  RigRequest urgent = Make(3, 60, 5);
  urgent.deadline_ns = 20 * kSecond;
  rig.Add(urgent);
  Scheduler& scheduler = rig.scheduler();
  EXPECT_TRUE(scheduler.Expire(20 * kSecond - 1).empty());
  auto expired = scheduler.Expire(20 * kSecond);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].request, RequestId(3));
  EXPECT_TRUE(expired[0].deadline);
  EXPECT_TRUE(scheduler.Expire(70 * kSecond - 1).empty());
  expired = scheduler.Expire(1000 * kSecond);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].request, RequestId(2));
  EXPECT_FALSE(expired[0].deadline);
  EXPECT_EQ(expired[0].waited_ns, 990 * kSecond);
  EXPECT_EQ(scheduler.counts().fresh, 0);
  EXPECT_EQ(scheduler.counts().running, 1);
}

TEST(Scheduler, WhatCanNeverFitIsRefusedWithTheNumbers) {
  SchedulerRig rig(Cache(32), Options(8, 512, 4096));  // 512 tokens (case B01)
  const Status refused = rig.scheduler().Admissible(600, 1);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.field(), "prompt");
  for (const char* number : {"600", "512", "4096", "38", "32"}) {
    EXPECT_NE(refused.message().find(number), std::string::npos) << refused.message();
  }
  EXPECT_TRUE(rig.scheduler().Admissible(512, 1).ok());
  EXPECT_FALSE(rig.scheduler().Admissible(0, 1).ok());
  EXPECT_FALSE(rig.scheduler().Admissible(1, 0).ok());
  SchedulerRig other(Cache(32), Options(8, 512, 256));
  EXPECT_FALSE(other.scheduler().Admissible(256, 1).ok());
  EXPECT_TRUE(other.scheduler().Admissible(255, 1).ok());
}

TEST(Scheduler, TheSmallestGroupDecidesWhatCanFit) {
  KvCacheOptions cache = Cache(32);
  cache.groups = {KvGroup{}, KvGroup{GroupRule::kWindow, 64, 0, 0}};
  cache.blocks = {32, 7};  // a window of 64 and chunks of 16: 7 blocks at most
  SchedulerRig rig(cache, Options(8, 16, 4096));
  EXPECT_TRUE(rig.scheduler().Admissible(512, 1).ok());
  SchedulerRig large(cache, Options(8, 128, 4096));  // a chunk of 128 does not fit beside
  const Status refused = large.scheduler().Admissible(400, 1);
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("group 1"), std::string::npos) << refused.message();
}

TEST(Scheduler, OutputIsClampedToTheContext) {
  SchedulerRig rig(Cache(32), Options(8, 512, 50));
  rig.Add(Make(1, 48, 100));
  rig.Step();
  EXPECT_TRUE(rig.ended.empty());
  rig.Step();
  EXPECT_EQ(rig.ended.at({1, 0}), ChoiceEnd::kLength);
}

TEST(Scheduler, AbortEndsWhatWasInTheBatchAndNothingElse) {
  SchedulerRig rig(Cache(32), Options(3, 64));
  rig.Add(Make(1, 10, 5));
  rig.Add(Make(2, 40, 5, 2));
  rig.Add(Make(3, 10, 5));
  const auto ended = rig.scheduler().Abort(rig.Plan());
  EXPECT_EQ(ended,
            (std::vector<ChoiceId>{{RequestId(1), 0}, {RequestId(2), 0}, {RequestId(2), 1}}));
  rig.scheduler().CheckIntegrity();
  EXPECT_EQ(Held(rig), 0);
  EXPECT_EQ(rig.Step(), "3.0[0+10]! ");
}

TEST(SchedulerDeathTest, ABatchMustEndInCommitOrAbort) {
  EXPECT_DEATH(
      {
        SchedulerRig rig(Cache(32), Options(3, 64));
        rig.Add(Make(1, 10, 5));
        { ScheduledBatch lost = rig.Plan(); }
      },
      "");
  SchedulerRig rig(Cache(32), Options(3, 64));
  rig.Add(Make(1, 10, 5));
  ScheduledBatch batch = rig.Plan();
  EXPECT_DEATH((void)rig.scheduler().Cancel(RequestId(1)), "");
  EXPECT_DEATH((void)rig.Plan(), "");
  (void)rig.scheduler().Abort(std::move(batch));
}

// ---- The cache

TEST(SchedulerCache, AFullyCachedPromptIsOneRow) {
  for (const int32_t size : {15, 16, 17, 31, 32, 33, 48, 64}) {
    SchedulerRig rig(Cache(32), Options(4, 512));
    rig.Add(Make(1, size, 1));
    rig.Step();
    rig.Add(Same(2, rig.request(1)));
    EXPECT_EQ(rig.Step(), "2.0[" + std::to_string(size - 1) + "+1]! ");
    EXPECT_EQ(rig.told[std::pair(2ul, 0)], rig.told[std::pair(1ul, 0)]);
    EXPECT_EQ(rig.scheduler().counts().found_tokens, static_cast<uint64_t>(size - 1));
  }
}

TEST(SchedulerCache, TheFirstAdmissionIsReported) {
  SchedulerRig rig(Cache(32), Options(4, 512));
  rig.Add(Make(1, 40, 1));
  EXPECT_FALSE(rig.scheduler().first_admission(RequestId(1)));
  rig.Step();
  RigRequest second = Make(2, 60, 2);
  second.prompt = Tokens(2, 60, 1, 37);  // ends within the third block
  rig.now_ns = 7;
  rig.Add(second);
  EXPECT_EQ(rig.Step(), "2.0[37+23]! ");
  const auto first = rig.scheduler().first_admission(RequestId(2));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->scheduled_ns, 7);
  EXPECT_EQ(first->cached_tokens, 37);
  EXPECT_EQ(first->reason, MissReason::kCold);
}

TEST(SchedulerCache, ASecondTurnHitsAllOfTheFirst) {
  SchedulerRig rig(Cache(32), Options(4, 512));
  rig.Add(Make(1, 20, 10));
  while (!rig.Step().empty()) {
  }
  RigRequest second = Make(2, 0, 3);
  second.prompt = Tokens(1, 20);
  const auto& said = rig.told.at({1, 0});
  second.prompt.insert(second.prompt.end(), said.begin(), said.end());
  second.prompt.push_back(77);
  rig.Add(second);
  // The last token was sampled but never run: 29 are there.
  EXPECT_EQ(rig.Step(), "2.0[29+2]! ");
}

TEST(SchedulerCache, ReadCacheFalseComputesThePromptOnce) {
  SchedulerRig rig(Cache(32), Options(4, 32));
  rig.Add(Make(1, 64, 1));
  while (!rig.Step().empty()) {
  }
  RigRequest second = Same(2, rig.request(1));
  second.read_cache = false;
  rig.Add(second);
  EXPECT_EQ(rig.Step(), "2.0[0+32] ");
  EXPECT_EQ(rig.Step(), "2.0[32+32]! ");
  EXPECT_EQ(rig.scheduler().counts().found_tokens, 0u);
}

TEST(SchedulerCache, SaltsShareNothing) {
  SchedulerRig rig(Cache(32), Options(4, 512));
  rig.Add(Make(1, 40, 1));
  rig.Step();
  RigRequest salted = Same(2, rig.request(1));
  salted.salt = "x";
  rig.Add(salted);
  EXPECT_EQ(rig.Step(), "2.0[0+40]! ");
}

TEST(SchedulerCache, TheNamespaceIsClosedWithTheRequest) {
  SchedulerRig rig(Cache(32), Options(4, 512));
  const int32_t number = rig.cache().OpenSpace("", "first");
  rig.cache().CloseSpace(number);
  RigRequest salted = Make(1, 40, 1);
  salted.salt = "second";
  rig.Add(salted);
  rig.scheduler().Cancel(RequestId(1));
  // Nothing was computed in it, so its number is given anew.
  EXPECT_EQ(rig.cache().OpenSpace("", "third"), number);
}

// ---- Joining

TEST(SchedulerJoin, EqualPromptsThatArriveTogetherAreComputedOnce) {
  SchedulerRig rig(Cache(64), Options(8, 32));
  for (uint64_t id = 1; id <= 4; ++id) rig.Add(Same(id, Make(1, 70, 2)));
  EXPECT_EQ(rig.Step(), "1.0[0+32] ");
  EXPECT_EQ(rig.Step(), "1.0[32+32] ");
  EXPECT_EQ(rig.Step(), "1.0[64+6]! ");
  EXPECT_EQ(rig.Step(), "1.0[70+1]! 2.0[69+1]! 3.0[69+1]! 4.0[69+1]! ");
  while (!rig.Step().empty()) {
  }
  for (uint64_t id = 1; id <= 4; ++id) ExpectOracle(rig, id);
  EXPECT_EQ(rig.scheduler().counts().computed_prefill_tokens, 73u);
}

TEST(SchedulerJoin, OthersPassTheOneThatWaits) {
  SchedulerRig rig(Cache(64), Options(8, 100));
  RigRequest second = Make(2, 60, 1);
  second.prompt = Tokens(2, 60, 1, 48);
  rig.Add(Make(1, 60, 1));
  rig.Add(second);
  rig.Add(Make(3, 8, 1));
  EXPECT_EQ(rig.Step(), "1.0[0+60]! 3.0[0+8]! ");
  EXPECT_EQ(rig.scheduler().counts().joining, 1);
  EXPECT_EQ(rig.Step(), "2.0[48+12]! ");
}

TEST(SchedulerJoin, LookAheadPastJoinersIsBounded) {
  SchedulerOptions options = Options(8, 100);
  options.join_lookahead = 1;
  SchedulerRig rig(Cache(64), options);
  for (uint64_t id = 1; id <= 3; ++id) rig.Add(Same(id, Make(1, 60, 1)));
  rig.Add(Make(4, 8, 1));
  EXPECT_EQ(rig.Step(), "1.0[0+60]! ");  // 2 is passed, 3 is not
  EXPECT_EQ(rig.Step(), "2.0[59+1]! 3.0[59+1]! 4.0[0+8]! ");
}

TEST(SchedulerJoin, ANothingToGainDoesNotWait) {
  SchedulerRig rig(Cache(64), Options(8, 100));
  rig.Add(Make(1, 60, 1));
  RigRequest second = Make(2, 30, 1);
  second.prompt = Tokens(2, 30, 1, 10);  // less than a block in common
  rig.Add(second);
  EXPECT_EQ(rig.Step(), "1.0[0+60]! 2.0[0+30]! ");
}

TEST(SchedulerJoin, TheNextTakesOverWhenTheFirstIsCancelled) {
  SchedulerRig rig(Cache(64), Options(8, 32));
  for (uint64_t id = 1; id <= 3; ++id) rig.Add(Same(id, Make(1, 70, 2)));
  EXPECT_EQ(rig.Step(), "1.0[0+32] ");
  rig.scheduler().Cancel(RequestId(1));
  EXPECT_EQ(rig.Step(), "2.0[32+32] ");  // what was computed is found
  EXPECT_EQ(rig.Step(), "2.0[64+6]! ");
  EXPECT_EQ(rig.Step(), "2.0[70+1]! 3.0[69+1]! ");
  while (!rig.Step().empty()) {
  }
  ExpectOracle(rig, 2);
  ExpectOracle(rig, 3);
}

TEST(SchedulerJoin, TheNextTakesOverWhenTheRunFails) {
  SchedulerRig rig(Cache(64), Options(8, 32));
  for (uint64_t id = 1; id <= 3; ++id) rig.Add(Same(id, Make(1, 70, 2)));
  (void)rig.scheduler().Abort(rig.Plan());
  rig.scheduler().CheckIntegrity();
  EXPECT_EQ(rig.Step(), "2.0[0+32] ");  // nothing of the failed run is believed
  while (!rig.Step().empty()) {
  }
  ExpectOracle(rig, 2);
  ExpectOracle(rig, 3);
}

TEST(SchedulerJoin, TheNextTakesOverWhenTheFirstIsPreempted) {
  SchedulerOptions options = Options(8, 16);
  options.preempt = PreemptMode::kRecompute;
  SchedulerRig rig(Cache(5), options);
  rig.Add(Make(1, 15, 30));
  EXPECT_EQ(rig.Step(), "1.0[0+15]! ");
  rig.Add(Make(2, 64, 1));  // 4 blocks: no more is left, and 1 needs one after its 16th token
  rig.Add(Same(3, Make(2, 64, 1)));
  EXPECT_EQ(rig.Step(), "1.0[15+1]! 2.0[0+15] ");
  EXPECT_EQ(rig.Step(), "1.0[16+1]! ");
  int steps = 0;
  while (!rig.Step().empty()) ASSERT_LT(++steps, 300);
  EXPECT_GT(rig.scheduler().counts().preemptions, 0u);
  for (uint64_t id = 1; id <= 3; ++id) ExpectOracle(rig, id);
}

}  // namespace
}  // namespace kvasir
