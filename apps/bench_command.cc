// kvasir bench --url URL
#include <unistd.h>

#include <fstream>
#include <iostream>

#include "apps/bench_flags.h"
#include "apps/command.h"
#include "apps/files.h"
#include "loadgen/bench.h"
#include "loadgen/sweep_plot.h"

namespace kvasir {
namespace {

// "-": standard output.
int WriteText(const std::string& text, const std::string& path) {
  if (path == "-") {
    std::cout << text << std::endl;
    return FinishOutput(kExitOk);
  }
  std::ofstream file(path);
  file << text << "\n";
  file.close();
  if (file) return kExitOk;
  std::cerr << "kvasir bench: cannot write " << path << std::endl;
  return kExitFailure;
}

int FailRun(const Status& status) {
  Fail(status);
  return status.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

// Where the table goes: JSON may have standard output for itself.
struct Log {
  explicit Log(const BenchFlags& flags)
      : stream(flags.json_path == "-" ? std::cerr : std::cout),
        terminal(isatty(flags.json_path == "-" ? STDERR_FILENO : STDOUT_FILENO) != 0) {}
  std::ostream& stream;
  bool terminal;
};

int NothingSucceeded() {
  std::cerr << "kvasir bench: no request succeeded" << std::endl;
  return kExitFailure;
}

int Workloads(const BenchFlags& flags) {
  Log log(flags);
  const Result<BenchReport> report = RunBench(flags.bench, log.stream, log.terminal);
  if (!report.ok()) return FailRun(report.status());
  if (!flags.json_path.empty()) {
    const std::string json =
        ReportJson(report->summaries, flags.bench.url, report->model, flags.bench.shape.seed);
    if (WriteText(json, flags.json_path) != kExitOk) return kExitFailure;
  }
  return report->succeeded() == 0 ? NothingSucceeded() : kExitOk;
}

int Sweep(const BenchFlags& flags) {
  Log log(flags);
  const Result<Target> target = BenchTarget(flags.bench, log.stream);
  if (!target.ok()) return FailRun(target.status());
  const Result<SweepReport> report =
      RunSweep(flags.sweep, *target, flags.bench.shape, log.stream, log.terminal);
  if (!report.ok()) return FailRun(report.status());
  if (!flags.json_path.empty() && WriteText(SweepJson(*report), flags.json_path) != kExitOk) {
    return kExitFailure;
  }
  if (!flags.svg_path.empty() &&
      WriteText(SweepSvg({*report}, flags.title), flags.svg_path) != kExitOk) {
    return kExitFailure;
  }
  int64_t completed = 0;
  for (const SweepLevel& level : report->levels) completed += level.completed;
  return completed == 0 ? NothingSucceeded() : kExitOk;
}

int Plot(const BenchFlags& flags) {
  std::vector<SweepReport> reports;
  for (size_t i = 0; i < flags.plot.size(); ++i) {
    const Result<std::string> text = ReadInputFile(flags.plot[i], "--plot");
    if (!text.ok()) return FailRun(text.status());
    Result<SweepReport> report = ParseSweepJson(*text);
    if (!report.ok()) {
      return FailRun(
          InvalidArgument("--plot: " + flags.plot[i] + ": " + report.status().message(), "plot"));
    }
    if (!flags.label.empty()) report->label = flags.label[i];
    reports.push_back(std::move(report).value());
  }
  return WriteText(SweepSvg(reports, flags.title), flags.svg_path);
}

}  // namespace

int BenchCommand(int argc, const char* const* argv) {
  CLI::App app(
      "Load generator for any OpenAI-compatible server: the workloads w1 to w6 (default: all of "
      "them), a closed loop\n"
      "(--concurrency), an open loop (--rate), or a sweep over loads below and above capacity "
      "(--sweep). Greedy, streamed,\n"
      "ignore_eos. Exit code 1 if nothing succeeded.",
      "kvasir bench");
  app.footer(
      "Examples:\n  kvasir bench --url http://127.0.0.1:8080 --only w1,w4 --json report.json\n"
      "  kvasir bench --concurrency 16 --requests 200 --input-len 512 --output-len 64\n"
      "  kvasir bench --rate 4 --duration 60 --input-len 64:512 --output-len 64\n"
      "  kvasir bench --sweep --input-len 64:512 --output-len 32:96 --json a.json --svg a.svg\n"
      "  kvasir bench --plot a.json b.json --label before --label after --svg both.svg");
  BenchFlags flags;
  AddBenchFlags(&app, &flags);
  AddConfigFlag(&app);
  int exit_code = 0;
  if (!ParseFlags(&app, argc, argv, &exit_code)) return exit_code;
  if (const Status status = CompleteBenchFlags(app, &flags); !status.ok()) return Fail(status);
  switch (flags.mode) {
    case BenchMode::kSweep:
      return Sweep(flags);
    case BenchMode::kPlot:
      return Plot(flags);
    case BenchMode::kWorkloads:
      break;
  }
  return Workloads(flags);
}

}  // namespace kvasir
