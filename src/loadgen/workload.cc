#include "loadgen/workload.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "loadgen/load_driver.h"
#include "loadgen/task_pool.h"

namespace kvasir {
namespace {

// Collects outcomes from many threads and reports progress.
class Collector {
 public:
  Collector(std::string name, int64_t total, const BenchProgress& progress)
      : name_(std::move(name)), total_(total), progress_(progress), start_ns_(SteadyNowNs()) {}

  void Add(Outcome outcome) {
    const std::lock_guard lock(mutex_);
    if (!outcome.ok()) ++failed_;
    outcomes_.push_back(std::move(outcome));
    if (progress_) progress_(name_, static_cast<int64_t>(outcomes_.size()), total_, failed_);
  }
  Summary Finish() {
    const double wall_s = static_cast<double>(SteadyNowNs() - start_ns_) * 1e-9;
    return Summarize(name_, outcomes_, wall_s);
  }

 private:
  std::string name_;
  int64_t total_;
  const BenchProgress& progress_;
  int64_t start_ns_;
  std::mutex mutex_;
  std::vector<Outcome> outcomes_;
  int64_t failed_ = 0;
};

Summary RunJobs(const std::string& name, const std::vector<CompletionJob>& jobs, size_t at_once,
                const Target& target, const BenchProgress& progress) {
  Collector collector(name, static_cast<int64_t>(jobs.size()), progress);
  {
    TaskPool pool(at_once);
    for (const CompletionJob& job : jobs) {
      pool.Start([&collector, &target, &job] { collector.Add(RunCompletion(target, job)); });
    }
  }
  return collector.Finish();
}

std::vector<CompletionJob> EqualJobs(PromptSource* source, int count, size_t input, int32_t output,
                                     const PromptUnits& prefix = {}) {
  std::vector<CompletionJob> jobs;
  jobs.reserve(static_cast<size_t>(std::max(count, 0)));
  for (int i = 0; i < count; ++i) jobs.push_back({Joined(prefix, source->Draw(input)), output});
  return jobs;
}

Summary RunMixed(PromptSource* source, const Target& target, const BenchProgress& progress) {
  constexpr size_t kInputs[] = {64, 128, 256, 512};
  constexpr int32_t kOutputs[] = {32, 64, 96};
  std::vector<CompletionJob> jobs;
  for (int i = 0; i < 32; ++i) {
    const size_t input = kInputs[source->Below(4)];
    jobs.push_back({source->Draw(input), kOutputs[source->Below(3)]});
  }
  return RunJobs("w4 32 reqs, 16 at once", jobs, 16, target, progress);
}

Summary RunAgents(const Target& target, const LoadShape& shape, const BenchProgress& progress) {
  constexpr int kAgents = 4, kTurns = 6;
  Collector collector("w5 4 agents x 6 turns", kAgents * kTurns, progress);
  {
    TaskPool pool(kAgents);
    for (int agent = 0; agent < kAgents; ++agent) {
      pool.Start([&collector, &target, &shape, agent] {
        PromptSource source(target, shape, 500 + static_cast<uint64_t>(agent));
        PromptUnits history = source.Draw(600);
        for (int turn = 0; turn < kTurns; ++turn) {
          history = Joined(history, source.Draw(100));
          collector.Add(RunCompletion(target, {history, 24}));
          history = Joined(history, source.Draw(24));  // stands for the answer
        }
      });
    }
  }
  return collector.Finish();
}

// Only the decoding user's times count; the arriving prompts' failures do.
Summary RunInterference(PromptSource* source, const Target& target, const BenchProgress& progress) {
  const CompletionJob decoder{source->Draw(128), 160};
  const std::vector<CompletionJob> prompts = EqualJobs(source, 2, 4096, 1);
  Collector collector("w6 decoder beside long prompts", 1, progress);
  std::vector<Outcome> failed;
  {
    std::thread background([&] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      for (const CompletionJob& job : prompts) {
        Outcome outcome = RunCompletion(target, job);
        if (!outcome.ok()) failed.push_back(std::move(outcome));
      }
    });
    collector.Add(RunCompletion(target, decoder));
    background.join();
  }
  for (Outcome& outcome : failed) collector.Add(std::move(outcome));
  return collector.Finish();
}

// One user's requests, one after the other; a failed one ends the session.
void RunSession(const Traffic& traffic, const Target& target, int64_t index, Collector* collector) {
  CompletionJob job = traffic.First(index);
  for (int32_t turn = 1;; ++turn) {
    Outcome outcome = RunCompletion(target, job);
    const bool more = outcome.ok() && turn < traffic.options().turns;
    if (more) job = traffic.Next(index, turn, job, outcome);
    collector->Add(std::move(outcome));
    if (!more) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(traffic.options().think_s));
  }
}

}  // namespace

