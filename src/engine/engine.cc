// The in-process worker: inbox, thread and snapshot around EngineCore.
#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "engine/engine_core.h"

namespace kvasir {
namespace {

struct SubmitCommand {
  Request request;
  std::shared_ptr<EventSink> sink;
};
struct CancelCommand {
  RequestId request;
};
struct FinishCommand {
  RequestId request;
  int32_t choice = 0;
};
struct CacheCommand {
  CacheRequest request;
  std::function<void(CacheReply)> done;
};
using Command = std::variant<SubmitCommand, CancelCommand, FinishCommand, CacheCommand>;

constexpr int64_t kNapMost = 60'000'000'000;

uint64_t RandomSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

class LocalEngine final : public Engine {
 public:
  LocalEngine(const EngineOptions& options, WorkerInfo info, const SchedulerOptions& scheduler,
              std::unique_ptr<KvCache> cache, std::unique_ptr<SwapSpace> swap, ModelRunner* runner,
              KvArena* arena, const Clock* clock, Executor* executor, StepObserver* observer)
      : options_(options),
        info_(std::move(info)),
        observer_(observer),
        clock_(clock),
        executor_(executor),
        seed_(RandomSeed()),
        core_(scheduler, std::move(cache), std::move(swap), runner, arena, clock, executor) {
    free_seats_ = core_.free_seats();
    stats_ = core_.stats();
  }
  ~LocalEngine() override { Stop(); }

  Status Submit(Request request, std::shared_ptr<EventSink> sink) override;
  void Cancel(RequestId request) override;
  void FinishChoice(RequestId request, int32_t choice) override;
  void Cache(CacheRequest request, std::function<void(CacheReply)> done) override;
  const WorkerInfo& info() const override { return info_; }
  WorkerStats stats() const override;
  void Drain(int64_t timeout_ns) override;

  void Start() override;
  void Stop() override;
  bool Step() override;
  void CheckIntegrity() const override { core_.CheckIntegrity(); }

 private:
  Status Check(const Request& request) const;
  // Under mutex_. Requests that will find a seat in the next step do not wait.
  bool QueueFull() const {
    return pending_ >= static_cast<int64_t>(options_.max_queue) + free_seats_;
  }
  void Apply(Command command);
  bool draining() const {
    const std::lock_guard lock(mutex_);
    return draining_;
  }
  void Publish(const StepStats& step);
  void Loop();

  const EngineOptions options_;
  const WorkerInfo info_;
  StepObserver* const observer_;
  const Clock* const clock_;
  Executor* const executor_;
  const uint64_t seed_;
  EngineCore core_;  // touched by the stepping thread only; Admissible reads constants
  // Answered after the snapshot is out: who gets a reply also sees the numbers that go with it.
  std::vector<std::pair<std::function<void(CacheReply)>, CacheReply>> replies_;
  std::vector<Command> taken_;  // a step's commands; keeps its memory
  std::thread thread_;
  bool stopped_ = false;  // Stop has run to its end; caller's thread only

  mutable std::mutex mutex_;
  std::condition_variable wake_;     // the thread: something in the inbox, or stop
  std::condition_variable drained_;  // Drain: nothing live any more
  // Under mutex_:
  std::vector<Command> inbox_;
  std::map<RequestId, bool> live_;  // accepted and not ended; true: a cancel is in the inbox
  int64_t undelivered_ = 0;         // accepted, last event not yet given to the sink
  int64_t inbox_submits_ = 0;
  int64_t pending_ = 0;  // accepted and never run: what the queue limit counts
  int32_t free_seats_ = 0;
  bool draining_ = false;
  bool stopping_ = false;
  WorkerStats stats_;
};

Status LocalEngine::Check(const Request& request) const {
  KVASIR_RETURN_IF_ERROR(request.sampling.Validate(info_.vocab));
  if (request.prompt.size() > static_cast<size_t>(INT32_MAX)) {
    return InvalidArgument("the prompt is too long", "prompt");
  }
  KVASIR_RETURN_IF_ERROR(core_.Admissible(static_cast<int32_t>(request.prompt.size()), request.n));
  for (const TokenId token : request.prompt) {
    if (token >= 0 && token < info_.vocab) continue;
    return InvalidArgument("prompt holds token id " + std::to_string(token) +
                               ", the vocabulary has ids 0 to " + std::to_string(info_.vocab - 1),
                           "prompt");
  }
  return Status::Ok();
}

Status LocalEngine::Submit(Request request, std::shared_ptr<EventSink> sink) {
  KVASIR_CHECK(sink != nullptr);
  KVASIR_RETURN_IF_ERROR(Check(request));
  {
    const std::lock_guard lock(mutex_);
    if (draining_ || stopping_) return Unavailable("the server is shutting down");
    if (live_.contains(request.id)) {
      return InvalidArgument("request id " + std::to_string(request.id.value) + " is in use",
                             "request_id");
    }
    if (QueueFull()) {
      return ResourceExhausted("the queue is full: " + std::to_string(pending_) +
                               " requests wait, the limit is " +
                               std::to_string(options_.max_queue));
    }
    live_.emplace(request.id, false);
    ++undelivered_;
    ++pending_;
    ++inbox_submits_;
    inbox_.emplace_back(SubmitCommand{std::move(request), std::move(sink)});
  }
  wake_.notify_one();
  return Status::Ok();
}

void LocalEngine::Cancel(RequestId request) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = live_.find(request);
    if (it == live_.end() || it->second) return;
    it->second = true;
    inbox_.emplace_back(CancelCommand{request});
  }
  wake_.notify_one();
}

