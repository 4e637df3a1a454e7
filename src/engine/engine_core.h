// EngineCore: one step after the other, in the caller's thread. No locks: Engine puts the inbox and
// the thread around it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "engine/batch_builder.h"
#include "engine/live_request.h"
#include "engine/model_runner.h"
#include "engine/step_sampler.h"
#include "engine/swap_space.h"
#include "engine/worker.h"
#include "env/clock.h"
#include "kvcache/kv_arena.h"
#include "kvcache/kv_cache.h"
#include "scheduler/scheduler.h"

namespace kvasir {

class EngineCore {
 public:
  // The pointers outlive the core. cache: one group of layers, as many blocks as the arena and as
  // many host slots as swap has.
  EngineCore(const SchedulerOptions& options, std::unique_ptr<KvCache> cache,
             std::unique_ptr<SwapSpace> swap, ModelRunner* runner, KvArena* arena,
             const Clock* clock, Executor* executor);

  // Checks that depend on constants only: any thread may ask.
  Status Admissible(int32_t prompt_tokens, int32_t choices) const {
    return scheduler_.Admissible(prompt_tokens, choices);
  }

  // The request has been checked; its id is not in use. `seed` is used if it brings none.
  void Submit(Request request, std::shared_ptr<EventSink> sink, uint64_t seed);
  void Cancel(RequestId request, const Status& why);
  void CancelAll(const Status& why);
  void FinishChoice(RequestId request, int32_t choice);
  CacheReply Cache(const CacheRequest& request);

  // Plan, run, commit. False: there was nothing to run and nothing ended.
  bool Step();
  // Gives the events since the last call to their sinks.
  void DeliverEvents();
  // Requests that ended since the last call.
  std::vector<RequestId> TakeEnded() { return std::exchange(ended_, {}); }

  bool idle() const { return scheduler_.idle(); }
  // Ends pins and TTLs that are over; false: none was due.
  bool ExpireCache();
  int64_t next_expiry_ns() const { return cache_->next_expiry_ns(); }
  int64_t fresh() const { return scheduler_.counts().fresh; }
  int32_t free_seats() const { return scheduler_.counts().free_seats; }
  int32_t seats() const { return scheduler_.seats(); }
  WorkerStats stats() const;
  const StepStats& last_step() const { return step_; }
  void CheckIntegrity() const;

 private:
  LiveRequest* Find(RequestId request);
  void Expire();
  void RunPlan(ScheduledBatch plan);
  void Move(const std::vector<BlockMove>& moves);
  void Pin(const CacheRequest& request, int32_t space, CacheReply* reply);
  void Commit(ScheduledBatch& plan);  // leaves it empty
  void EmitOutcome(LiveRequest& live, StepSampler::Outcome& sampled, ChoiceEnd end);
  TokenEvent& Emit(LiveRequest& live, int32_t choice, FinishReason finish, int64_t time_ns);
  void EmitError(LiveRequest& live, int32_t choice, FinishReason finish, const Status& why);

  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<SwapSpace> swap_;
  Scheduler scheduler_;
  ModelRunner* runner_;
  KvArena* arena_;
  const Clock* clock_;
  StepSampler sampler_;
  std::map<RequestId, std::unique_ptr<LiveRequest>> live_;
  std::vector<LiveRequest*> touched_;  // have events, in the order they got the first
  std::vector<std::unique_ptr<LiveRequest>> closing_;  // ended, last events not delivered yet
  std::vector<RequestId> ended_;
  std::vector<LiveRequest*> item_live_;  // scratch: the request of each item of the plan
  BuiltBatch built_;                     // scratch
  StepStats step_;
  uint64_t steps_ = 0;
  uint64_t generation_tokens_ = 0;
};

}  // namespace kvasir
