// Where a decode step's time goes: the engine's own parts of a step, for some users and ways of
// sampling, as shares of the whole. What is not the forward pass should be close to nothing.
//
//   step_bench MODEL [threads] [pin: off or a list of CPUs] [users ...]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/cpu_stack.h"
#include "env/affinity.h"
#include "env/clock.h"

namespace {

using namespace kvasir;  // NOLINT(google-build-using-namespace)

struct Parts final : StepObserver {
  void OnStep(const StepStats& s, const WorkerStats& /*stats*/) override {
    if (s.prefill_rows > 0 || s.decode_rows == 0) return;
    ++steps;
    schedule += static_cast<double>(s.schedule_ns);
    build += static_cast<double>(s.build_ns);
    run += static_cast<double>(s.run_ns);
    sample += static_cast<double>(s.sample_ns);
    commit += static_cast<double>(s.commit_ns);
  }
  double schedule = 0, build = 0, run = 0, sample = 0, commit = 0;
  int64_t steps = 0;
};

struct Dropped final : EventSink {
  void OnTokens(std::vector<TokenEvent>& events) override {
    tokens += static_cast<int64_t>(events.size());
  }
  int64_t tokens = 0;
};

void Measure(Engine& engine, const Clock& clock, Parts& parts, const char* name,
             const SamplingParams& way, int users) {
  static uint64_t next_id = 1;
  const auto sink = std::make_shared<Dropped>();
  for (int u = 0; u < users; ++u) {
    Request request;
    request.id = RequestId(next_id);
    Rng rng(next_id++);
    for (int i = 0; i < 16; ++i) {
      request.prompt.push_back(
          static_cast<TokenId>(rng.Below(static_cast<uint64_t>(engine.info().vocab))));
    }
    request.sampling = way;
    request.sampling.max_tokens = 65;
    request.sampling.seed = next_id;
    if (!engine.Submit(std::move(request), sink).ok()) std::abort();
  }
  while (sink->tokens < users) engine.Step();
  parts = {};
  const int64_t start_ns = clock.NowNs();
  while (engine.Step()) {
  }
  const auto all = static_cast<double>(clock.NowNs() - start_ns);
  const auto share = [all](double part) { return 100 * part / all; };
  const double rest = all - parts.schedule - parts.build - parts.run - parts.sample - parts.commit;
  std::printf("| %d | %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", users, name,
              all / 1e6 / static_cast<double>(parts.steps), share(parts.schedule),
              share(parts.build), share(parts.run), share(parts.sample), share(parts.commit),
              share(rest));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: step_bench MODEL [threads] [off|CPUS] [users ...]\n");
    return 2;
  }
  StackOptions options;
  options.model_path = argv[1];
  if (argc > 2) options.threads = std::atoi(argv[2]);
  if (argc > 3 && std::string(argv[3]) != "off") {
    auto cpus = ParseCpuList(argv[3], AllowedCpus());
    if (!cpus.ok()) {
      std::fprintf(stderr, "%s\n", cpus.status().ToString().c_str());
      return 2;
    }
    options.cpus = std::move(cpus).value();
    PinThisThread(options.cpus.front());  // this thread steps
  }
  std::vector<int> users;
  for (int i = 4; i < argc; ++i) users.push_back(std::atoi(argv[i]));
  if (users.empty()) users = {1, 16, 64};
  options.kv_bytes = 512ULL << 20;
  Parts parts;
  auto stack = CpuStack::Make(options, &parts);
  if (!stack.ok()) {
    std::fprintf(stderr, "%s\n", stack.status().ToString().c_str());
    return 3;
  }
  Engine& engine = (*stack)->engine();
  const SteadyClock clock;
  std::printf("%s: %d threads, %s; shares in %%\n", argv[1], engine.info().threads,
              engine.info().isa.c_str());
  std::printf("| users | sampling | step ms | plan | build | run | sample | commit | rest |\n");
  std::printf("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  SamplingParams greedy, top_p, top_k, min_p, logprobs;
  greedy.temperature = 0;
  top_p.top_p = 0.95F;
  top_k.top_k = 40;
  min_p.min_p = 0.05F;
  logprobs.temperature = 0;
  logprobs.logprobs = 5;
  for (const int count : users) {
    Measure(engine, clock, parts, "greedy", greedy, count);
    Measure(engine, clock, parts, "top_p 0.95", top_p, count);
    Measure(engine, clock, parts, "top_k 40", top_k, count);
    Measure(engine, clock, parts, "min_p 0.05", min_p, count);
    Measure(engine, clock, parts, "logprobs 5", logprobs, count);
  }
  return 0;
}