void LocalEngine::FinishChoice(RequestId request, int32_t choice) {
  {
    const std::lock_guard lock(mutex_);
    if (!live_.contains(request)) return;
    inbox_.emplace_back(FinishCommand{request, choice});
  }
  wake_.notify_one();
}

void LocalEngine::Cache(CacheRequest request, std::function<void(CacheReply)> done) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      inbox_.emplace_back(CacheCommand{std::move(request), std::move(done)});
      wake_.notify_one();
      return;
    }
  }
  CacheReply reply;
  reply.status = Unavailable("the server is shutting down");
  done(std::move(reply));
}

WorkerStats LocalEngine::stats() const {
  const std::lock_guard lock(mutex_);
  WorkerStats stats = stats_;
  stats.waiting += inbox_submits_;
  stats.queued = pending_;
  stats.queue_full = QueueFull();
  return stats;
}

void LocalEngine::Apply(Command command) {
  if (auto* submit = std::get_if<SubmitCommand>(&command)) {
    const uint64_t seed = CounterRandom(seed_, 0, submit->request.id.value);
    core_.Submit(std::move(submit->request), std::move(submit->sink), seed);
  } else if (const auto* cancel = std::get_if<CancelCommand>(&command)) {
    core_.Cancel(cancel->request,
                 Status(StatusCode::kCancelled,
                        draining() ? "the server is shutting down" : "the request was cancelled"));
  } else if (const auto* finish = std::get_if<FinishCommand>(&command)) {
    core_.FinishChoice(finish->request, finish->choice);
  } else if (auto* cache = std::get_if<CacheCommand>(&command)) {
    replies_.emplace_back(std::move(cache->done), core_.Cache(cache->request));
  }
}

bool LocalEngine::Step() {
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(inbox_);
    stats_.waiting += std::exchange(inbox_submits_, 0);  // until the step's own count replaces it
  }
  const bool any = core_.ExpireCache() || !taken_.empty();
  for (Command& command : taken_) Apply(std::move(command));
  taken_.clear();
  const bool worked = core_.Step();
  if (!worked && !any) return false;
  Publish(core_.last_step());
  return true;
}

// The books first, then the events: who sees a request end also sees the numbers without it.
void LocalEngine::Publish(const StepStats& step) {
  const std::vector<RequestId> ended = core_.TakeEnded();
  const WorkerStats stats = core_.stats();
  {
    const std::lock_guard lock(mutex_);
    stats_ = stats;
    pending_ = core_.fresh() + inbox_submits_;
    // Where some wait after a step it is not seats that are missing: no place is free for others.
    free_seats_ = core_.fresh() == 0 ? core_.free_seats() : 0;
    for (const RequestId request : ended) live_.erase(request);
  }
  if (observer_ != nullptr) observer_->OnStep(step, stats);
  core_.DeliverEvents();
  for (auto& [done, reply] : std::exchange(replies_, {})) done(std::move(reply));
  if (ended.empty()) return;
  const std::lock_guard lock(mutex_);
  undelivered_ -= static_cast<int64_t>(ended.size());
  if (undelivered_ == 0) drained_.notify_all();
}

void LocalEngine::Start() {
  KVASIR_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Loop(); });
}

void LocalEngine::Loop() {
  executor_->BindCaller();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto woken = [this] { return stopping_ || !inbox_.empty(); };
      // Pins and TTLs end while nothing runs, too.
      const int64_t due_ns = core_.next_expiry_ns();
      if (due_ns == INT64_MAX) {
        wake_.wait(lock, woken);
      } else {
        const int64_t left_ns = std::clamp<int64_t>(due_ns - clock_->NowNs(), 0, kNapMost);
        wake_.wait_for(lock, std::chrono::nanoseconds(left_ns), woken);
      }
      if (stopping_) return;
    }
    for (;;) {
      if (!Step()) break;
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
  }
}

void LocalEngine::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (std::exchange(stopped_, true)) return;
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(inbox_);
    inbox_submits_ = 0;
  }
  for (Command& command : commands) Apply(std::move(command));
  core_.CancelAll(Status(StatusCode::kCancelled, "the server is shutting down"));
  Publish({});
  drained_.notify_all();
}

