// How a batch ends.
#include "base/check.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace kvasir {

std::vector<ChoiceEnd> Scheduler::Commit(ScheduledBatch batch,
                                         std::span<const ChoiceOutcome> outcomes) {
  KVASIR_CHECK(batch_open_ && batch.open_);
  batch_open_ = false;
  batch.open_ = false;
  CommitComputed(batch);
  std::vector<ChoiceEnd> ends;
  ends.reserve(outcomes.size());
  size_t next = 0;
  for (size_t i = 0; i < batch.items.size(); ++i) {
    const ScheduledItem& item = batch.items[i];
    const size_t begin = next;
    while (next < outcomes.size() && outcomes[next].item == static_cast<int32_t>(i)) ++next;
    const auto own = outcomes.subspan(begin, next - begin);
    KVASIR_CHECK(!item.samples || own.size() == OpenChoices(item).size());
    if (own.empty()) continue;
    RequestState& state = *requests_.at(item.sequence->key.arrival);
    Sequence* sequence = state.sequence(item.sequence->key.choice);
    if (!state.forked && item.samples) {
      const auto lead_ends = CommitLead(state, sequence, own);
      ends.insert(ends.end(), lead_ends.begin(), lead_ends.end());
    } else if (item.samples) {
      ends.push_back(CommitOne(state, sequence, own.front()));
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
  return ends;
}

void Scheduler::CommitComputed(const ScheduledBatch& batch) {
  for (const ScheduledItem& item : batch.items) {
    RequestState& state = *requests_.at(item.sequence->key.arrival);
    Sequence* sequence = state.sequence(item.sequence->key.choice);
    KVASIR_CHECK(sequence == item.sequence && sequence->computed == item.first);
    sequence->computed += item.count;
    sequence->table.Written(*pool_, item.first, sequence->computed);
    if (item.prefill) counts_.computed_prefill_tokens += static_cast<uint64_t>(item.count);
  }
}

ChoiceEnd Scheduler::EndAfterToken(const RequestState& state, int32_t generated,
                                   const ChoiceOutcome& o) const {
  if (o.failed) return ChoiceEnd::kFailed;
  if (o.token < 0) {
    KVASIR_CHECK(state.max_tokens == 0);
    return ChoiceEnd::kLength;
  }
  if (o.stop) return ChoiceEnd::kStop;
  return generated >= state.max_tokens ? ChoiceEnd::kLength : ChoiceEnd::kGoesOn;
}

std::vector<ChoiceEnd> Scheduler::CommitLead(RequestState& state, Sequence* lead,
                                             std::span<const ChoiceOutcome> outcomes) {
  counts_.prompt_tokens += static_cast<uint64_t>(lead->prompt_tokens);
  // From here on each choice has its own seat: the lead gives those of the others back, the forks
  // take them.
  seats_used_ += 1 - state.open;
  state.forked = true;
  std::vector<ChoiceEnd> ends;
  TokenId lead_token = -1;
  for (const ChoiceOutcome& outcome : outcomes) {
    KVASIR_CHECK(!state.ended[static_cast<size_t>(outcome.choice)]);
    ChoiceEnd end = EndAfterToken(state, 1, outcome);
    if (end == ChoiceEnd::kGoesOn && lead->prompt_tokens + 1 >= options_.max_model_len) {
      end = ChoiceEnd::kLength;
    }
    ends.push_back(end);
    if (end != ChoiceEnd::kGoesOn) {
      state.ended[static_cast<size_t>(outcome.choice)] = true;
      --state.open;
    } else if (outcome.choice == 0) {
      lead_token = outcome.token;
    } else {
      auto fork = std::make_unique<Sequence>(options_.block_tokens);
      fork->request = lead->request;
      fork->key = {lead->key.arrival, outcome.choice};
      fork->tokens = lead->tokens;
      fork->tokens.push_back(outcome.token);
      fork->prompt_tokens = lead->prompt_tokens;
      fork->computed = lead->computed;
      fork->prefill_target = lead->prefill_target;
      fork->table.ShareFrom(*pool_, lead->table);
      Sequence* sequence = fork.get();
      state.sequences[static_cast<size_t>(outcome.choice)] = std::move(fork);
      EnterRunning(sequence);
    }
  }
  if (lead_token >= 0) {
    lead->tokens.push_back(lead_token);
  } else {
    Detach(lead);
    state.sequences[0].reset();
  }
  KVASIR_CHECK(seats_used_ <= seats_);
  return ends;
}

ChoiceEnd Scheduler::CommitOne(RequestState& state, Sequence* sequence,
                               const ChoiceOutcome& outcome) {
  KVASIR_CHECK(outcome.choice == sequence->key.choice);
  ChoiceEnd end = EndAfterToken(state, sequence->generated() + 1, outcome);
  if (end == ChoiceEnd::kGoesOn && sequence->size() + 1 >= options_.max_model_len) {
    end = ChoiceEnd::kLength;
  }
  if (end == ChoiceEnd::kGoesOn) {
    sequence->tokens.push_back(outcome.token);
  } else {
    EndChoice(state, outcome.choice);
  }
  return end;
}

std::vector<ChoiceId> Scheduler::Abort(ScheduledBatch batch) {
  KVASIR_CHECK(batch_open_ && batch.open_);
  batch_open_ = false;
  batch.open_ = false;
  std::vector<ChoiceId> ended;
  for (const ScheduledItem& item : batch.items) {
    const std::vector<int32_t> open = OpenChoices(item);
    RequestState& state = *requests_.at(item.sequence->key.arrival);
    for (const int32_t choice : open) {
      ended.push_back({state.id, choice});
      EndChoice(state, choice);
    }
    EraseIfEnded(state);
  }
  return ended;
}

void Scheduler::CheckIntegrity() const {
  pool_->CheckIntegrity();
  std::vector<int32_t> references(static_cast<size_t>(pool_->total_blocks()), 0);
  int32_t seats = 0;
  int64_t waiting = 0, fresh = 0;
  size_t in_running = 0, in_queue = 0;
  for (const auto& [arrival, state] : requests_) {
    KVASIR_CHECK(state->open > 0 && arrivals_.at(state->id) == arrival);
    int32_t open = 0, queued = 0;
    for (int32_t c = 0; c < state->choices(); ++c) {
      open += state->ended[static_cast<size_t>(c)] ? 0 : 1;
      const Sequence* sequence = state->sequence(c);
      const bool expected = state->forked ? !state->ended[static_cast<size_t>(c)] : c == 0;
      KVASIR_CHECK((sequence != nullptr) == expected);
      if (sequence == nullptr) continue;
      for (const int32_t block : sequence->table.blocks()) ++references[static_cast<size_t>(block)];
      KVASIR_CHECK((sequence->running ? running_ : waiting_).at(sequence->key) == sequence);
      if (sequence->running) {
        ++in_running;
        seats += SeatsOf(*sequence);
        KVASIR_CHECK(sequence->computed < sequence->size());
        KVASIR_CHECK(BlockTable::BlocksFor(sequence->computed, options_.block_tokens) <=
                     sequence->table.size());
      } else {
        ++queued;
        KVASIR_CHECK(sequence->table.empty() && sequence->computed == 0);
      }
    }
    KVASIR_CHECK(open == state->open && queued == state->in_queue);
    in_queue += static_cast<size_t>(queued);
    waiting += queued > 0 ? 1 : 0;
    fresh += state->scheduled_ns ? 0 : 1;
  }
  KVASIR_CHECK(in_running == running_.size() && in_queue == waiting_.size());
  KVASIR_CHECK(seats == seats_used_ && seats <= seats_);
  KVASIR_CHECK(waiting == counts_.waiting && fresh == counts_.fresh);
  KVASIR_CHECK(arrivals_.size() == requests_.size());
  for (int32_t b = 0; b < pool_->total_blocks(); ++b) {
    KVASIR_CHECK(pool_->RefCount(BlockId(b)) == references[static_cast<size_t>(b)]);
  }
}

}  // namespace kvasir
