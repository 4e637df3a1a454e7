// A sweep over offered loads: how much the server can do, then open-loop traffic at multiples of
// it, each for a while, with a pause between.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "loadgen/completion.h"
#include "loadgen/sweep_report.h"
#include "loadgen/traffic.h"

namespace kvasir {

struct SweepOptions {
  std::vector<double> loads = {0.25, 0.5, 0.75, 1, 2, 4, 10};  // times the capacity
  double capacity = 0;                                         // requests/s; 0: measured first
  int32_t capacity_users = 32;  // of the closed loop that measures it
  double capacity_s = 15;       // how long; the first third is not looked at
  double level_s = 20;          // sending of a level; the first `ramp` of it is not looked at
  int64_t level_requests = 0;   // not 0: instead of level_s, that many arrivals on average
  double ramp = 0.25;
  double drain_s = 10;  // after sending, for what is open; then it is cut
  double settle_s = 1;  // pause between levels, and until the server says it is idle
  double slo_ttft_s = 1;
  double slo_itl_s = 0.1;  // mean time between a request's output tokens
  int32_t connections_max = 1000;
  std::string label;
  TrafficOptions traffic;

  // Names the flag and its limit.
  Status Validate() const;
};

// Prints progress and a table to `log`. Fails if no request could be completed while the capacity
// was measured.
Result<SweepReport> RunSweep(const SweepOptions& options, const Target& target,
                             const LoadShape& shape, std::ostream& log, bool log_is_terminal);

// Requests a second that a server can do, from a closed loop: output tokens that arrived in the
// window, over its length and over the tokens of a mean request. Counting tokens instead of
// requests keeps waves of requests that end together from moving the result. 0 if none was
// completed.
double CapacityOf(const std::vector<Outcome>& outcomes, int64_t window_start_ns,
                  int64_t window_end_ns);

// Sums over all series of each name in Prometheus text. Lines that are none are left out.
std::map<std::string, double> PrometheusSums(std::string_view text);

}  // namespace kvasir
