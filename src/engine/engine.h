// Engine: the step loop (plan, run, commit) over scheduler, block pool and runner, and the
// in-process Worker around it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/parallel.h"
#include "base/status.h"
#include "engine/model_runner.h"
#include "engine/worker.h"
#include "env/clock.h"
#include "kvcache/kv_arena.h"

namespace kvasir {

struct EngineOptions {
  int32_t max_model_len = 0;  // 0: the model's context
  int32_t max_num_seqs = 256;
  // Rows of a step; 0: automatic (512, fewer if memory is short; of prompts beside decodes 128).
  int32_t max_num_batched_tokens = 0;
  // Of them prompts' rows in a step in which somebody decodes; 0: all that is left.
  int32_t prefill_beside_decodes = 0;
  int32_t max_queue = 1024;  // requests that never ran, beyond those a free seat is there for
  double queue_timeout_s = 60;
  double reserve_blocks = 0.02;  // watermark: share of the pool kept free when admitting
  bool prefix_caching = true;
  std::string evict = "cost";              // lru fifo slru s3fifo cost
  std::string preempt = "auto";            // swap recompute auto
  std::string scheduling_policy = "fcfs";  // fcfs priority prefix
  double itl_target_ms = 0;                // 0: off
  uint64_t swap_bytes = 0;    // host memory for swapped sequences; 0: a quarter of the pool, at
                              // most 1 GiB
  double pin_budget = 0.5;    // share of the pool that pins may hold
  double tenant_quota = 0.5;  // soft share of one tenant or salt
  Status Validate() const;    // names flag and limit
};

// In-process worker. Submit, Cancel and FinishChoice put commands into an inbox that the next step
// takes; Step does the work. Start runs steps in a thread of its own and sleeps when idle; tests
// call Step themselves (then Drain steps in the caller's thread). Sinks and the observer are called
// by whoever steps, and by Stop.
class Engine : public Worker {
 public:
  // All pointers outlive the engine. info: the parts the caller knows (kv types, threads, isa,
  // precision) are passed on.
  static Result<std::unique_ptr<Engine>> Make(const EngineOptions& options, WorkerInfo info,
                                              ModelRunner* runner, KvArena* arena,
                                              const Clock* clock, Executor* executor,
                                              StepObserver* observer);
  virtual void Start() = 0;
  virtual void Stop() = 0;                  // ends the thread; unfinished requests get kCancelled
  virtual bool Step() = 0;                  // false: nothing to do
  virtual void CheckIntegrity() const = 0;  // books, tables, reference counts; CHECKs
};

}  // namespace kvasir
