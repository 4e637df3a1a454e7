// Worker: one engine as its callers see it. One of the five seams: in-process, simulated, remote.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/request.h"
#include "kvcache/block_pool.h"

namespace kvasir {

struct WorkerInfo {
  int32_t vocab = 0;
  int32_t max_model_len =
      0;  // prompt + output tokens of one sequence (--max-model-len, no more than the pool holds)
  int32_t block_tokens = 0;
  int64_t pool_blocks = 0;
  double kv_bytes_per_token = 0;
  std::string kv_type_k, kv_type_v;
  int32_t threads = 0;
  std::string isa, precision;
};

// A snapshot between two steps.
struct WorkerStats {
  int64_t running = 0;  // sequences with blocks
  int64_t waiting = 0;  // requests
  PoolBooks books;
  int64_t slots_allocated = 0;  // token slots in blocks held by sequences
  int64_t slots_used = 0;       // of them, with a token
  // Counters since start.
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;            // of requests whose prompt was computed to the end
  uint64_t generation_tokens = 0;        // sampled
  uint64_t computed_prefill_tokens = 0;  // rows run for prompts, recomputation included
  uint64_t steps = 0;
};

struct StepStats {
  int32_t rows = 0;  // tokens in the step
  int32_t prefill_rows = 0;
  int32_t decode_rows = 0;
  int64_t schedule_ns = 0, build_ns = 0, run_ns = 0, sample_ns = 0, commit_ns = 0;
};

// Told after each step, in the engine's thread. Must be quick.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnStep(const StepStats& step, const WorkerStats& stats) = 0;
};

class Worker {
 public:
  virtual ~Worker() = default;
  // Any thread. OK: exactly one finishing event per choice will follow on the sink, whatever
  // happens. Failures (nothing follows): kInvalidArgument (can never fit: the numbers are in the
  // message; bad sampling value), kResourceExhausted (queue full), kUnavailable (draining).
  virtual Status Submit(Request request, std::shared_ptr<EventSink> sink) = 0;
  // Any thread. Takes effect before the next step; blocks come back; unfinished choices get
  // kCancelled. Unknown ids are fine.
  virtual void Cancel(RequestId request) = 0;
  // Ends one choice early with kStop (a stop string was seen by the server). Its sink gets no
  // further event for it.
  virtual void FinishChoice(RequestId request, int32_t choice) = 0;
  virtual const WorkerInfo& info() const = 0;
  virtual WorkerStats stats() const = 0;
  // Stops admitting; returns when all requests ended or the time is over (the rest is then
  // cancelled).
  virtual void Drain(int64_t timeout_ns) = 0;
};

}  // namespace kvasir
