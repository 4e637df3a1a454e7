#include "loadgen/bench.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvasir {
namespace {

Status CheckRange(const char* flag, double value, double low, double high) {
  if (value >= low && value <= high) return Status::Ok();
  char text[160];
  std::snprintf(text, sizeof(text), "--%s %g: must be %g to %g", flag, value, low, high);
  return InvalidArgument(text, flag);
}

Status CheckLoop(const LoopOptions& loop) {
  if (loop.concurrency > 0 && loop.rate > 0) {
    return InvalidArgument("--concurrency and --rate exclude each other: closed or open loop",
                           "rate");
  }
  KVASIR_RETURN_IF_ERROR(loop.traffic.Validate());
  if (loop.concurrency != 0) {
    KVASIR_RETURN_IF_ERROR(CheckRange("concurrency", loop.concurrency, 1, 4096));
    KVASIR_RETURN_IF_ERROR(CheckRange("requests", static_cast<double>(loop.requests), 1, 1e9));
  }
  if (loop.rate != 0) {
    KVASIR_RETURN_IF_ERROR(CheckRange("rate", loop.rate, 0.001, 10'000));
    KVASIR_RETURN_IF_ERROR(CheckRange("duration", loop.duration_s, 0.1, 86'400));
    KVASIR_RETURN_IF_ERROR(CheckRange("in-flight", loop.in_flight_max, 1, 4096));
  }
  return Status::Ok();
}

// One line, rewritten on a terminal; elsewhere nothing but the table.
BenchProgress TerminalProgress(std::ostream& log, bool log_is_terminal) {
  if (!log_is_terminal) return {};
  return [&log](const std::string& name, int64_t done, int64_t total, int64_t failed) {
    log << "\r\x1b[K" << name << ": " << done << "/" << total;
    if (failed > 0) log << ", " << failed << " failed";
    log << std::flush;
  };
}

}  // namespace

Status BenchOptions::Validate() const {
  KVASIR_RETURN_IF_ERROR(ParseHttpUrl(url).status());
  for (const std::string& name : only) {
    if (std::find(std::begin(kWorkloadNames), std::end(kWorkloadNames), name) ==
        std::end(kWorkloadNames)) {
      return InvalidArgument("--only '" + name + "': known are w1, w2, w3, w4, w5, w6", "only");
    }
  }
  KVASIR_RETURN_IF_ERROR(CheckRange("vocab", shape.vocab, 301, 10'000'000));
  KVASIR_RETURN_IF_ERROR(CheckRange("timeout", timeout_s, 1, 86'400));
  return CheckLoop(loop);
}

int64_t BenchReport::succeeded() const {
  int64_t sum = 0;
  for (const Summary& summary : summaries) sum += summary.ok;
  return sum;
}

Result<Target> BenchTarget(const BenchOptions& options, std::ostream& log) {
  Target target;
  KVASIR_ASSIGN_OR_RETURN(target.url, ParseHttpUrl(options.url));
  target.model = options.model;
  target.api_key = options.api_key;
  target.text = options.text;
  target.timeout_s = options.timeout_s;
  if (target.model.empty()) {
    Result<std::string> model = FirstModel(target);
    if (!model.ok()) {
      return Status(model.status().code(), target.url.ToString() + ": " + model.status().message());
    }
    target.model = std::move(model).value();
  }
  log << "model " << target.model << " at " << target.url.ToString() << ", seed "
      << options.shape.seed << (options.text ? ", prompts as text" : ", prompts as token ids")
      << "\n";
  return target;
}

Result<BenchReport> RunBench(const BenchOptions& options, std::ostream& log, bool log_is_terminal) {
  KVASIR_RETURN_IF_ERROR(options.Validate());
  KVASIR_ASSIGN_OR_RETURN(const Target target, BenchTarget(options, log));
  BenchReport report;
  report.model = target.model;
  if (options.warm_up) {
    const Outcome outcome = RunCompletion(target, {PromptUnits(40, 300), 8});
    if (!outcome.ok()) log << "warm-up failed: " << outcome.error << ": " << outcome.detail << "\n";
  }
  log << TableHeader() << std::endl;
  const BenchProgress progress = TerminalProgress(log, log_is_terminal);
  const auto show = [&](Summary summary) {
    log << (log_is_terminal ? "\r\x1b[K" : "") << TableRow(summary) << std::endl;
    report.summaries.push_back(std::move(summary));
  };
  const bool looped = options.loop.concurrency > 0 || options.loop.rate > 0;
  for (const char* name : kWorkloadNames) {
    const bool asked =
        std::find(options.only.begin(), options.only.end(), name) != options.only.end();
    if (!asked && (looped || !options.only.empty())) continue;
    for (Summary& summary : RunWorkload(name, target, options.shape, progress))
      show(std::move(summary));
  }
  if (options.loop.concurrency > 0)
    show(RunClosedLoop(options.loop, target, options.shape, progress));
  if (options.loop.rate > 0) {
    KVASIR_ASSIGN_OR_RETURN(Summary summary,
                            RunOpenLoop(options.loop, target, options.shape, progress));
    show(std::move(summary));
  }
  return report;
}

}  // namespace kvasir
