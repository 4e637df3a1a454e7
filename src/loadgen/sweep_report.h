// What a sweep over offered loads found: data, table, JSON both ways.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "loadgen/completion.h"

namespace kvasir {

// Percentiles in seconds of what was measured; NaN where nothing was.
struct Quantiles {
  double p50 = std::numeric_limits<double>::quiet_NaN();
  double p99 = std::numeric_limits<double>::quiet_NaN();
  // The level ended while requests waited that may have come out slower: the true value is this or
  // more.
  bool p50_at_least = false, p99_at_least = false;
};

// One level. Counts are of the requests that were due in the measured window; each is counted under
// exactly one of completed, unfinished, refused_429, refused_503, errors, not_sent.
struct SweepLevel {
  double load = 0;      // times the capacity
  double rate = 0;      // asked for, requests/s
  double window_s = 0;  // measured: the level without its ramp
  int64_t offered = 0;
  int64_t completed = 0;
  int64_t unfinished = 0;  // open when the level and its drain were over; closed by us
  int64_t refused_429 = 0, refused_503 = 0;
  int64_t refused_no_retry = 0;  // of both: those without Retry-After
  std::string first_refusal;     // the server's words
  std::map<std::string, int64_t> errors;
  std::string first_error;
  int64_t not_sent = 0;  // connections_max were open
  int64_t good = 0;      // completed within both targets
  double out_tps = 0;    // output tokens that arrived in the window, a second
  Quantiles ttft;        // from when the request was due to its first output
  Quantiles gap;         // between two chunks of one request, of those that arrived in the window
  Quantiles queue;       // arrival to first scheduled, as usage.kvasir.queue_ms tells
  int64_t prompt_tokens = 0, cached_tokens = 0;  // of the completed
  int64_t hot_completed = 0;                     // with the common prefix
  Quantiles hot_ttft;
  double send_lag_p99 = 0;               // from due to sent: what the generator itself added
  double client_cpu = 0;                 // its share of one core
  int64_t open_max = 0;                  // most connections at once
  std::map<std::string, double> server;  // what its counters grew by over the whole level

  int64_t errors_total() const;
  int64_t refused() const { return refused_429 + refused_503; }
  int64_t accepted() const { return completed + unfinished; }
  double offered_rps() const { return PerSecond(offered); }
  double good_rps() const { return PerSecond(good); }
  double refused_share() const;  // of the offered; 0 if there were none
  double PerSecond(int64_t count) const;
};

struct SweepReport {
  std::string label, url, model;
  uint64_t seed = 0;
  double capacity = 0;  // requests/s
  bool capacity_measured = false;
  double slo_ttft_s = 0, slo_itl_s = 0;
  std::string workload;  // in words
  std::vector<SweepLevel> levels;
};

// Sorts outcomes into a level. Times are of the steady clock.
class LevelTally {
 public:
  LevelTally(double slo_ttft_s, double slo_itl_s, int64_t window_start_ns, int64_t window_end_ns);
  void Add(const Outcome& outcome);
  // Fills all but load, rate, client_cpu, open_max and server.
  void Fill(SweepLevel* level) const;

 private:
  void AddTokens(const Outcome& outcome);
  bool Good(const Outcome& outcome, double ttft_s) const;

  double slo_ttft_s_, slo_itl_s_;
  int64_t start_ns_, end_ns_;
  SweepLevel counts_;
  std::vector<double> ttft_, waiting_, hot_ttft_, hot_waiting_, gaps_, queue_, lags_;
  int64_t window_chunks_ = 0;        // arrived in the window
  int64_t chunks_ = 0, tokens_ = 0;  // of completed requests
};

// Percentiles p50 and p99 of values beside requests that were still waiting, for so long, when
// looking ended.
Quantiles QuantilesOf(const std::vector<double>& values, const std::vector<double>& waiting = {});

std::string SweepTableHeader();
std::string SweepTableRow(const SweepLevel& level);  // more lines if there were errors
std::string SweepJson(const SweepReport& report);
// kInvalidArgument: not what SweepJson writes.
Result<SweepReport> ParseSweepJson(std::string_view text);

}  // namespace kvasir