void LocalEngine::Drain(int64_t timeout_ns) {
  const bool threaded = thread_.joinable();
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(std::max<int64_t>(timeout_ns, 0));
  const auto empty = [this] { return undelivered_ == 0 || stopping_; };
  std::unique_lock lock(mutex_);
  draining_ = true;
  // Without a thread of its own the engine is moved from here.
  const auto step_until = [&](auto done) {
    while (!done()) {
      lock.unlock();
      const bool worked = Step();
      lock.lock();
      if (!worked) return;
    }
  };
  if (threaded) {
    drained_.wait_until(lock, deadline, empty);
  } else {
    step_until([&] { return empty() || std::chrono::steady_clock::now() >= deadline; });
  }
  if (empty()) return;
  for (auto& [request, cancelled] : live_) {
    if (!std::exchange(cancelled, true)) inbox_.emplace_back(CancelCommand{request});
  }
  wake_.notify_one();
  if (threaded) {
    drained_.wait(lock, empty);
  } else {
    step_until(empty);
  }
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Make(const EngineOptions& options, WorkerInfo info,
                                             ModelRunner* runner, KvArena* arena,
                                             const Clock* clock, Executor* executor,
                                             StepObserver* observer) {
  KVASIR_RETURN_IF_ERROR(options.Validate());
  const KvLayout& layout = arena->layout();
  const int64_t pool_tokens = static_cast<int64_t>(arena->blocks()) * layout.block_tokens();
  if (info.max_model_len > 0 && options.max_model_len > info.max_model_len) {
    return InvalidArgument("--max-model-len is " + std::to_string(options.max_model_len) +
                               ", the model was made for at most " +
                               std::to_string(info.max_model_len) + " tokens",
                           "--max-model-len");
  }
  int64_t max_model_len = pool_tokens;
  if (info.max_model_len > 0) max_model_len = std::min<int64_t>(max_model_len, info.max_model_len);
  if (options.max_model_len > 0)
    max_model_len = std::min<int64_t>(max_model_len, options.max_model_len);
  if (max_model_len < 2) {
    return InvalidArgument("--max-model-len is " + std::to_string(max_model_len) +
                               ", a sequence needs at least 2 tokens",
                           "--max-model-len");
  }
  constexpr int32_t kAutomaticBudget = 512;
  const int32_t budget =
      options.max_num_batched_tokens > 0 ? options.max_num_batched_tokens : kAutomaticBudget;
  SchedulerOptions scheduler;
  scheduler.max_model_len = static_cast<int32_t>(std::min<int64_t>(max_model_len, INT32_MAX / 2));
  scheduler.max_num_seqs = options.max_num_seqs;
  scheduler.max_num_batched_tokens = std::min(budget, runner->max_rows());
  scheduler.queue_timeout_ns = static_cast<int64_t>(options.queue_timeout_s * 1e9);
  scheduler.reserve_blocks = options.reserve_blocks;
  scheduler.policy = SchedulingPolicyByName(options.scheduling_policy).value();
  scheduler.preempt = PreemptModeByName(options.preempt).value();
  scheduler.resume_tokens = runner->resume_tokens();
  scheduler.prefill_beside_decodes = options.prefill_beside_decodes;
  scheduler.itl_target_ns = static_cast<int64_t>(options.itl_target_ms * 1e6);
  info.vocab = runner->vocab();
  info.max_model_len = scheduler.max_model_len;
  info.block_tokens = layout.block_tokens();
  info.pool_blocks = arena->blocks();
  info.seats = std::min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens);
  info.kv_bytes_per_token = layout.bytes_per_token();
  const uint64_t pool_bytes = static_cast<uint64_t>(arena->blocks()) * layout.block_bytes();
  uint64_t swap_bytes =
      options.swap_bytes > 0 ? options.swap_bytes : AutomaticSwapBytes(pool_bytes);
  if (scheduler.preempt == PreemptMode::kRecompute) swap_bytes = 0;
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<SwapSpace> swap,
                          SwapSpace::Make(swap_bytes, layout.block_bytes()));
  KvCacheOptions cache;
  cache.block_tokens = layout.block_tokens();
  cache.groups[0].bytes_per_token = layout.bytes_per_token();
  cache.groups[0].block_bytes = layout.block_bytes();
  cache.blocks = {arena->blocks()};
  cache.prefix_caching = options.prefix_caching;
  cache.evict = options.evict;
  cache.pin_budget = options.pin_budget;
  cache.pin_spare = (scheduler.max_model_len + cache.block_tokens - 1) / cache.block_tokens;
  cache.tenant_quota = options.tenant_quota;
  cache.host_slots = swap->slots();
  cache.name_seed = RandomSeed();
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> kv, KvCache::Make(cache));
  return std::unique_ptr<Engine>(
      std::make_unique<LocalEngine>(options, std::move(info), scheduler, std::move(kv),
                                    std::move(swap), runner, arena, clock, executor, observer));
}

}  // namespace kvasir
