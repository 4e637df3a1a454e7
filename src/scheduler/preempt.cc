// Who goes back to the queue, and how.
#include <algorithm>

#include "base/check.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace kvasir {

// kPriority: a running sequence makes room only for a request that is more urgent by its own
// number and, ageing included, by rank. The victim's rank is then behind the other's, so it can
// never pay it back.
void Scheduler::PlanUrgent(ScheduledBatch& batch) {
  if (options_.policy != SchedulingPolicy::kPriority || waiting_.empty()) return;
  const Sequence& head = *waiting_.begin()->second;
  if (head.joined + 1 == plan_) return;  // what it waited for is neither seat nor block
  const int32_t priority = head.state->priority;
  if (!UrgentCanFit(head)) return;
  while (Sequence* victim = PickVictim(head.key, &priority)) {
    if (seats_used_ + head.state->seats() <= seats_ && !StillBlocked(head)) {
      const CacheMatch match = Match(head, MatchLimit(head));
      if (FitsBeside(head, match)) return;
      RememberBlocked(head, match);
    }
    Preempt(victim, batch);
    ++counts_.preemptions_priority;
  }
}

// Would it find seats and blocks if all that may yield to it did? What they hold together with
// others does not count.
bool Scheduler::UrgentCanFit(const Sequence& head) {
  int64_t seats = seats_ - seats_used_;
  std::vector<int64_t> blocks(static_cast<size_t>(cache_->groups()), 0);
  for (const Sequence* sequence : running_) {
    if (sequence->key < head.key || sequence->state->priority <= head.state->priority) continue;
    seats += sequence->state->forked ? 1 : sequence->state->seats();
    for (int32_t g = 0; g < cache_->groups(); ++g) {
      for (const int32_t block : sequence->kv.table(g))
        blocks[static_cast<size_t>(g)] += block >= 0 && cache_->RefCount(g, block) == 1 ? 1 : 0;
    }
  }
  if (seats < head.state->seats()) return false;
  const CacheMatch match = Match(head, MatchLimit(head));
  for (int32_t g = 0; g < cache_->groups(); ++g) {
    if (cache_->available(g) + blocks[static_cast<size_t>(g)] <
        Need(head, match, g) + watermark_[static_cast<size_t>(g)])
      return false;
  }
  return true;
}

// Of the running ones ranked after `after` that have no item in this plan (and, if better_than is
// given, a greater priority number): the least work lost, then the latest. One whose end brings no
// block comes only if there is no other.
Sequence* Scheduler::PickVictim(const SequenceKey& after, const int32_t* better_than) const {
  Sequence* best = nullptr;
  int32_t best_lost = 0;
  bool best_gives = false;
  for (size_t i = running_.size(); i-- > 0 && running_[i]->key > after;) {
    Sequence* sequence = running_[i];
    if (sequence->planned == plan_) continue;
    if (better_than != nullptr && sequence->state->priority <= *better_than) continue;
    const int32_t lost = WorkLost(*sequence);
    const bool gives = lost > 0 || !sequence->decoding();
    const bool better =
        best == nullptr || (gives != best_gives ? gives : lost < best_lost);  // walked from the end
    if (!better) continue;
    best = sequence;
    best_lost = lost;
    best_gives = gives;
  }
  return best;
}

// Tokens that would have to be computed again or copied. Blocks that others hold stay where they
// are; whoever holds one holds those before it, so they are a beginning of the table.
int32_t Scheduler::WorkLost(const Sequence& sequence) const {
  const std::span<const int32_t> table = sequence.kv.table();
  const auto shared_end = std::partition_point(table.begin(), table.end(), [this](int32_t block) {
    return block >= 0 && cache_->RefCount(0, block) > 1;
  });
  const auto shared = static_cast<int64_t>(shared_end - table.begin()) * block_tokens_;
  return static_cast<int32_t>(std::max<int64_t>(0, sequence.computed - shared));
}

bool Scheduler::SwapIsCheaper(const Sequence& sequence) const {
  const int32_t lost = WorkLost(sequence);
  if (lost == 0) return false;  // all of it is found again
  int64_t moves = 0;            // all go out, what nobody else holds comes back
  for (int32_t g = 0; g < cache_->groups(); ++g) {
    for (const int32_t block : sequence.kv.table(g)) {
      if (block >= 0) moves += cache_->RefCount(g, block) == 1 ? 2 : 1;
    }
  }
  const double swap_ns = static_cast<double>(moves) * costs_.swap_ns_per_block();
  return swap_ns <= costs_.prefill_ns(sequence.computed - lost, lost);
}

void Scheduler::Preempt(Sequence* sequence, ScheduledBatch& batch) {
  const RequestState& state = *sequence->state;
  // Where slots matter its own goes with it; those of the running ones have to stay.
  const auto kept = static_cast<int32_t>(static_cast<size_t>(SlotsFor(seats_)) -
                                         free_slots_.size() - running_.size());
  const bool swap = (options_.resume_tokens == 1 || kept < seats_) &&
                    (options_.preempt == PreemptMode::kSwap ||
                     (options_.preempt == PreemptMode::kAuto && SwapIsCheaper(*sequence)));
  ++batch.preempted;
  ++counts_.preemptions;
  if (swap && cache_->SwapOut(sequence->kv, sequence->tokens, sequence->computed, batch.moves)) {
    ++counts_.preemptions_swap;
  } else {
    // It comes back: no word about last use or end of life yet.
    CacheHint hint;
    hint.retain = std::max(Retain::kNormal, state.hint.retain);
    cache_->Release(sequence->kv, sequence->tokens, sequence->computed, hint);
  }
  LeaveRunning(sequence);
  sequence->computed = 0;
  sequence->preempted = plan_;
  sequence->rows_plan = 0;
  growth_known_ = false;
  EnterQueue(sequence);
}

}  // namespace kvasir
