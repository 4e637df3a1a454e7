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

}  // namespace
}  // namespace kvasir
