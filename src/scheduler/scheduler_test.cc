// The rules of scheduler.h by example. Tokens are made up: the scheduler never looks at what they
// are.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvasir {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

SchedulerOptions Options(int32_t seqs, int32_t budget, int32_t max_len = 1000) {
  SchedulerOptions options;
  options.block_tokens = 16;
  options.max_model_len = max_len;
  options.max_num_seqs = seqs;
  options.max_num_batched_tokens = budget;
  options.reserve_blocks = 0;
  return options;
}

NewRequest Make(uint64_t id, int32_t prompt, int32_t max_tokens, int32_t choices = 1) {
  NewRequest request;
  request.id = RequestId(id);
  request.prompt.assign(static_cast<size_t>(prompt), static_cast<TokenId>(id));
  request.max_tokens = max_tokens;
  request.choices = choices;
  return request;
}

// Commits the batch with token 7 for every choice.
std::vector<ChoiceEnd> CommitAll(Scheduler& scheduler, ScheduledBatch batch) {
  std::vector<ChoiceOutcome> outcomes;
  for (size_t i = 0; i < batch.items.size(); ++i) {
    if (!batch.items[i].samples) continue;
    for (const int32_t choice : scheduler.OpenChoices(batch.items[i])) {
      ChoiceOutcome outcome;
      outcome.item = static_cast<int32_t>(i);
      outcome.choice = choice;
      outcome.token = 7;
      outcomes.push_back(outcome);
    }
  }
  auto ends = scheduler.Commit(std::move(batch), outcomes);
  scheduler.CheckIntegrity();
  return ends;
}

std::string Describe(const ScheduledBatch& batch) {
  std::string text;
  for (const ScheduledItem& item : batch.items) {
    text += std::to_string(item.sequence->request.value) + "." +
            std::to_string(item.sequence->key.choice) + "[" + std::to_string(item.first) + "+" +
            std::to_string(item.count) + "]" + (item.samples ? "!" : "") + " ";
  }
  return text;
}

TEST(Scheduler, PrefillInChunksThenDecode) {
  BlockPool pool(32);
  Scheduler scheduler(Options(4, 32), &pool);
  scheduler.Add(Make(1, 70, 3), 0);
  for (const char* expected : {"1.0[0+32] ", "1.0[32+32] ", "1.0[64+6]! ", "1.0[70+1]! "}) {
    ScheduledBatch batch = scheduler.Plan(0);
    EXPECT_EQ(Describe(batch), expected);
    CommitAll(scheduler, std::move(batch));
  }
  ScheduledBatch last = scheduler.Plan(0);
  EXPECT_EQ(Describe(last), "1.0[71+1]! ");
  EXPECT_EQ(CommitAll(scheduler, std::move(last)), std::vector<ChoiceEnd>{ChoiceEnd::kLength});
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(pool.free_blocks(), 32);
  EXPECT_EQ(scheduler.counts().prompt_tokens, 70u);
  EXPECT_EQ(scheduler.counts().computed_prefill_tokens, 70u);
}

TEST(Scheduler, DecodesAreInEveryStepWhileALongPromptIsPrefilled) {
  BlockPool pool(200);
  Scheduler scheduler(Options(8, 32), &pool);
  scheduler.Add(Make(1, 4, 100), 0);
  scheduler.Add(Make(2, 4, 100), 0);
  CommitAll(scheduler, scheduler.Plan(0));
  scheduler.Add(Make(3, 500, 10), 0);
  for (int step = 0; step < 16; ++step) {
    ScheduledBatch batch = scheduler.Plan(0);
    ASSERT_GE(batch.items.size(), 3u);
    EXPECT_EQ(batch.items[0].sequence->request.value, 1u);
    EXPECT_EQ(batch.items[1].sequence->request.value, 2u);
    EXPECT_EQ(batch.items[2].count, 30);
    CommitAll(scheduler, std::move(batch));
  }
}

TEST(Scheduler, HeadThatDoesNotFitIsNotOvertaken) {
  BlockPool pool(10);
  Scheduler scheduler(Options(8, 512), &pool);
  scheduler.Add(Make(1, 100, 50), 0);  // 7 blocks
  CommitAll(scheduler, scheduler.Plan(0));
  scheduler.Add(Make(2, 100, 50), 0);  // 7 blocks: waits
  scheduler.Add(Make(3, 5, 5), 0);     // would fit
  ScheduledBatch batch = scheduler.Plan(0);
  EXPECT_EQ(Describe(batch), "1.0[100+1]! ");
  EXPECT_EQ(scheduler.counts().waiting, 2);
  CommitAll(scheduler, std::move(batch));
  EXPECT_EQ(scheduler.Cancel(RequestId(1)), std::vector<int32_t>{0});
  ScheduledBatch next = scheduler.Plan(0);
  EXPECT_EQ(Describe(next), "2.0[0+100]! 3.0[0+5]! ");
  CommitAll(scheduler, std::move(next));
}

