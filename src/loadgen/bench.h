// `kvasir bench --url`: options, the run, and what is printed.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"
#include "loadgen/completion.h"
#include "loadgen/workload.h"

namespace kvasir {

struct BenchOptions {
  std::string url = "http://127.0.0.1:8080";
  std::string model;  // "": the first of /v1/models
  std::string api_key;
  std::vector<std::string> only;  // of w1..w6; empty: all, unless a loop is asked for
  bool text = false;
  LoadShape shape;
  LoopOptions loop;        // closed if concurrency > 0, open if rate > 0
  double timeout_s = 600;  // of one request
  bool warm_up = true;     // one small request first, not counted

  // Names the flag and its limit.
  Status Validate() const;
};

struct BenchReport {
  std::string model;
  std::vector<Summary> summaries;
  int64_t succeeded() const;
};

// Whom the options mean; asks the server for its first model if none is named, and prints what was
// found. Fails if it does not answer.
Result<Target> BenchTarget(const BenchOptions& options, std::ostream& log);

// Prints progress and the table to `log` as it goes. Fails only if no request can be sent at all
// (bad URL, no server); failures of requests stand in the report.
Result<BenchReport> RunBench(const BenchOptions& options, std::ostream& log, bool log_is_terminal);

}  // namespace kvasir
