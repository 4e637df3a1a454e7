// What a run's outcomes come to: percentiles, rates, errors; as a table and as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "loadgen/completion.h"

namespace kvasir {

// The value at index min(n - 1, floor(p * n)) of the sorted values: always one that was measured.
// NaN if empty.
double Percentile(std::vector<double> values, double p);

// Seconds and tokens per second. NaN where nothing was measured (null in JSON, "-" in the table).
struct Summary {
  std::string name;
  int64_t requests = 0;
  int64_t ok = 0;
  int64_t not_sent = 0;  // arrivals beyond the limit in flight
  std::map<std::string, int64_t> errors;
  std::string first_error;  // its detail
  double wall = 0;
  double ttft_p50 = 0, ttft_p95 = 0, ttft_p99 = 0, ttft_max = 0;  // first output, from sending
  double itl_p50 = 0, itl_p99 = 0;  // between two chunks of one request
  double e2e_p50 = 0, e2e_p95 = 0, e2e_p99 = 0;
  double decode_tps_p50 =
      0;  // per request, (tokens - 1) / (last - first): fair if chunks hold several tokens
  double out_tps = 0;     // all output tokens over wall
  double prompt_tps = 0;  // all prompt tokens over wall
  int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  // Of the answered requests with the common prefix (--hot-share).
  int64_t hot_ok = 0, hot_prompt_tokens = 0, hot_cached_tokens = 0;
  double hot_ttft_p50 = 0, hot_ttft_p99 = 0;
};

Summary Summarize(std::string name, const std::vector<Outcome>& outcomes, double wall_s);

std::string TableHeader();
std::string TableRow(const Summary& summary);  // one line; a second one if there were errors
std::string ReportJson(const std::vector<Summary>& summaries, const std::string& url,
                       const std::string& model, uint64_t seed);

}  // namespace kvasir
