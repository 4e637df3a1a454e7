// The loads that can be put on a server: the fixed workloads w1 to w6, a closed loop and an open
// loop. Prompts are drawn from the seed alone, so every server does the same work.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "loadgen/completion.h"
#include "loadgen/report.h"
#include "loadgen/traffic.h"

namespace kvasir {

// Called after each finished request: how many are done, of how many (0: not known), how many
// failed.
using BenchProgress =
    std::function<void(const std::string& name, int64_t done, int64_t total, int64_t failed)>;

// w1 one at a time, 512 prompt + 64 output tokens, 3 times
// w2 one at a time, 4096 + 64, twice
// w3 8 at once, 2000 shared + 64 own prompt tokens + 32; once cold, once again (two summaries)
// w4 32 requests, 16 at once, prompts of 64..512, outputs of 32..96, nothing shared
// w5 4 agents of 6 turns each over a growing history
// w6 one user decoding 160 tokens while two prompts of 4096 arrive
inline constexpr const char* kWorkloadNames[] = {"w1", "w2", "w3", "w4", "w5", "w6"};
std::vector<Summary> RunWorkload(const std::string& name, const Target& target,
                                 const LoadShape& shape, const BenchProgress& progress);

struct LoopOptions {
  TrafficOptions traffic;
  // Closed loop: `concurrency` users, each sends its next request when the last is answered.
  int32_t concurrency = 0;
  int64_t requests = 0;  // in all; whole sessions
  // Open loop: arrivals at `rate` a second on average (Poisson) for duration_s, whatever the server
  // does.
  double rate = 0;
  double duration_s = 0;
  int32_t in_flight_max = 256;  // arrivals beyond it are not sent, and counted
};

Summary RunClosedLoop(const LoopOptions& options, const Target& target, const LoadShape& shape,
                      const BenchProgress& progress);
// Fails if the name cannot be resolved. Returns when everything sent is answered or timed out.
Result<Summary> RunOpenLoop(const LoopOptions& options, const Target& target,
                            const LoadShape& shape, const BenchProgress& progress);

// Seconds from the start, ascending, all below duration_s. Exponential gaps drawn from the seed.
std::vector<double> PoissonArrivals(double rate, double duration_s, uint64_t seed);

}  // namespace kvasir