std::vector<Summary> RunWorkload(const std::string& name, const Target& target,
                                 const LoadShape& shape, const BenchProgress& progress) {
  PromptSource source(target, shape, static_cast<uint64_t>(name.back()));
  if (name == "w1") {
    return {RunJobs("w1 single 512+64", EqualJobs(&source, 3, 512, 64), 1, target, progress)};
  }
  if (name == "w2") {
    return {RunJobs("w2 single 4096+64", EqualJobs(&source, 2, 4096, 64), 1, target, progress)};
  }
  if (name == "w3") {
    const PromptUnits prefix = source.Draw(2000);
    const auto cold = EqualJobs(&source, 8, 64, 32, prefix);
    const auto warm = EqualJobs(&source, 8, 64, 32, prefix);
    return {RunJobs("w3a 8 users, 2000 shared, cold", cold, 8, target, progress),
            RunJobs("w3b 8 users, 2000 shared, warm", warm, 8, target, progress)};
  }
  if (name == "w4") return {RunMixed(&source, target, progress)};
  if (name == "w5") return {RunAgents(target, shape, progress)};
  KVASIR_CHECK(name == "w6");
  return {RunInterference(&source, target, progress)};
}

Summary RunClosedLoop(const LoopOptions& options, const Target& target, const LoadShape& shape,
                      const BenchProgress& progress) {
  const Traffic traffic(options.traffic, target, shape);
  const int64_t turns = options.traffic.turns;
  const int64_t sessions = (options.requests + turns - 1) / turns;
  Collector collector("closed loop, " + std::to_string(options.concurrency) + " users",
                      sessions * turns, progress);
  {
    TaskPool pool(static_cast<size_t>(options.concurrency));
    for (int64_t i = 0; i < sessions; ++i) {
      pool.Start([&, i] { RunSession(traffic, target, i, &collector); });
    }
  }
  return collector.Finish();
}

std::vector<double> PoissonArrivals(double rate, double duration_s, uint64_t seed) {
  std::vector<double> arrivals;
  PoissonProcess process(rate, seed);
  for (double at = process.Next(); at < duration_s; at = process.Next()) arrivals.push_back(at);
  return arrivals;
}

Result<Summary> RunOpenLoop(const LoopOptions& options, const Target& target,
                            const LoadShape& shape, const BenchProgress& progress) {
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<LoadClient> client,
                          LoadClient::Create(target, options.in_flight_max));
  const Traffic traffic(options.traffic, target, shape);
  char name[64];
  std::snprintf(name, sizeof(name), "open loop, %g/s for %g s", options.rate, options.duration_s);
  Collector collector(name, 0, progress);
  int64_t not_sent = 0;
  LoadDriver driver(client.get(), &traffic, [&](const Outcome& outcome) {
    if (outcome.error == "not sent") {
      ++not_sent;
    } else {
      collector.Add(outcome);
    }
  });
  DriveOptions drive;
  drive.rate = options.rate;
  drive.duration_s = options.duration_s;
  drive.drain_s = target.timeout_s + 1;
  drive.seed = shape.seed;
  driver.Run(drive);
  Summary summary = collector.Finish();
  summary.not_sent = not_sent;
  return summary;
}

}  // namespace kvasir
