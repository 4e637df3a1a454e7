// Cost of Plan and Commit with many running and waiting: median and worst of many steps, beside the
// target of 100 us. No model: every token is the number of its step.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "base/hash.h"
#include "kvcache/kv_cache.h"
#include "scheduler/scheduler.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int32_t kRunning = 256, kWaiting = 1024, kPrompt = 512;

double Micros(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

class Bench {
 public:
  // ends: choices that end in each step, each followed by a new request.
  Bench(const char* name, SchedulingPolicy policy, bool tight, int32_t ends)
      : name_(name), ends_(ends) {
    KvCacheOptions cache;
    cache.blocks = {tight ? kRunning * (kPrompt + 64) / 16 : 1 << 16};
    cache.host_slots = 1 << 12;
    cache_ = KvCache::Make(cache).value();
    SchedulerOptions options;
    options.max_model_len = 4096;
    options.max_num_seqs = kRunning;
    options.max_num_batched_tokens = 1024;
    options.policy = policy;
    scheduler_ = std::make_unique<Scheduler>(options, cache_.get());
  }

  void Run() {
    for (int32_t i = 0; i < kRunning + kWaiting; ++i) Add();
    while (scheduler_->counts().free_seats > 0 && steps_ < 2000) Step(false);
    for (int i = 0; i < 20; ++i) Step(true);  // everybody decodes
    plan_.clear();
    commit_.clear();
    const uint64_t preempted = scheduler_->counts().preemptions;
    for (int i = 0; i < 1000; ++i) {
      while (scheduler_->counts().fresh < kWaiting) Add();
      Step(true);
    }
    std::vector<double> both;
    for (size_t i = 0; i < plan_.size(); ++i) both.push_back(plan_[i] + commit_[i]);
    std::printf("%-34s plan %6.1f  commit %6.1f  both %6.1f  p99 %6.1f us", name_, Median(plan_),
                Median(commit_), Median(both), At(both, 0.99));
    std::printf("  (%lld run, %lld wait, %llu preempted)\n",
                static_cast<long long>(scheduler_->counts().running),
                static_cast<long long>(scheduler_->counts().waiting),
                static_cast<unsigned long long>(scheduler_->counts().preemptions - preempted));
  }

 private:
  static double At(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  }
  static double Median(const std::vector<double>& values) { return At(values, 0.5); }

  void Add() {
    NewRequest request;
    request.id = RequestId(next_id_);
    for (int32_t i = 0; i < kPrompt; ++i) {
      // A quarter is a system prompt that many share.
      const uint64_t stream = i < kPrompt / 4 ? next_id_ % 16 : 100 + next_id_;
      request.prompt.push_back(
          static_cast<TokenId>(CounterRandom(1, stream, static_cast<uint64_t>(i)) % 50000));
    }
    request.max_tokens = 100000;
    request.space = cache_->OpenSpace("", "");
    request.priority = static_cast<int32_t>(next_id_ % 3);
    ++next_id_;
    scheduler_->Add(std::move(request), now_ns_);
  }

  void Step(bool ends) {
    now_ns_ += 1'000'000;
    const auto start = Clock::now();
    ScheduledBatch batch = scheduler_->Plan(now_ns_);
    const auto planned = Clock::now();
    outcomes_.clear();
    int32_t ended = 0;
    for (size_t i = 0; i < batch.items.size(); ++i) {
      if (!batch.items[i].samples) continue;
      ChoiceOutcome outcome{static_cast<int32_t>(i), 0, static_cast<TokenId>(steps_), false, false};
      // The oldest end, now and then: sequences of all ages run.
      outcome.stop = ends && ended < ends_;
      ended += outcome.stop ? 1 : 0;
      outcomes_.push_back(outcome);
    }
    const auto sampled = Clock::now();
    if (!batch.empty()) (void)scheduler_->Commit(std::move(batch), outcomes_);
    const auto done = Clock::now();
    plan_.push_back(Micros(start, planned));
    commit_.push_back(Micros(sampled, done));
    ++steps_;
  }

  const char* name_;
  int32_t ends_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<ChoiceOutcome> outcomes_;
  std::vector<double> plan_, commit_;
  uint64_t next_id_ = 1;
  int64_t now_ns_ = 0;
  int steps_ = 0;
};

}  // namespace
}  // namespace kvasir

int main() {
  using kvasir::Bench;
  using kvasir::SchedulingPolicy;
  std::printf("256 running, 1,024 waiting, prompts of 512; target: plan + commit under 100 us\n");
  Bench("decode only", SchedulingPolicy::kFcfs, false, 0).Run();
  Bench("one ends and one comes in a step", SchedulingPolicy::kFcfs, false, 1).Run();
  Bench("blocks short, fcfs", SchedulingPolicy::kFcfs, true, 0).Run();
  Bench("blocks short, one ends, fcfs", SchedulingPolicy::kFcfs, true, 1).Run();
  Bench("blocks short, one ends, priority", SchedulingPolicy::kPriority, true, 1).Run();
  Bench("one ends, prefix", SchedulingPolicy::kPrefix, false, 1).Run();
  return 0;
}