TEST(Scheduler, WatermarkIsKeptFreeUnlessNothingRuns) {
  BlockPool pool(10);
  SchedulerOptions options = Options(8, 512);
  options.reserve_blocks = 0.2;  // 2 blocks
  Scheduler scheduler(options, &pool);
  scheduler.Add(Make(1, 150, 9), 0);  // all 10 blocks: alone it may
  CommitAll(scheduler, scheduler.Plan(0));
  EXPECT_EQ(pool.free_blocks(), 0);
  scheduler.Cancel(RequestId(1));
  scheduler.Add(Make(2, 16, 100), 0);  // 1 block
  scheduler.Add(Make(3, 112, 9), 0);   // 7 blocks, 2 stay
  scheduler.Add(Make(4, 1, 9), 0);     // would leave 1: waits
  ScheduledBatch batch = scheduler.Plan(0);
  EXPECT_EQ(batch.items.size(), 2u);
  CommitAll(scheduler, std::move(batch));
  EXPECT_EQ(scheduler.counts().waiting, 1);
}

TEST(Scheduler, SeatsLimitWhoRunsAndNeverExceedTheBudget) {
  BlockPool pool(100);
  Scheduler scheduler(Options(8, 3), &pool);
  EXPECT_EQ(scheduler.seats(), 3);
  for (uint64_t id = 1; id <= 5; ++id) scheduler.Add(Make(id, 1, 50), 0);
  CommitAll(scheduler, scheduler.Plan(0));
  ScheduledBatch batch = scheduler.Plan(0);
  EXPECT_EQ(batch.items.size(), 3u);
  CommitAll(scheduler, std::move(batch));
  EXPECT_EQ(scheduler.counts().running, 3);
  EXPECT_EQ(scheduler.counts().waiting, 2);
  EXPECT_FALSE(scheduler.Admissible(4, 4).ok());
}

TEST(Scheduler, PreemptsTheLatestAndItContinuesLater) {
  BlockPool pool(4);
  Scheduler scheduler(Options(8, 512), &pool);
  scheduler.Add(Make(1, 32, 20), 0);
  scheduler.Add(Make(2, 30, 20), 0);
  CommitAll(scheduler, scheduler.Plan(0));  // both have two blocks; 1 needs a third now
  ScheduledBatch batch = scheduler.Plan(0);
  EXPECT_EQ(batch.preempted, 1);
  EXPECT_EQ(Describe(batch), "1.0[32+1]! ");
  CommitAll(scheduler, std::move(batch));
  scheduler.Add(Make(3, 1, 1), 0);
  // 2 (31 tokens now, two blocks) does not fit beside 1 with its three; 3 stays behind it.
  EXPECT_EQ(scheduler.counts().waiting, 2);
  for (int i = 0; i < 18; ++i) {
    ScheduledBatch step = scheduler.Plan(0);
    EXPECT_EQ(step.items.size(), 1u);
    CommitAll(scheduler, std::move(step));
  }
  ScheduledBatch resumed = scheduler.Plan(0);
  EXPECT_EQ(Describe(resumed), "2.0[0+31]! 3.0[0+1]! ");
  CommitAll(scheduler, std::move(resumed));
  EXPECT_EQ(scheduler.counts().preemptions, 1u);
}

TEST(Scheduler, AloneInAnExhaustedPoolEndsWithLength) {
  BlockPool pool(2);
  Scheduler scheduler(Options(8, 512), &pool);
  scheduler.Add(Make(1, 31, 20), 0);
  CommitAll(scheduler, scheduler.Plan(0));
  CommitAll(scheduler, scheduler.Plan(0));
  ScheduledBatch batch = scheduler.Plan(0);
  EXPECT_TRUE(batch.empty());
  ASSERT_EQ(batch.exhausted.size(), 1u);
  EXPECT_EQ(batch.exhausted[0], (ChoiceId{RequestId(1), 0}));
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(pool.free_blocks(), 2);
}

