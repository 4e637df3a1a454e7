// Worker: one engine as its callers see it. One of the five seams: in-process, simulated, remote.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "kvcache/block_pool.h"
#include "kvcache/cache_types.h"

namespace kvasir {

struct WorkerInfo {
  int32_t vocab = 0;
  int32_t max_model_len =
      0;  // prompt + output tokens of one sequence (--max-model-len, no more than the pool holds)
  int32_t block_tokens = 0;
  int64_t pool_blocks = 0;
  int32_t seats = 0;  // sequences that can run at once
  double kv_bytes_per_token = 0;
  std::string kv_type_k, kv_type_v;
  // What is known about these formats for this model: "reference", "not certified", "certified:
  // strict", or why the certificate says no.
  std::string kv_verdict;
  bool kv_failed = false;  // the certificate says no
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
  CacheCounts cache;
  int64_t queued = 0;        // requests that never ran
  bool queue_full = false;   // one more would be refused now
  double retry_after_s = 1;  // when a place in the queue is expected to be free, if it is full now
  // Counters since start.
  uint64_t preemptions = 0;
  uint64_t preemptions_swap = 0;         // of them by swap; the rest by recompute
  uint64_t prefill_tokens_saved = 0;     // found instead of computed, resumptions included
  double prefill_seconds_saved = 0;      // the same at the measured speed of prefill
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

// /v1/kvcache*. Tokens or a session name say which prefix.
struct CacheRequest {
  enum class Kind : uint8_t { kState, kPin, kUnpin, kReset };
  Kind kind = Kind::kState;
  std::string tenant, salt;
  std::vector<TokenId> tokens;
  std::string session;
  double ttl_s = 0;        // kPin: more than 0
  uint64_t pin = 0;        // kUnpin by id
  bool drop_pins = false;  // kReset: pinned blocks too
  int32_t most = 10;       // kState: prefixes, owners
};

struct CacheReply {
  Status status;         // kResourceExhausted: beyond the pin budget, with the numbers
  PinInfo pin;           // kPin
  int32_t unpinned = 0;  // kUnpin: pins that ended
  ResetInfo reset;       // kReset
  PoolBooks books;       // kState, all kinds
  CacheCounts counts;
  int64_t slots_allocated = 0, slots_used = 0;
  std::vector<HotPrefix> hottest;
  std::vector<PinInfo> pins;
  std::vector<OwnerInfo> owners;
  int64_t now_ns = 0;  // engine clock, for expires_ns
  int64_t pin_budget_blocks = 0;
  std::string evict;
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
  // Any thread. `done` is called by the engine's thread before the next step (by the caller's if
  // the engine is stopping: kUnavailable); it must be quick.
  virtual void Cache(CacheRequest request, std::function<void(CacheReply)> done) = 0;
  virtual const WorkerInfo& info() const = 0;
  virtual WorkerStats stats() const = 0;
  // Stops admitting; returns when all requests ended or the time is over (the rest is then
  // cancelled).
  virtual void Drain(int64_t timeout_ns) = 0;
};

}  // namespace kvasir
