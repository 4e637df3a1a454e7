// kvasir bench --url URL
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>

#include "apps/api_keys.h"
#include "apps/command.h"
#include "loadgen/bench.h"

namespace kvasir {
namespace {

struct BenchFlags {
  BenchOptions bench;
  std::string api_key_file;
  std::vector<std::string> api_keys;
  std::string json_path;
};

void AddFlags(CLI::App* app, BenchFlags* flags) {
  BenchOptions* bench = &flags->bench;
  app->add_option("--url", bench->url, "server to load, http only")->capture_default_str();
  app->add_option("--model", bench->model,
                  "model name to ask for (default: the first of /v1/models)");
  app->add_option("--only", bench->only, "workloads, a list out of w1,w2,w3,w4,w5,w6")
      ->delimiter(',');
  app->add_flag("--text", bench->text,
                "prompts as common words, for servers that take no token ids");
  app->add_option("--vocab", bench->shape.vocab, "token ids are drawn from 300 up to this")
      ->capture_default_str();
  app->add_option("--seed", bench->shape.seed,
                  "of prompts and arrivals (default: from the clock, printed)");
  app->add_option("--concurrency", bench->loop.concurrency,
                  "closed loop: users that ask one after the other");
  bench->loop.requests = 100;
  app->add_option("--requests", bench->loop.requests, "closed loop: requests in all")
      ->capture_default_str();
  app->add_option("--rate", bench->loop.rate, "open loop: arrivals a second (Poisson)");
  bench->loop.duration_s = 60;
  app->add_option("--duration", bench->loop.duration_s, "open loop: seconds of arrivals")
      ->capture_default_str();
  app->add_option("--in-flight", bench->loop.in_flight_max,
                  "open loop: arrivals beyond this many open requests are not sent, and counted")
      ->capture_default_str();
  app->add_option("--input-len", bench->loop.input_tokens, "loops: prompt tokens")
      ->capture_default_str();
  app->add_option("--output-len", bench->loop.output_tokens, "loops: output tokens")
      ->capture_default_str();
  app->add_option("--shared-len", bench->loop.shared_tokens,
                  "loops: prompt tokens that all requests share")
      ->capture_default_str();
  app->add_option("--timeout", bench->timeout_s, "seconds for one request")->capture_default_str();
  app->add_option("--api-key", flags->api_keys, "bearer token")->expected(1);
  app->add_option("--api-key-file", flags->api_key_file,
                  "file whose first line is the bearer token");
  app->add_option("--json", flags->json_path,
                  "report as JSON into this file; without a name or with -, to standard output")
      ->expected(0, 1);
}

int WriteJson(const BenchReport& report, const BenchFlags& flags) {
  const std::string json =
      ReportJson(report.summaries, flags.bench.url, report.model, flags.bench.shape.seed);
  if (flags.json_path == "-") {
    std::cout << json << std::endl;
    return kExitOk;
  }
  std::ofstream file(flags.json_path);
  file << json << "\n";
  file.close();
  if (file) return kExitOk;
  std::cerr << "kvasir bench: cannot write " << flags.json_path << std::endl;
  return kExitFailure;
}

}  // namespace

int BenchCommand(int argc, const char* const* argv) {
  CLI::App app(
      "Load generator for any OpenAI-compatible server: the workloads w1 to w6 (default: all of "
      "them), a closed loop\n"
      "(--concurrency) or an open loop (--rate). Greedy, streamed, ignore_eos. Exit code 1 if "
      "nothing succeeded.",
      "kvasir bench");
  app.footer(
      "Examples:\n  kvasir bench --url http://127.0.0.1:8080 --only w1,w4 --json report.json\n"
      "  kvasir bench --concurrency 16 --requests 200 --input-len 512 --output-len 64\n"
      "  kvasir bench --rate 4 --duration 60 --input-len 256 --output-len 64");
  BenchFlags flags;
  flags.bench.shape.seed =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  AddFlags(&app, &flags);
  AddConfigFlag(&app);
  int exit_code = 0;
  if (!ParseFlags(&app, argc, argv, &exit_code)) return exit_code;
  if (app.count("--json") > 0 && flags.json_path.empty()) flags.json_path = "-";
  const Result<std::vector<std::string>> keys = CollectApiKeys(flags.api_keys, flags.api_key_file);
  if (!keys.ok()) return Fail(keys.status());
  if (!keys->empty()) flags.bench.api_key = keys->front();

  std::ostream& log = flags.json_path == "-" ? std::cerr : std::cout;
  const bool terminal = isatty(flags.json_path == "-" ? STDERR_FILENO : STDOUT_FILENO) != 0;
  const Result<BenchReport> report = RunBench(flags.bench, log, terminal);
  if (!report.ok()) {
    Fail(report.status());
    return report.status().code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure;
  }
  if (!flags.json_path.empty() && WriteJson(*report, flags) != kExitOk) return kExitFailure;
  if (report->succeeded() == 0) {
    std::cerr << "kvasir bench: no request succeeded" << std::endl;
    return kExitFailure;
  }
  return kExitOk;
}

}  // namespace kvasir
