// --itl-target by example, and the cost model below it.
#include "scheduler/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "scheduler/test_rig.h"

namespace kvasir {
namespace {

constexpr int64_t kMilli = 1'000'000;

SchedulerOptions Options(int32_t seqs, int32_t budget) {
  SchedulerOptions options;
  options.max_model_len = 1000;
  options.max_num_seqs = seqs;
  options.max_num_batched_tokens = budget;
  options.reserve_blocks = 0;
  options.growth_share = 0;
  options.preempt = PreemptMode::kRecompute;
  return options;
}

KvCacheOptions Cache(int32_t blocks) {
  KvCacheOptions options;
  options.blocks = {blocks};
  return options;
}

RigRequest Make(uint64_t id, int32_t prompt, int32_t max_tokens) {
  RigRequest request;
  request.id = id;
  for (int32_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<TokenId>(id * 10000) + i);
  }
  request.max_tokens = max_tokens;
  return request;
}

StepCost Cost(int32_t prefill, int32_t decode, int64_t ns) {
  StepCost cost;
  cost.prefill_rows = prefill;
  cost.decode_rows = decode;
  cost.run_ns = ns;
  return cost;
}

TEST(SchedulerItl, ChunksFitTheTargetByMeasuredCost) {
  SchedulerOptions options = Options(8, 512);
  options.itl_target_ns = 50 * kMilli;
  SchedulerRig rig(Cache(200), options);
  rig.Add(Make(1, 4, 500));
  rig.Step();
  rig.Add(Make(2, 900, 5));
  EXPECT_EQ(rig.Step(), "1.0[4+1]! 2.0[0+16] ");  // nothing measured: the floor
  rig.scheduler().Observe(Cost(0, 1, 10 * kMilli));
  rig.scheduler().Observe(Cost(40, 1, 30 * kMilli));  // 0.5 ms a row
  EXPECT_EQ(rig.Step(), "1.0[5+1]! 2.0[16+80] ");     // (50 - 10) / 0.5
  rig.scheduler().Observe(Cost(80, 1, 58 * kMilli));  // deeper rows cost 0.6 ms
  EXPECT_EQ(rig.Step(), "1.0[6+1]! 2.0[96+72] ");     // half of the way at once: 40 / 0.55
  rig.scheduler().Observe(Cost(40, 1, 1000 * kMilli));
  rig.scheduler().Observe(Cost(16, 1, 1000 * kMilli));
  EXPECT_EQ(rig.Step(), "1.0[7+1]! 2.0[168+16] ");  // never less than the floor
  rig.scheduler().Cancel(RequestId(1));
  EXPECT_EQ(rig.Step(), "2.0[184+512] ");  // nobody decodes: the whole budget
}

TEST(SchedulerItl, WithoutATargetABoundOnRowsBesideDecodes) {
  SchedulerOptions options = Options(8, 512);
  options.prefill_beside_decodes = 128;
  SchedulerRig rig(Cache(200), options);
  rig.Add(Make(1, 4, 500));
  rig.Step();
  rig.Add(Make(2, 180, 5));
  rig.Add(Make(3, 700, 5));
  EXPECT_EQ(rig.Step(), "1.0[4+1]! 2.0[0+128] ");
  EXPECT_EQ(rig.Step(), "1.0[5+1]! 2.0[128+52]! 3.0[0+76] ");  // new ones count too
  rig.scheduler().Cancel(RequestId(1));
  rig.scheduler().Cancel(RequestId(2));
  EXPECT_EQ(rig.Step(), "3.0[76+512] ");  // nobody decodes: the whole budget
}

TEST(SchedulerItl, NewAdmissionsCountToo) {
  SchedulerOptions options = Options(8, 512);
  options.itl_target_ns = 50 * kMilli;
  SchedulerRig rig(Cache(200), options);
  rig.scheduler().Observe(Cost(0, 1, 10 * kMilli));
  rig.scheduler().Observe(Cost(40, 1, 50 * kMilli));  // 1 ms a row
  rig.Add(Make(1, 4, 500));
  rig.Step();
  for (uint64_t id = 2; id <= 4; ++id) rig.Add(Make(id, 30, 5));
  EXPECT_EQ(rig.Step(), "1.0[4+1]! 2.0[0+30]! 3.0[0+10] ");
}

TEST(CostModel, SettlesAtTheTargetWhateverTheShapeOfTheCost) {
  // A machine whose rows get dearer, with a fixed part that the model has no name for, and never a
  // step without prefill.
  CostModel model(40 * kMilli);
  int32_t rows = 16;
  double last = 0;
  for (int step = 0; step < 200; ++step) {
    const double row_ns = 1e5 * (1 + step / 100.0);
    const double run_ns = 5e6 + 8 * 1e5 + row_ns * rows;
    model.Observe(Cost(rows, 8, static_cast<int64_t>(run_ns)));
    rows = model.PrefillRows(8, 16);
    if (step > 30) {
      EXPECT_LT(run_ns, 42e6) << step;
      EXPECT_GT(run_ns, 30e6) << step;
    }
    last = run_ns;
  }
  EXPECT_GT(last, 30e6);
}

// A machine of 10 ms a decode step and 1 ms a row that is late by `late` at every 20th step: what
// the steps took from the 100th on.
std::vector<double> BesideMoments(CostModel& model, double late, int32_t steps) {
  std::vector<double> took;
  model.Observe(Cost(0, 1, 10 * kMilli));
  for (int32_t step = 0; step < steps; ++step) {
    const int32_t rows = model.PrefillRows(1, 16);
    const double run_ns = 10e6 + 1e6 * rows + (step % 20 == 19 ? late : 0);
    model.Observe(Cost(rows, 1, static_cast<int64_t>(run_ns)));
    if (step >= 100) took.push_back(run_ns);
  }
  std::sort(took.begin(), took.end());
  return took;
}

TEST(CostModel, LeavesRoomForStepsThatTakeLongerThanForetold) {
  {  // A fifth of the target: still within what a late step may take.
    CostModel model(150 * kMilli);
    const std::vector<double> took = BesideMoments(model, 30e6, 400);
    EXPECT_NEAR(took[took.size() / 2], 150e6, 3e6);
    EXPECT_LE(took.back(), 183e6);
  }
  {
    CostModel model(150 * kMilli);
    const std::vector<double> took = BesideMoments(model, 90e6, 400);
    EXPECT_LE(took.back(), 190e6);
    EXPECT_GT(took[took.size() / 2], 85e6);  // no more than it has to
    const std::vector<double> later = BesideMoments(model, 0, 800);
    EXPECT_NEAR(later.back(), 150e6, 3e6);
    EXPECT_NEAR(later[later.size() / 2], 150e6, 3e6);  // and forgotten when they are over
  }
  {  // Whatever the moments are like, it aims at half of the target.
    CostModel model(150 * kMilli);
    const std::vector<double> took = BesideMoments(model, 900e6, 400);
    EXPECT_LE(took[took.size() / 2], 76e6);
    EXPECT_GT(took[took.size() / 2], 45e6);  // after each such step rows count as dear for a while
  }
}

// A pause of the whole process: as short as half of the target for a while, not for minutes.
TEST(CostModel, OneLongPauseIsForgotten) {
  CostModel model(150 * kMilli);
  BesideMoments(model, 0, 20);
  model.Observe(Cost(140, 1, 60'000 * kMilli));
  EXPECT_NEAR(model.late_ns(), 105e6, 1e5);
  double spent = 0;
  int32_t rows = 0;
  while (spent < 40e9) {  // 30 s * ln(0.7 / 0.2) = 37.6 s
    rows = model.PrefillRows(1, 16);
    const double run_ns = 10e6 + 1e6 * rows;
    model.Observe(Cost(rows, 1, static_cast<int64_t>(run_ns)));
    spent += run_ns;
  }
  EXPECT_GE(rows, 139);
  EXPECT_LE(rows, 140);
}

TEST(CostModel, NothingIsLateThatWasNotForetold) {
  CostModel model(150 * kMilli);
  model.Observe(Cost(0, 1, 500 * kMilli));  // the first decode step
  model.Observe(Cost(0, 1, 10 * kMilli));
  model.Observe(Cost(40, 0, 400 * kMilli));  // the first prompt
  EXPECT_EQ(model.late_ns(), 0);
  model.Observe(Cost(40, 0, 430 * kMilli));
  EXPECT_NEAR(model.late_ns(), 30e6, 1e5);
  for (int i = 0; i < 75; ++i) model.Observe(Cost(40, 0, 400 * kMilli));  // 30 s of steps
  EXPECT_LT(model.late_ns(), 15e6);
}

// Rows that cost 1 + depth / 500 times as much: what was learnt is the line, and chunks of prompts
// of any depth take the target, at the first step of a prompt already.
TEST(CostModel, LearnsWhatDepthCosts) {
  CostModel model(100 * kMilli);
  const auto run_ns = [](int32_t first, int32_t rows) {
    double ns = 5e6;
    for (int32_t r = 0; r < rows; ++r) ns += 2e5 * (1 + (first + r) / 500.0);
    return ns;
  };
  model.Observe(Cost(0, 1, 5 * kMilli));
  int32_t steps = 0;
  for (int prompt = 0; prompt < 6; ++prompt) {
    for (int32_t first = 0; first < 4096; ++steps) {
      const double room = model.PrefillRows(1, 16);
      const int32_t rows = std::clamp(model.RowsIn(room, first), 1, 4096 - first);
      const double took = run_ns(first, rows);
      if (prompt > 0) {
        EXPECT_LT(took, 110e6) << "prompt " << prompt << " depth " << first;
        // The last one is what is left. The first prompt was late while depth was learnt.
        const double least = first + rows == 4096 ? 0 : prompt > 3 ? 80e6 : 70e6;
        EXPECT_GT(took, least) << "prompt " << prompt << " depth " << first;
      }
      StepCost cost = Cost(rows, 1, static_cast<int64_t>(took));
      cost.prefill_depth = first + 0.5 * (rows - 1);
      model.Observe(cost);
      first += rows;
    }
  }
  EXPECT_NEAR(model.depth_slope(), 1 / 500.0, 1e-4);
  for (const int32_t first : {0, 100, 5000}) {
    for (const int32_t rows : {1, 7, 300}) {
      EXPECT_EQ(model.RowsIn(model.Units(first, rows), first), rows);
      EXPECT_NEAR(model.prefill_ns(first, rows), run_ns(first, rows) - 5e6,
                  0.1 * run_ns(first, rows));
    }
  }
}

// A prompt whose beginning is cached starts deep: its first chunk is as short as its rows are dear.
TEST(SchedulerItl, ADeepChunkIsShorter) {
  SchedulerOptions options = Options(8, 512);
  options.itl_target_ns = 50 * kMilli;
  SchedulerRig rig(Cache(200), options);
  rig.scheduler().Observe(Cost(0, 1, 10 * kMilli));
  for (int i = 0; i < 400; ++i) {
    StepCost cost = Cost(40, 1, 30 * kMilli);  // 0.5 ms a row
    rig.scheduler().Observe(cost);
    cost = Cost(40, 1, 50 * kMilli);  // 1 ms at depth 1000
    cost.prefill_depth = 1000;
    rig.scheduler().Observe(cost);
  }
  rig.Add(Make(1, 4, 500));
  rig.Step();
  rig.Add(Make(2, 900, 5));
  EXPECT_EQ(rig.Step(),
            "1.0[4+1]! 2.0[0+77] ");  // 40 ms: at 0.5 ms for the first, 0.54 for the last
  EXPECT_EQ(rig.Step(), "1.0[5+1]! 2.0[77+71] ");
  EXPECT_EQ(rig.Step(), "1.0[6+1]! 2.0[148+67] ");
}

TEST(CostModel, DecodeCostIsKnownBetweenWhatWasSeen) {
  CostModel model;
  EXPECT_EQ(model.decode_ns(5), 0);
  model.Observe(Cost(0, 1, 100));
  model.Observe(Cost(0, 16, 400));
  EXPECT_EQ(model.decode_ns(1), 100);
  EXPECT_GT(model.decode_ns(4), 100);
  EXPECT_LT(model.decode_ns(4), 400);
  EXPECT_EQ(model.decode_ns(200), 400);
  model.Observe(Cost(10, 16, 300));  // faster with prefill than that: it was wrong
  EXPECT_EQ(model.decode_ns(16), 300);
}

}  // namespace
}  // namespace kvasir