TEST(Scheduler, ChoicesShareThePromptAndCopyItsTail) {
  BlockPool pool(20);
  Scheduler scheduler(Options(8, 512), &pool);
  scheduler.Add(Make(1, 40, 5, 3), 0);
  ScheduledBatch first = scheduler.Plan(0);
  EXPECT_EQ(scheduler.OpenChoices(first.items[0]), (std::vector<int32_t>{0, 1, 2}));
  CommitAll(scheduler, std::move(first));
  EXPECT_EQ(20 - pool.free_blocks(), 3);  // the prompt stored once
  EXPECT_EQ(scheduler.counts().running, 3);
  ScheduledBatch second = scheduler.Plan(0);
  EXPECT_EQ(Describe(second), "1.0[40+1]! 1.1[40+1]! 1.2[40+1]! ");
  EXPECT_EQ(second.copies.size(), 2u);  // the last holder writes in place
  CommitAll(scheduler, std::move(second));
  EXPECT_EQ(20 - pool.free_blocks(), 5);
  EXPECT_EQ(scheduler.counts().prompt_tokens, 40u);
  EXPECT_TRUE(scheduler.FinishChoice(RequestId(1), 1));
  EXPECT_FALSE(scheduler.FinishChoice(RequestId(1), 1));
  EXPECT_EQ(scheduler.Cancel(RequestId(1)), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(pool.free_blocks(), 20);
}

TEST(Scheduler, LeadComputesOnForTheOthersWhenChoiceZeroWasFinished) {
  BlockPool pool(20);
  Scheduler scheduler(Options(3, 20), &pool);
  scheduler.Add(Make(1, 40, 5, 3), 0);
  CommitAll(scheduler, scheduler.Plan(0));
  EXPECT_TRUE(scheduler.FinishChoice(RequestId(1), 0));
  scheduler.CheckIntegrity();
  EXPECT_EQ(scheduler.counts().free_seats, 1);
  CommitAll(scheduler, scheduler.Plan(0));
  ScheduledBatch batch = scheduler.Plan(0);
  EXPECT_EQ(Describe(batch), "1.1[40+1]! 1.2[40+1]! ");
  CommitAll(scheduler, std::move(batch));
}

TEST(Scheduler, QueueTimeoutAndDeadlineHitOnlyTheNeverAdmitted) {
  BlockPool pool(4);
  SchedulerOptions options = Options(8, 512);
  options.queue_timeout_ns = 60 * kSecond;
  Scheduler scheduler(options, &pool);
  scheduler.Add(Make(1, 60, 50), 0);
  CommitAll(scheduler, scheduler.Plan(0));
  scheduler.Add(Make(2, 60, 5), 10 * kSecond);
  NewRequest urgent = Make(3, 60, 5);
  urgent.deadline_ns = 20 * kSecond;
  scheduler.Add(std::move(urgent), 10 * kSecond);
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
  BlockPool pool(32);  // 512 tokens (case B01)
  Scheduler scheduler(Options(8, 512, 4096), &pool);
  const Status refused = scheduler.Admissible(600, 1);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.field(), "prompt");
  for (const char* number : {"600", "512", "4096"}) {
    EXPECT_NE(refused.message().find(number), std::string::npos) << refused.message();
  }
  EXPECT_TRUE(scheduler.Admissible(512, 1).ok());
  EXPECT_FALSE(scheduler.Admissible(0, 1).ok());
  EXPECT_FALSE(scheduler.Admissible(1, 0).ok());
  EXPECT_FALSE(Scheduler(Options(8, 512, 256), &pool).Admissible(256, 1).ok());
  EXPECT_TRUE(Scheduler(Options(8, 512, 256), &pool).Admissible(255, 1).ok());
}

TEST(Scheduler, OutputIsClampedToTheContext) {
  BlockPool pool(32);
  Scheduler scheduler(Options(8, 512, 50), &pool);
  scheduler.Add(Make(1, 48, 100), 0);
  EXPECT_EQ(CommitAll(scheduler, scheduler.Plan(0)).front(), ChoiceEnd::kGoesOn);
  EXPECT_EQ(CommitAll(scheduler, scheduler.Plan(0)).front(), ChoiceEnd::kLength);
}

TEST(Scheduler, AbortEndsWhatWasInTheBatchAndNothingElse) {
  BlockPool pool(32);
  Scheduler scheduler(Options(3, 64), &pool);
  scheduler.Add(Make(1, 10, 5), 0);
  scheduler.Add(Make(2, 40, 5, 2), 0);
  scheduler.Add(Make(3, 10, 5), 0);
  const auto ended = scheduler.Abort(scheduler.Plan(0));
  EXPECT_EQ(ended,
            (std::vector<ChoiceId>{{RequestId(1), 0}, {RequestId(2), 0}, {RequestId(2), 1}}));
  scheduler.CheckIntegrity();
  EXPECT_EQ(pool.free_blocks(), 32);
  ScheduledBatch next = scheduler.Plan(0);
  EXPECT_EQ(Describe(next), "3.0[0+10]! ");
  CommitAll(scheduler, std::move(next));
}

TEST(SchedulerDeathTest, ABatchMustEndInCommitOrAbort) {
  BlockPool pool(32);
  EXPECT_DEATH(
      {
        Scheduler scheduler(Options(3, 64), &pool);
        scheduler.Add(Make(1, 10, 5), 0);
        { ScheduledBatch lost = scheduler.Plan(0); }
      },
      "");
  Scheduler scheduler(Options(3, 64), &pool);
  scheduler.Add(Make(1, 10, 5), 0);
  ScheduledBatch batch = scheduler.Plan(0);
  EXPECT_DEATH((void)scheduler.Cancel(RequestId(1)), "");
  EXPECT_DEATH((void)scheduler.Plan(0), "");
  (void)scheduler.Abort(std::move(batch));
}

}  // namespace
}  // namespace kvasir
