// A request's wishes and failures in odd moments; each was a defect.
#include <gtest/gtest.h>

#include <numeric>

#include "scheduler/test_rig.h"

namespace kvasir {
namespace {

std::vector<TokenId> Tokens(int32_t count, TokenId first = 100) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

KvCacheOptions Pool(int32_t blocks, int32_t host) {
  KvCacheOptions o;
  o.blocks = {blocks};
  o.host_slots = host;
  return o;
}
SchedulerOptions Sched() {
  SchedulerOptions o;
  o.max_model_len = 512;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 64;
  o.reserve_blocks = 0;
  return o;
}

TEST(SchedulerOdd, ATtlIsKeptByAVictimThatEndsInTheQueue) {
  for (const auto mode : {PreemptMode::kRecompute, PreemptMode::kSwap}) {
    SchedulerOptions o = Sched();
    o.preempt = mode;
    SchedulerRig rig(Pool(12, 32), o);
    RigRequest a{1, Tokens(60), 100, 1, 0, "", true, {}, INT64_MAX};
    RigRequest b{2, Tokens(60, 5000), 100, 1, 0, "", true, {}, INT64_MAX};
    b.hint.expires_ns = 1'000'000'000;
    rig.Add(a);
    rig.Add(b);
    while (rig.scheduler().counts().preemptions == 0) rig.Step();
    rig.scheduler().Cancel(RequestId(2));
    rig.scheduler().Cancel(RequestId(1));
    rig.now_ns = 3'000'000'000;
    rig.cache().Expire(rig.now_ns);
    const int32_t space = rig.cache().OpenSpace("", "");
    EXPECT_EQ(rig.cache().Match(space, b.prompt, 60).tokens, 0) << "ttl over, still cached";
    rig.cache().CloseSpace(space);
  }
}

TEST(SchedulerOdd, NobodyFindsARowThatFailed) {
  SchedulerRig rig(Pool(32, 0), Sched());
  rig.Add({1, Tokens(60), 4, 1, 0, "", true, {}, INT64_MAX});
  ScheduledBatch batch = rig.Plan();
  rig.Run(batch);
  const ChoiceOutcome failed{0, 0, -1, false, true};
  (void)rig.scheduler().Commit(std::move(batch), std::span(&failed, 1));
  const int32_t space = rig.cache().OpenSpace("", "");
  EXPECT_EQ(rig.cache().Match(space, Tokens(60), 60).tokens, 0) << "tokens of a failed prompt";
  rig.cache().CloseSpace(space);
}

TEST(SchedulerOdd, NobodyIsPreemptedForOneThatCannotFitAnyway) {
  SchedulerOptions o = Sched();
  o.policy = SchedulingPolicy::kPriority;
  o.max_num_seqs = 8;
  SchedulerRig rig(Pool(32, 0), o);
  // Ranked first, holds most of the pool and decodes for long.
  rig.Add({1, Tokens(300), 100, 1, -5, "", true, {}, INT64_MAX});
  for (uint64_t id = 2; id <= 6; ++id)
    rig.Add({id, Tokens(10, static_cast<TokenId>(1000 * id)), 300, 1, 1, "", true, {}, INT64_MAX});
  for (int i = 0; i < 10; ++i) rig.Step();
  rig.Add({9, Tokens(400, 50000), 4, 1, 0, "", true, {}, INT64_MAX});  // cannot fit beside 1
  while (!rig.scheduler().first_admission(RequestId(9))) {
    rig.Step();
  }
  EXPECT_EQ(rig.scheduler().counts().preemptions_priority, 0u);
}

// resume_tokens 32 over blocks of 16: 70 tokens are there, 64 of 69 can be used; 25 are no help.
TEST(SchedulerResume, UsesMultiplesAndSaysThatTheRestIsThere) {
  SchedulerOptions o = Sched();
  o.resume_tokens = 32;
  SchedulerRig rig(Pool(32, 0), o);
  rig.Add({1, Tokens(70), 1, 1, 0, "", true, {}, INT64_MAX});
  while (!rig.scheduler().idle()) rig.Step();
  rig.Add({2, Tokens(70), 1, 1, 0, "", true, {}, INT64_MAX});
  EXPECT_EQ(rig.Step(), "2.0[64+6]! ");
  std::vector<TokenId> other = Tokens(25);
  for (const TokenId token : Tokens(20, 9000)) other.push_back(token);
  rig.Add({3, other, 1, 1, 0, "", true, {}, INT64_MAX});
  EXPECT_EQ(rig.Step(), "3.0[0+45]! ");
  const CacheCounts counts = rig.cache().counts();
  EXPECT_EQ(counts.hits, 64u);
  EXPECT_EQ(counts.misses[static_cast<size_t>(MissReason::kPartialBlock)], 6u + 25u);
  EXPECT_EQ(counts.misses[static_cast<size_t>(MissReason::kCold)], 70u + 20u);
}

// What others compute right now is waited for if it brings a multiple, else not.
TEST(SchedulerResume, WaitsOnlyForWhatItCanUse) {
  for (const int32_t common : {24, 40}) {
    SchedulerOptions o = Sched();
    o.resume_tokens = 32;
    SchedulerRig rig(Pool(32, 0), o);
    for (uint64_t id = 1; id <= 2; ++id) {
      std::vector<TokenId> prompt = Tokens(common);
      for (const TokenId t : Tokens(4, static_cast<TokenId>(1000 * id))) prompt.push_back(t);
      rig.Add({id, prompt, 1, 1, 0, "", true, {}, INT64_MAX});
    }
    EXPECT_EQ(rig.Step(), common == 24 ? "1.0[0+28]! 2.0[0+28]! " : "1.0[0+44]! ");
    if (common == 40) {
      EXPECT_EQ(rig.Step(), "2.0[32+12]! ");
    }
  }
}

// Without anything beside the blocks, slots set no limit to swapping.
TEST(SchedulerResume, EveryVictimIsSwappedWhereSlotsDoNotMatter) {
  SchedulerOptions o = Sched();
  o.policy = SchedulingPolicy::kPriority;
  o.preempt = PreemptMode::kSwap;
  o.max_num_seqs = 1;
  SchedulerRig rig(Pool(64, 64), o);
  for (int i = 0; i < 4; ++i) {
    const auto id = static_cast<uint64_t>(i) + 1;
    rig.Add({id, Tokens(20, static_cast<TokenId>(1000 * id)), 50, 1, -i, "", true, {}, INT64_MAX});
    rig.Step();
  }
  EXPECT_EQ(rig.scheduler().counts().preemptions, 3u);
  EXPECT_EQ(rig.scheduler().counts().preemptions_swap, 3u);
}

}  // namespace
}  // namespace kvasir
