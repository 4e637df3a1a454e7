// How a batch ends.
#include <algorithm>

#include "base/check.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace kvasir {

// The lists of a batch that is over serve the next plan.
void Scheduler::Recycle(ScheduledBatch& batch) {
  spare_items_ = std::move(batch.items);
  spare_items_.clear();
  spare_moves_ = std::move(batch.moves);
  spare_moves_.clear();
}

const std::vector<ChoiceEnd>& Scheduler::Commit(ScheduledBatch batch,
                                                std::span<const ChoiceOutcome> outcomes) {
  KVASIR_CHECK(batch_open_ && batch.open_);
  batch_open_ = false;
  batch.open_ = false;
  CommitComputed(batch, outcomes);
  std::vector<ChoiceEnd>& ends = ends_;
  ends.clear();
  size_t next = 0;
  for (size_t i = 0; i < batch.items.size(); ++i) {
    const ScheduledItem& item = batch.items[i];
    const size_t begin = next;
    while (next < outcomes.size() && outcomes[next].item == static_cast<int32_t>(i)) ++next;
    const auto own = outcomes.subspan(begin, next - begin);
    RequestState& state = *item.sequence->state;
    KVASIR_CHECK(!item.samples || own.size() == static_cast<size_t>(state.seats()));
    if (own.empty()) continue;
    Sequence* sequence = state.sequence(item.sequence->key.choice);
    if (!state.forked && item.samples) {
      CommitLead(sequence, own, ends);
    } else if (item.samples) {
      ends.push_back(CommitOne(sequence, own.front()));
    } else {
      for (const ChoiceOutcome& outcome : own) {
        KVASIR_CHECK(outcome.failed);
        EndChoice(state, outcome.choice);
        ends.push_back(ChoiceEnd::kFailed);
      }
    }
    EraseIfEnded(state);
  }
  KVASIR_CHECK(next == outcomes.size());
  Recycle(batch);
  return ends;
}

// Rows whose every outcome failed are not to be trusted: nobody finds them.
void Scheduler::CommitComputed(const ScheduledBatch& batch,
                               std::span<const ChoiceOutcome> outcomes) {
  size_t next = 0;
  for (size_t i = 0; i < batch.items.size(); ++i) {
    const ScheduledItem& item = batch.items[i];
    Sequence* sequence = item.sequence->state->sequence(item.sequence->key.choice);
    KVASIR_CHECK(sequence == item.sequence && sequence->computed == item.first);
    const size_t begin = next;
    bool failed = true;
    for (; next < outcomes.size() && outcomes[next].item == static_cast<int32_t>(i); ++next)
      failed = failed && outcomes[next].failed;
    if (failed && next > begin) {
      cache_->Retract(sequence->kv);
      continue;
    }
    sequence->computed += item.count;
    sequence->most_computed = std::max(sequence->most_computed, sequence->computed);
    cache_->Publish(sequence->kv, sequence->tokens, item.first, sequence->computed);
    if (!item.prefill) continue;
    counts_.computed_prefill_tokens += static_cast<uint64_t>(item.count);
    if (sequence->computed == sequence->prompt_tokens && !sequence->tail_published) {
      cache_->PublishTail(sequence->kv, sequence->tokens, sequence->computed);
      sequence->tail_published = true;
    }
  }
}

// What follows from one more token.
ChoiceEnd Scheduler::EndAfterToken(const Sequence& sequence, const ChoiceOutcome& o) const {
  if (o.failed) return ChoiceEnd::kFailed;
  const int32_t max_tokens = sequence.state->max_tokens;
  if (o.token < 0) {
    KVASIR_CHECK(max_tokens == 0);
    return ChoiceEnd::kLength;
  }
  if (o.stop) return ChoiceEnd::kStop;
  const bool full =
      sequence.generated() + 1 >= max_tokens || sequence.size() + 1 >= options_.max_model_len;
  return full ? ChoiceEnd::kLength : ChoiceEnd::kGoesOn;
}

void Scheduler::CommitLead(Sequence* lead, std::span<const ChoiceOutcome> outcomes,
                           std::vector<ChoiceEnd>& ends) {
  RequestState& state = *lead->state;
  counts_.prompt_tokens += static_cast<uint64_t>(lead->prompt_tokens);
  // From here on each choice has its own seat: the lead gives those of the others back, the forks
  // take them.
  seats_used_ += 1 - state.open;
  state.forked = true;
  TokenId lead_token = -1;
  for (const ChoiceOutcome& outcome : outcomes) {
    KVASIR_CHECK(!state.ended[static_cast<size_t>(outcome.choice)]);
    const ChoiceEnd end = EndAfterToken(*lead, outcome);
    ends.push_back(end);
    if (end != ChoiceEnd::kGoesOn) {
      if (end != ChoiceEnd::kFailed && outcome.token >= 0) output_.Finished(1);
      state.ended[static_cast<size_t>(outcome.choice)] = true;
      --state.open;
    } else if (outcome.choice == 0) {
      lead_token = outcome.token;
    } else {
      auto fork = std::make_unique<Sequence>();
      fork->request = lead->request;
      fork->state = &state;
      fork->key = {lead->key.rank, lead->key.arrival, outcome.choice};
      fork->tokens.reserve(lead->tokens.capacity());
      fork->tokens = lead->tokens;
      fork->tokens.push_back(outcome.token);
      fork->prompt_tokens = lead->prompt_tokens;
      fork->computed = fork->most_computed = lead->computed;
      fork->prefill_target = lead->prefill_target;
      fork->tail_published = true;
      cache_->Fork(lead->kv, fork->kv);
      Sequence* sequence = fork.get();
      state.sequences[static_cast<size_t>(outcome.choice)] = std::move(fork);
      EnterRunning(sequence);
      if (options_.resume_tokens > 1) slot_copies_.push_back({lead->slot, sequence->slot});
    }
  }
  if (lead_token >= 0) {
    lead->tokens.push_back(lead_token);
  } else {
    Drop(lead);
    state.sequences[0].reset();
  }
  KVASIR_CHECK(seats_used_ <= seats_);
}

ChoiceEnd Scheduler::CommitOne(Sequence* sequence, const ChoiceOutcome& outcome) {
  KVASIR_CHECK(outcome.choice == sequence->key.choice);
  const ChoiceEnd end = EndAfterToken(*sequence, outcome);
  if (end == ChoiceEnd::kGoesOn) {
    sequence->tokens.push_back(outcome.token);
    return end;
  }
  if (end != ChoiceEnd::kFailed) output_.Finished(sequence->generated() + 1);
  EndChoice(*sequence->state, outcome.choice);
  return end;
}

std::vector<ChoiceId> Scheduler::Abort(ScheduledBatch batch) {
  KVASIR_CHECK(batch_open_ && batch.open_);
  batch_open_ = false;
  batch.open_ = false;
  for (const ScheduledItem& item : batch.items) {
    cache_->Retract(item.sequence->state->sequence(item.sequence->key.choice)->kv);
  }
  std::vector<ChoiceId> ended;
  for (const ScheduledItem& item : batch.items) {
    const std::vector<int32_t> open = OpenChoices(item);
    RequestState& state = *item.sequence->state;
    for (const int32_t choice : open) {
      ended.push_back({state.id, choice});
      EndChoice(state, choice);
    }
    EraseIfEnded(state);
  }
  Recycle(batch);
  return ended;
}

}  // namespace kvasir
