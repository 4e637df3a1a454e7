// Scheduler: continuous batching as a state machine. Which sequences run, how many tokens of each,
// who gets a block, who waits. Moved by others: no clock, random, thread or I/O; time and measured
// costs come in as arguments; no decision looks at the order of a hash map or at a pointer. Not
// thread-safe. docs/scheduler.md has the rules with their reasons.
//
// A step is Plan, (the caller does the moves and runs it), then Commit or Abort. Between Plan and
// that no other call is allowed (checked).
//
// The plan of a step, in order of rank everywhere, under a budget of max_num_batched_tokens rows:
//   1. kPriority: if the head of the queue finds no seat or block, running sequences of worse
//   priority and later rank are preempted for it.
//   2. every decoding sequence gets its one row. If it needs a block and there is none, a running
//   sequence ranked after it is preempted: the one that loses the least work. If there is none,
//   itself; alone in an exhausted pool it ends.
//   3. prefill chunks of running sequences with what is left of the budget, or, beside decodes and
//   with a target between tokens, with what fits into the target. A long prompt leaves up to half
//   of that to those that need few rows;
//   4. admission from the head of the queue, unless step 2 preempted: a seat for every choice,
//   blocks for all its tokens, and free blocks stay for the watermark and for part of the growth
//   that is expected (waived when nothing runs). What does not fit waits and is not overtaken; what
//   waits for tokens that this very step computes for another one is passed, so many at most.
// There are never more seats than budget rows, so 2 always fits and 3 always has a row when
// somebody prefills. The running sequence ranked first is never preempted for a running one, so
// each step brings it on.
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
#include "kvcache/kv_cache.h"
#include "scheduler/cost_model.h"
#include "scheduler/estimates.h"
#include "scheduler/scheduled_batch.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/sequence.h"

namespace kvasir {

class Scheduler {
 public:
  // cache outlives the scheduler; no one else holds sequences in it.
  Scheduler(const SchedulerOptions& options, KvCache* cache);
  ~Scheduler();

  // Could this ever run? Depends on options and sizes of pools only. The message has the numbers.
  Status Admissible(int32_t prompt_tokens, int32_t choices) const;
  int32_t seats() const { return seats_; }

  // Must be Admissible; the id must not be in use; the space is closed when the request is gone.
  void Add(NewRequest request, int64_t now_ns);
  // Removes requests that waited too long for their first admission.
  std::vector<ExpiredRequest> Expire(int64_t now_ns);
  // Choices that had not ended yet; empty for unknown ids. Blocks are back when it returns.
  std::vector<int32_t> Cancel(RequestId request);
  bool FinishChoice(RequestId request, int32_t choice);  // false: unknown or ended before

  // Time must not go back from call to call.
  ScheduledBatch Plan(int64_t now_ns);
  // One end per outcome, valid until the next call. What ended is gone, its blocks are back (and
  // cached).
  const std::vector<ChoiceEnd>& Commit(ScheduledBatch batch,
                                       std::span<const ChoiceOutcome> outcomes);
  // The run failed (its moves were done): every choice in the batch ends. Returns them.
  std::vector<ChoiceId> Abort(ScheduledBatch batch);
  // What a step cost. Any time; without it itl_target allows the floor only and kAuto swaps.
  void Observe(const StepCost& step) { costs_.Observe(step); }

  // Choices of the item that have not ended: the lead's all open ones, else its own.
  std::vector<int32_t> OpenChoices(const ScheduledItem& item) const;
  void AppendOpenChoices(const ScheduledItem& item, std::vector<int32_t>& out) const;
  // From the plan that admitted the request first until it is gone.
  std::optional<FirstAdmission> first_admission(RequestId request) const;
  std::optional<int64_t> scheduled_ns(RequestId request) const;  // of it
  bool idle() const { return requests_.empty(); }
  const SchedulerCounts& counts() const;
  const CostModel& costs() const { return costs_; }
  void CheckIntegrity() const;  // recounts references of every group, seats, queue; CHECKs

 private:
  using Queue = std::map<SequenceKey, Sequence*>;
  enum class Try : uint8_t { kAdmitted, kEnded, kJoins, kBlocked };
  // Why the first one in the queue did not fit, so that it is not looked up again at every step.
  struct Blocked {
    uint64_t arrival = 0;
    int32_t choice = -1;        // -1: nothing remembered
    uint64_t until_plan = 0;    // then it is looked up in any case
    std::vector<int64_t> need;  // per group
  };

  // Who could be admitted next: rows of those that need few, and the first one, or the first that
  // needs many.
  struct QueueFront {
    int32_t quick_rows = 0;
    int32_t ahead_rows = 0;
    SequenceKey ahead_key;
  };

  RequestState* Find(RequestId request) const;
  int64_t RankOf(const RequestState& state, int32_t hit) const;
  int32_t MatchLimit(const Sequence& sequence) const;
  CacheMatch Match(const Sequence& sequence, int32_t limit) const;

