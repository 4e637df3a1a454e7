// The LRU column of the field notes, through the real pool and index (no model).
//
// The published values let a path enter the LRU order root first, so a root can go before what
// hangs on it. A tree of blocks evicts leaves first, which finds a little more. So three things are
// checked: a plain list root first gives the published values (the trace is read rightly); a plain
// list deepest first gives exactly the hits of KvCache (its index, pool and lru lose nothing and
// invent nothing); and both differ by less than a unit of the third digit.
// Skipped, loudly, where the traces are not.
#include "../bench/flood_replay.h"
#include "../bench/paging_replay.h"
#include "../bench/trace_replay.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

namespace kvasir {
namespace {

struct Published {
  int32_t blocks;
  double lru;
};

std::string TracePath(const std::string& name) {
  return "../shared/traces/mooncake/" + name + "_trace.jsonl.gz";
}

bool Missing(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) != 0;
}

void CheckLru(const BlockTrace& trace, const std::vector<Published>& column) {
  for (const Published& row : column) {
    SCOPED_TRACE(std::to_string(row.blocks) + " blocks");
    const double references = static_cast<double>(trace.references);
    const double root_first =
        static_cast<double>(PlainLruHits(trace, static_cast<size_t>(row.blocks), true)) /
        references;
    EXPECT_NEAR(root_first, row.lru, 0.00005001);
    const ReplayResult lru = ReplayTrace(trace, "lru", row.blocks);
    EXPECT_EQ(lru.hits, PlainLruHits(trace, static_cast<size_t>(row.blocks), false));
    EXPECT_EQ(lru.references, trace.references);
    EXPECT_NEAR(lru.ratio(), row.lru, 0.001);
    EXPECT_GE(lru.ratio(), row.lru - 0.00005001);
    EXPECT_EQ(lru.counts.hits, static_cast<uint64_t>(lru.hits) * kReplayBlockTokens);

    const ReplayResult cost = ReplayTrace(trace, "cost", row.blocks);
    EXPECT_GT(cost.ratio(), lru.ratio());
    const ReplayResult hinted = ReplayTrace(trace, "cost", row.blocks, ReplayHint::kPerfect);
    EXPECT_GT(hinted.ratio(), 1.3 * lru.ratio());
    std::printf("%d blocks: published %.4f root first %.4f lru %.4f cost %.4f hints %.4f\n",
                row.blocks, row.lru, root_first, lru.ratio(), cost.ratio(), hinted.ratio());
  }
}

TEST(CacheReplay, ConversationTrace) {
  const std::string path = TracePath("conversation");
  if (Missing(path)) GTEST_SKIP() << "NOT CHECKED: no " << path;
  const BlockTrace trace = LoadBlockTrace(path);
  ASSERT_EQ(trace.references, 288500);
  ASSERT_EQ(trace.ids, 182790);
  CheckLru(trace, {{5859, .1355}, {10000, .2112}});
}

TEST(CacheReplay, SyntheticTrace) {
  const std::string path = TracePath("synthetic");
  if (Missing(path)) GTEST_SKIP() << "NOT CHECKED: no " << path;
  const BlockTrace trace = LoadBlockTrace(path);
  ASSERT_EQ(trace.references, 121877);
  ASSERT_EQ(trace.ids, 43924);
  CheckLru(trace, {{5859, .3094}, {10000, .4235}});
}

// Case S04, in ten random orders.
TEST(CacheReplay, HotPrefixSurvivesFlood) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const FloodRow lru = ReplayFlood("lru", seed, 50), cost = ReplayFlood("cost", seed, 50);
    EXPECT_EQ(lru.after, 0);
    EXPECT_EQ(cost.after, 1);
    EXPECT_GE(cost.mixed, 0.95);  // ideal: about 0.99, all but the first request
    EXPECT_GT(cost.mixed, lru.mixed);
    EXPECT_LE(cost.evictions, 38);  // 600 tokens
  }
}

// Less than 2 % of the memory taken has no token, at blocks of 16, over all steps of the trace.
TEST(CacheReplay, PagingWastesLessThanTwoPercent) {
  const std::string path = "../shared/traces/azure/AzureLLMInferenceTrace_conv.csv.gz";
  if (Missing(path)) GTEST_SKIP() << "NOT CHECKED: no " << path;
  const std::deque<Job> jobs = LoadLengths(path);
  ASSERT_EQ(jobs.size(), 19366u);
  int64_t outputs = 0;
  for (const Job& job : jobs) outputs += job.output;
  const Sums sums = Paged(262144, 16, 16384).Run(jobs);
  EXPECT_GE(sums.tokens, outputs);
  EXPECT_LT(sums.waste / static_cast<double>(sums.steps), 0.02);
  EXPECT_GT(static_cast<double>(sums.running) / static_cast<double>(sums.steps), 150);
}

}  // namespace
}  // namespace kvasir
