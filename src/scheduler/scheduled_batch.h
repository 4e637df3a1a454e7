// ScheduledBatch: the plan of one step, a value. Bytes are elsewhere.
//
// Move-only. Every non-empty batch ends in exactly one of Scheduler::Commit or Scheduler::Abort; a
// batch that dies otherwise is our own mistake and ends the process.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/sequence.h"

namespace kvasir {

// Tokens [first, first + count) of one sequence are to be run. `samples`: the last of them is the
// sequence's last token, so its row gives the next one (for a lead: the first token of every
// choice).
struct ScheduledItem {
  const Sequence* sequence = nullptr;
  int32_t first = 0;
  int32_t count = 0;
  bool prefill = false;
  bool samples = false;
};

struct ChoiceId {
  RequestId request;
  int32_t choice = 0;
  bool operator==(const ChoiceId&) const = default;
};

class ScheduledBatch {
 public:
  ScheduledBatch() = default;
  ScheduledBatch(ScheduledBatch&& other) noexcept { *this = std::move(other); }
  ScheduledBatch& operator=(ScheduledBatch&& other) noexcept {
    KVASIR_CHECK(!open_);
    items = std::move(other.items);
    moves = std::move(other.moves);
    slot_copies = std::move(other.slot_copies);
    exhausted = std::move(other.exhausted);
    rows = std::exchange(other.rows, 0);
    prefill_rows = std::exchange(other.prefill_rows, 0);
    preempted = std::exchange(other.preempted, 0);
    open_ = std::exchange(other.open_, false);
    return *this;
  }
  ~ScheduledBatch() { KVASIR_CHECK(!open_); }

  // Decodes, then prefill chunks of running sequences, then the admitted; each in order of rank.
  std::vector<ScheduledItem> items;
  // To be done in this order before the run, also if the run then fails: the books count on it.
  std::vector<BlockMove> moves;
  std::vector<SlotCopy> slot_copies;  // likewise; only with SchedulerOptions::resume_tokens > 1
  std::vector<ChoiceId>
      exhausted;  // ended by the plan: the whole pool is too small for it (finish kLength)
  int32_t rows = 0;
  int32_t prefill_rows = 0;
  int32_t preempted = 0;  // sequences sent back to the queue by this plan

  bool empty() const { return items.empty(); }  // then there are no moves either

 private:
  friend class Scheduler;
  bool open_ = false;
};

}  // namespace kvasir
