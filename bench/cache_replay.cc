// What eviction gives: replays of public traces and of a flood through the real KvCache (no model).
//
//   cache_replay [DIRECTORY]    with conversation_trace.jsonl.gz and synthetic_trace.jsonl.gz;
//                               default ../shared/traces/mooncake
//
// Prints, in Markdown: hit ratios of all policies and sizes beside the published LRU column; what
// hints and more capacity bring; the hot prefix of case S04. About half a minute.
#include <cstdio>
#include <string>
#include <vector>

#include "flood_replay.h"
#include "trace_replay.h"

namespace {

using namespace kvasir;  // NOLINT(google-build-using-namespace)

constexpr const char* kPolicies[] = {"lru", "fifo", "slru", "s3fifo", "cost"};

struct Workload {
  const char* name;
  const char* file;
  std::vector<int32_t> blocks;
  std::vector<double> published_lru;
};

const std::vector<Workload>& Workloads() {
  static const std::vector<Workload> workloads = {
      {"conversation",
       "conversation_trace.jsonl.gz",
       {1000, 5859, 10000, 30000, 50000, 100000, 190000},
       {.0445, .1355, .2112, .3257, .3546, .3637, .3664}},
      {"synthetic",
       "synthetic_trace.jsonl.gz",
       {1000, 5859, 10000, 30000, 50000},
       {.0825, .3094, .4235, .6242, .6396}},
  };
  return workloads;
}

void PrintRow(const char* name, const std::vector<double>& values, const char* format) {
  std::printf("| %s |", name);
  for (const double value : values) std::printf(format, value);
  std::printf("\n");
  std::fflush(stdout);
}

void PrintPolicies(const Workload& workload, const BlockTrace& trace) {
  std::printf("\n%s: %lld references, %d blocks, hit ratio by blocks of the pool\n\n|  |",
              workload.name, static_cast<long long>(trace.references), trace.ids);
  for (const int32_t blocks : workload.blocks) std::printf(" %d |", blocks);
  std::printf("\n|---|");
  for (size_t i = 0; i < workload.blocks.size(); ++i) std::printf("---|");
  std::printf("\n");
  PrintRow("lru, published", workload.published_lru, " %.4f |");
  std::vector<double> root_first, lru, difference;
  for (const int32_t blocks : workload.blocks) {
    root_first.push_back(
        static_cast<double>(PlainLruHits(trace, static_cast<size_t>(blocks), true)) /
        static_cast<double>(trace.references));
  }
  PrintRow("plain list, root first", root_first, " %.4f |");
  for (const char* policy : kPolicies) {
    std::vector<double> ratios;
    for (const int32_t blocks : workload.blocks)
      ratios.push_back(ReplayTrace(trace, policy, blocks).ratio());
    PrintRow(policy, ratios, " %.4f |");
    if (lru.empty()) {
      lru = ratios;
      for (size_t i = 0; i < ratios.size(); ++i)
        difference.push_back(ratios[i] - workload.published_lru[i]);
      PrintRow("lru - published", difference, " %+.4f |");
    } else {
      for (size_t i = 0; i < ratios.size(); ++i) ratios[i] = 100 * (ratios[i] / lru[i] - 1);
      PrintRow("... against lru, %", ratios, " %+.1f |");
    }
  }
}

void PrintLevers(const Workload& workload, const BlockTrace& trace) {
  std::printf(
      "\n%s: what hints and capacity bring (3 million tokens = 5,859 blocks of 512)\n\n"
      "| blocks | lru | cost | cost, last turn said | cost, one true bit a block |\n"
      "|---|---|---|---|---|\n",
      workload.name);
  for (const int32_t blocks : {2930, 5859, 11718, 23436}) {
    std::printf("| %d | %.4f | %.4f | %.4f | %.4f |\n", blocks,
                ReplayTrace(trace, "lru", blocks).ratio(),
                ReplayTrace(trace, "cost", blocks).ratio(),
                ReplayTrace(trace, "cost", blocks, ReplayHint::kLastTurn).ratio(),
                ReplayTrace(trace, "cost", blocks, ReplayHint::kPerfect).ratio());
    std::fflush(stdout);
  }
}

void PrintFloods() {
  constexpr int kSeeds = 100;
  std::printf(
      "\nHot prefix of 512 tokens in a pool of 1,500 (case S04), mean of %d random orders.\n"
      "A one-off of 600 tokens needs 38 blocks.\n\n"
      "| policy | found while in use | after 50 one-offs | after 200 | blocks evicted a one-off |\n"
      "|---|---|---|---|---|\n",
      kSeeds);
  for (const char* policy : kPolicies) {
    FloodRow sum;
    double after_long = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const FloodRow row = ReplayFlood(policy, seed, 50);
      sum.mixed += row.mixed / kSeeds;
      sum.after += row.after / kSeeds;
      sum.evictions += row.evictions / kSeeds;
      after_long += ReplayFlood(policy, seed, 200).after / kSeeds;
    }
    std::printf("| %s | %.3f | %.3f | %.3f | %.1f |\n", policy, sum.mixed, sum.after, after_long,
                sum.evictions);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : "../shared/traces/mooncake";
  PrintFloods();
  for (const Workload& workload : Workloads()) {
    const std::string path = directory + "/" + workload.file;
    const BlockTrace trace = LoadBlockTrace(path);
    if (trace.requests.empty()) {
      std::fprintf(stderr, "%s: not there or not a trace\n", path.c_str());
      return 1;
    }
    PrintPolicies(workload, trace);
    PrintLevers(workload, trace);
  }
  return 0;
}
