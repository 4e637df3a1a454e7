// Scheduler: continuous batching as a state machine. Which sequences run, how many tokens of each,
// who gets a block, who waits. Moved by others: no clock, random, thread or I/O; time comes in as
// an argument; no decision looks at the order of a hash map or at a pointer. Not thread-safe.
//
// A step is Plan, (the caller runs it), then Commit or Abort. Between Plan and that no other call
// is allowed (checked).
//
// The plan of a step, in this order, under a budget of max_num_batched_tokens rows:
//   1. every decoding sequence gets its one row, in order of arrival. If it needs a block and none
//   is free, the latest-
//      arrived running sequence is preempted: its blocks are released, it returns to its place in
//      the queue and later computes prompt and generated tokens again. A sequence that is alone and
//      finds the pool exhausted ends.
//   2. prefill chunks of running sequences, in order of arrival, with what is left of the budget;
//   3. admission from the head of the queue (order of arrival, preempted ones keep theirs), unless
//   step 1 preempted: a
//      seat for every choice, blocks for all its tokens, and the watermark stays free (waived when
//      nothing runs). What does not fit waits at the head and is not overtaken.
// There are never more seats than budget rows, so 1 always fits and 2 always has a row when
// somebody prefills.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "kvcache/block_pool.h"
#include "scheduler/scheduled_batch.h"
#include "scheduler/sequence.h"

namespace kvasir {

struct SchedulerOptions {
  int32_t block_tokens = 16;
  int32_t max_model_len = 0;  // prompt + output of one sequence; > 0
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 512;
  int64_t queue_timeout_ns = INT64_MAX;
  double reserve_blocks = 0.02;  // watermark, share of the pool, rounded up to whole blocks
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

struct SchedulerCounts {
  int64_t running = 0;  // sequences with blocks
  int64_t waiting = 0;  // requests with a sequence in the queue
  int64_t fresh = 0;    // of them, never admitted: what a queue limit counts
  int32_t free_seats = 0;
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;            // of requests whose prompt was computed to the end
  uint64_t computed_prefill_tokens = 0;  // rows committed that were not decodes
};

class Scheduler {
 public:
  // pool outlives the scheduler; nobody else takes blocks from it.
  Scheduler(const SchedulerOptions& options, BlockPool* pool);
  ~Scheduler();

  // Could this ever run? Depends on the options only. The message has the numbers.
  Status Admissible(int32_t prompt_tokens, int32_t choices) const;
  int32_t seats() const { return seats_; }

  void Add(NewRequest request, int64_t now_ns);  // must be Admissible; the id must not be in use
  // Removes requests that waited too long for their first admission.
  std::vector<ExpiredRequest> Expire(int64_t now_ns);
  // Choices that had not ended yet; empty for unknown ids. Blocks are back when it returns.
  std::vector<int32_t> Cancel(RequestId request);
  bool FinishChoice(RequestId request, int32_t choice);  // false: unknown or ended before

  ScheduledBatch Plan(int64_t now_ns);
  // One end per outcome. What ended is gone, its blocks are back.
  std::vector<ChoiceEnd> Commit(ScheduledBatch batch, std::span<const ChoiceOutcome> outcomes);
  // The run failed: every choice in the batch ends. Returns them.
  std::vector<ChoiceId> Abort(ScheduledBatch batch);

  // Choices of the item that have not ended: the lead's all open ones, else its own.
  std::vector<int32_t> OpenChoices(const ScheduledItem& item) const;
  std::optional<int64_t> scheduled_ns(RequestId request) const;  // when it was first admitted
  bool idle() const { return requests_.empty(); }
  const SchedulerCounts& counts() const;
  void CheckIntegrity() const;  // recounts tables, references, seats; CHECKs

 private:
  struct RequestState;
  using Queue = std::map<SequenceKey, Sequence*>;

  RequestState* Find(RequestId request);
  const RequestState* Find(RequestId request) const;
  void PlanDecodes(ScheduledBatch& batch);
  bool MakeRoom(Sequence* sequence, ScheduledBatch& batch);
  void PlanPrefills(ScheduledBatch& batch);
  void Admit(int64_t now_ns, ScheduledBatch& batch);
  void AddChunk(Sequence* sequence, ScheduledBatch& batch);
  void Preempt(Sequence* sequence);
  int32_t SeatsOf(const Sequence& sequence) const;
  ChoiceEnd EndAfterToken(const RequestState& state, int32_t generated,
                          const ChoiceOutcome& o) const;
  void CommitComputed(const ScheduledBatch& batch);
  std::vector<ChoiceEnd> CommitLead(RequestState& state, Sequence* lead,
                                    std::span<const ChoiceOutcome> outcomes);
  ChoiceEnd CommitOne(RequestState& state, Sequence* sequence, const ChoiceOutcome& outcome);
  void EnterQueue(Sequence* sequence);
  void EnterRunning(Sequence* sequence);
  void Detach(Sequence* sequence);  // out of queue or running set; blocks back
  void EndChoice(RequestState& state, int32_t choice);
  void EraseIfEnded(RequestState& state);

  SchedulerOptions options_;
  BlockPool* pool_;
  int32_t seats_ = 0;
  int32_t watermark_ = 0;
  uint64_t next_arrival_ = 0;
  bool batch_open_ = false;
  int32_t seats_used_ = 0;
  int64_t next_expiry_ns_ = INT64_MAX;                          // no fresh request expires before
  std::map<uint64_t, std::unique_ptr<RequestState>> requests_;  // by arrival
  std::unordered_map<RequestId, uint64_t> arrivals_;            // look-up only, never walked
  Queue running_;
  Queue waiting_;
  mutable SchedulerCounts counts_;
};

}  // namespace kvasir
