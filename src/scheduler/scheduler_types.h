// Plain values of the scheduler's interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/ids.h"
#include "kvcache/cache_types.h"

namespace kvasir {

enum class SchedulingPolicy : uint8_t { kFcfs, kPriority, kPrefix };
std::optional<SchedulingPolicy> SchedulingPolicyByName(std::string_view name);

enum class PreemptMode : uint8_t { kAuto, kSwap, kRecompute };
std::optional<PreemptMode> PreemptModeByName(std::string_view name);

struct SchedulerOptions {
  int32_t max_model_len = 0;  // prompt + output of one sequence; > 0
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 512;
  int64_t queue_timeout_ns = INT64_MAX;
  double reserve_blocks = 0.02;  // watermark, share of each group's pool, rounded up
  double growth_share = 0.5;     // part of the expected output for which admission keeps room
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  PreemptMode preempt = PreemptMode::kAuto;
  int64_t age_step_ns = 30'000'000'000;  // kPriority: one step of priority is worth so much waiting
  int64_t prefix_age_ns = 1'000'000;     // kPrefix: one cached token is worth so much waiting
  int32_t prefill_beside_decodes = 0;  // most prefill rows of a step in which somebody decodes; 0:
                                       // no such bound. Not used with itl_target_ns
  int64_t itl_target_ns = 0;           // 0: off
  int32_t itl_floor_rows = 16;         // prefill rows a step has in spite of it
  int32_t join_lookahead = 16;  // waiting for others' tokens: so many may be passed in one plan
  // 1, or a sequence begins at multiples of this only, since tokens after the last one are not all
  // in its blocks (ModelRunner::resume_tokens). It goes on anywhere in the slot it had.
  int32_t resume_tokens = 1;
};

// Slots of sequences that run (one more where a prompt's choices part), or wait after a swap with
// what their slot holds.
constexpr int32_t SlotsFor(int32_t seats) {
  return 2 * seats + 1;
}

// What one slot holds is wanted in another too: a request's prompt is done and its choices part.
struct SlotCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// What the run made of one choice in the batch. Each sampling item needs one for each of its open
// choices, ascending; others are allowed only to report a failure.
struct ChoiceOutcome {
  int32_t item = 0;  // index into ScheduledBatch::items
  int32_t choice = 0;
  TokenId token = -1;   // the sampled token; -1 with max_tokens 0 or a failure
  bool stop = false;    // the token is one that ends the choice
  bool failed = false;  // the choice ends now without a token
};

enum class ChoiceEnd : uint8_t { kGoesOn, kStop, kLength, kFailed };

struct ExpiredRequest {
  RequestId request;
  int64_t waited_ns = 0;
  bool deadline = false;  // its own deadline, not the queue's timeout
};

struct FirstAdmission {
  int64_t scheduled_ns = 0;
  int32_t cached_tokens = 0;              // prompt tokens found in the index
  MissReason reason = MissReason::kCold;  // of the largest part of the rest
};

struct SchedulerCounts {
  int64_t running = 0;  // sequences with blocks
  int64_t waiting = 0;  // requests with a sequence in the queue
  int64_t fresh = 0;    // of them, never admitted: what a queue limit counts
  int64_t joining = 0;  // sequences that the last plan left waiting for tokens others compute
  int32_t free_seats = 0;
  uint64_t preemptions = 0;              // all
  uint64_t preemptions_swap = 0;         // of them by swap; the rest by recompute
  uint64_t preemptions_priority = 0;     // of them for a more urgent request in the queue
  uint64_t prompt_tokens = 0;            // of requests whose prompt was computed to the end
  uint64_t computed_prefill_tokens = 0;  // rows committed that were not decodes
  uint64_t found_tokens = 0;             // found in the index at admissions, resumptions included
  uint64_t swapped_in_tokens = 0;        // brought back from host memory
  double found_ns = 0;                   // what found_tokens would have cost, as measured then
  double expected_output = 0;            // learnt tokens per choice; 0: nothing finished yet
  double retry_after_s = 1;              // when a place in a full queue is expected to be free
};

}  // namespace kvasir