  // plan.cc
  void PlanDecodes(ScheduledBatch& batch);
  void PlanPrefills(bool admits, ScheduledBatch& batch);
  int32_t PrefillRoom(const ScheduledBatch& batch) const;
  int32_t ChunkRows(const Sequence& sequence, int32_t most) const;
  QueueFront LookAtFront(int32_t quick, int32_t room);
  bool AddItem(Sequence* sequence, int32_t most, ScheduledBatch& batch);
  bool MakeRoom(Sequence* sequence, int32_t from, int32_t to, ScheduledBatch& batch);
  void EndExhausted(Sequence* sequence, ScheduledBatch& batch);

  // admission.cc
  void Reestimate();
  void KeepJoining();
  bool Joins(const CacheMatch& match, int32_t limit) const;
  void Admit(int64_t now_ns, ScheduledBatch& batch);
  Try TryAdmit(Sequence* sequence, int64_t now_ns, ScheduledBatch& batch);
  Try AdmitAlone(Sequence* sequence, int64_t now_ns, ScheduledBatch& batch);
  bool Start(Sequence* sequence, const CacheMatch& match, int32_t limit, int64_t now_ns,
             ScheduledBatch& batch);
  bool StillBlocked(const Sequence& sequence);
  void RememberBlocked(const Sequence& sequence, const CacheMatch& match);
  bool FitsBeside(const Sequence& sequence, const CacheMatch& match);
  int64_t Need(const Sequence& sequence, const CacheMatch& match, int32_t group) const;
  int32_t RoomFor(const Sequence& sequence) const;
  int64_t Reserve(int32_t group);
  int32_t GrownTokens(const Sequence& sequence) const;
  void AddGrowth(const Sequence& sequence);

  // preempt.cc
  void PlanUrgent(ScheduledBatch& batch);
  bool UrgentCanFit(const Sequence& head);
  Sequence* PickVictim(const SequenceKey& after, const int32_t* better_than) const;
  int32_t WorkLost(const Sequence& sequence) const;
  bool SwapIsCheaper(const Sequence& sequence) const;
  void Preempt(Sequence* sequence, ScheduledBatch& batch);

  // commit.cc
  void Recycle(ScheduledBatch& batch);
  ChoiceEnd EndAfterToken(const Sequence& sequence, const ChoiceOutcome& o) const;
  void CommitComputed(const ScheduledBatch& batch, std::span<const ChoiceOutcome> outcomes);
  void CommitLead(Sequence* lead, std::span<const ChoiceOutcome> outcomes,
                  std::vector<ChoiceEnd>& ends);
  ChoiceEnd CommitOne(Sequence* sequence, const ChoiceOutcome& outcome);

  void EnterQueue(Sequence* sequence);
  void LeaveQueue(Sequence* sequence);
  void EnterRunning(Sequence* sequence);
  void FreeSlot(Sequence* sequence);
  void LeaveRunning(Sequence* sequence);
  void Drop(Sequence* sequence);  // out of queue or running set; blocks and host slots back
  void EndChoice(RequestState& state, int32_t choice);
  void EraseIfEnded(RequestState& state);

  SchedulerOptions options_;
  KvCache* cache_;
  const int32_t block_tokens_;
  int32_t seats_ = 0;
  std::vector<int32_t> watermark_;  // per group
  int64_t now_ns_ = 0;              // of the last call that brought it
  uint64_t next_arrival_ = 0;
  uint64_t plan_ = 0;  // counts plans
  bool batch_open_ = false;
  int32_t seats_used_ = 0;
  std::vector<int32_t> free_slots_;
  std::vector<SlotCopy> slot_copies_;   // of choices that parted since the last plan
  int64_t next_expiry_ns_ = INT64_MAX;  // no fresh request expires before
  std::map<uint64_t, std::unique_ptr<RequestState>> requests_;  // by arrival
  std::unordered_map<RequestId, uint64_t> arrivals_;            // look-up only, never walked
  std::vector<Sequence*> running_;                              // in order of key
  Queue waiting_;
  uint64_t estimated_ = 0;  // kPrefix: arrival looked up last
  Blocked blocked_;
  std::vector<int64_t> growth_;  // per group: blocks kept for the running ones' growth
  bool growth_known_ = false;    // in this plan
  // Of this plan: rows of prompts, and what was spent. Beside decodes and with a target both count
  // rows at depth 0 (CostModel::Units), else rows.
  int32_t prefill_budget_ = 0;
  double prefill_spent_ = 0;
  bool by_depth_ = false;
  int32_t first_admitted_ = 0;              // requests in this plan
  std::vector<ScheduledItem> spare_items_;  // memory of the batch before
  std::vector<BlockMove> spare_moves_;
  std::vector<ChoiceEnd> ends_;  // what Commit returned last
  CostModel costs_;
  OutputEstimate output_;
  AdmissionPace pace_;
  mutable SchedulerCounts counts_;
};

}  // namespace kvasir
