#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "scheduler/request_state.h"

namespace kvasir {
namespace {

int64_t SaturatingAdd(int64_t a, int64_t b) {
  return b > INT64_MAX - a ? INT64_MAX : a + b;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, BlockPool* pool)
    : options_(options), pool_(pool) {
  KVASIR_CHECK(options.max_model_len > 0 && options.max_num_seqs > 0 &&
               options.max_num_batched_tokens > 0 && options.block_tokens > 0);
  KVASIR_CHECK(options.reserve_blocks >= 0 && options.reserve_blocks < 1);
  seats_ = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  watermark_ = static_cast<int32_t>(std::ceil(options.reserve_blocks * pool->total_blocks()));
  counts_.free_seats = seats_;
}

Scheduler::~Scheduler() {
  KVASIR_CHECK(!batch_open_);
  while (!requests_.empty()) Cancel(requests_.begin()->second->id);
}

Scheduler::RequestState* Scheduler::Find(RequestId request) {
  const auto it = arrivals_.find(request);
  return it == arrivals_.end() ? nullptr : requests_.at(it->second).get();
}

const Scheduler::RequestState* Scheduler::Find(RequestId request) const {
  return const_cast<Scheduler*>(this)->Find(request);
}

Status Scheduler::Admissible(int32_t prompt_tokens, int32_t choices) const {
  const int64_t pool_tokens =
      static_cast<int64_t>(pool_->total_blocks()) * static_cast<int64_t>(options_.block_tokens);
  if (prompt_tokens < 1) return InvalidArgument("the prompt has no tokens", "prompt");
  if (prompt_tokens >= options_.max_model_len || prompt_tokens > pool_tokens) {
    return InvalidArgument(
        "the prompt has " + std::to_string(prompt_tokens) +
            " tokens and leaves no room for output: the maximum context length is " +
            std::to_string(options_.max_model_len) + " tokens and the KV pool holds " +
            std::to_string(pool_tokens) + " tokens",
        "prompt");
  }
  if (choices < 1 || choices > seats_) {
    return InvalidArgument("n is " + std::to_string(choices) + ", must be 1 to " +
                               std::to_string(seats_) + " (sequences that can run at once)",
                           "n");
  }
  return Status::Ok();
}

void Scheduler::Add(NewRequest request, int64_t now_ns) {
  KVASIR_CHECK(!batch_open_);
  KVASIR_CHECK(Admissible(static_cast<int32_t>(request.prompt.size()), request.choices).ok());
  KVASIR_CHECK(request.max_tokens >= 0);
  const uint64_t arrival = next_arrival_++;
  KVASIR_CHECK(arrivals_.emplace(request.id, arrival).second);
  auto state = std::make_unique<RequestState>();
  state->id = request.id;
  state->arrival = arrival;
  state->max_tokens = request.max_tokens;
  state->enqueued_ns = now_ns;
  state->deadline_ns = request.deadline_ns;
  state->open = request.choices;
  state->ended.resize(static_cast<size_t>(request.choices), false);
  state->sequences.resize(static_cast<size_t>(request.choices));
  auto lead = std::make_unique<Sequence>(options_.block_tokens);
  lead->request = request.id;
  lead->key = {arrival, 0};
  lead->tokens = std::move(request.prompt);
  lead->prompt_tokens = lead->size();
  state->sequences[0] = std::move(lead);
  next_expiry_ns_ = std::min(
      {next_expiry_ns_, state->deadline_ns, SaturatingAdd(now_ns, options_.queue_timeout_ns)});
  Sequence* sequence = state->sequence(0);
  requests_.emplace(arrival, std::move(state));
  ++counts_.fresh;
  EnterQueue(sequence);
}

std::vector<ExpiredRequest> Scheduler::Expire(int64_t now_ns) {
  KVASIR_CHECK(!batch_open_);
  std::vector<ExpiredRequest> expired;
  if (now_ns < next_expiry_ns_) return expired;
  next_expiry_ns_ = INT64_MAX;
  for (const auto& [key, sequence] : waiting_) {
    const RequestState& state = *requests_.at(key.arrival);
    if (state.scheduled_ns) continue;
    const int64_t timeout_ns = SaturatingAdd(state.enqueued_ns, options_.queue_timeout_ns);
    const int64_t expiry_ns = std::min(state.deadline_ns, timeout_ns);
    if (now_ns >= expiry_ns) {
      expired.push_back({state.id, now_ns - state.enqueued_ns, state.deadline_ns <= timeout_ns});
    } else {
      next_expiry_ns_ = std::min(next_expiry_ns_, expiry_ns);
    }
  }
  for (const ExpiredRequest& request : expired) Cancel(request.request);
  return expired;
}

std::vector<int32_t> Scheduler::Cancel(RequestId request) {
  KVASIR_CHECK(!batch_open_);
  std::vector<int32_t> open;
  RequestState* state = Find(request);
  if (state == nullptr) return open;
  for (int32_t c = 0; c < state->choices(); ++c) {
    if (state->ended[static_cast<size_t>(c)]) continue;
    open.push_back(c);
    EndChoice(*state, c);
  }
  EraseIfEnded(*state);
  return open;
}

bool Scheduler::FinishChoice(RequestId request, int32_t choice) {
  KVASIR_CHECK(!batch_open_);
  RequestState* state = Find(request);
  if (state == nullptr || choice < 0 || choice >= state->choices()) return false;
  if (state->ended[static_cast<size_t>(choice)]) return false;
  EndChoice(*state, choice);
  EraseIfEnded(*state);
  return true;
}

std::optional<int64_t> Scheduler::scheduled_ns(RequestId request) const {
  const RequestState* state = Find(request);
  return state == nullptr ? std::nullopt : state->scheduled_ns;
}

std::vector<int32_t> Scheduler::OpenChoices(const ScheduledItem& item) const {
  const RequestState* state = Find(item.sequence->request);
  KVASIR_CHECK(state != nullptr);
  if (state->forked) return {item.sequence->key.choice};
  std::vector<int32_t> open;
  for (int32_t c = 0; c < state->choices(); ++c) {
    if (!state->ended[static_cast<size_t>(c)]) open.push_back(c);
  }
  return open;
}

const SchedulerCounts& Scheduler::counts() const {
  counts_.running = static_cast<int64_t>(running_.size());
  counts_.free_seats = seats_ - seats_used_;
  return counts_;
}

int32_t Scheduler::SeatsOf(const Sequence& sequence) const {
  const RequestState& state = *requests_.at(sequence.key.arrival);
  return state.forked ? 1 : state.open;
}

void Scheduler::EnterQueue(Sequence* sequence) {
  KVASIR_CHECK(!sequence->running && sequence->table.empty() && sequence->computed == 0);
  KVASIR_CHECK(waiting_.emplace(sequence->key, sequence).second);
  RequestState& state = *requests_.at(sequence->key.arrival);
  if (state.in_queue++ == 0) ++counts_.waiting;
}

void Scheduler::EnterRunning(Sequence* sequence) {
  KVASIR_CHECK(!sequence->running);
  sequence->running = true;
  KVASIR_CHECK(running_.emplace(sequence->key, sequence).second);
  seats_used_ += SeatsOf(*sequence);
}

void Scheduler::Detach(Sequence* sequence) {
  if (sequence->running) {
    KVASIR_CHECK(running_.erase(sequence->key) == 1);
    seats_used_ -= SeatsOf(*sequence);
    sequence->running = false;
  } else {
    KVASIR_CHECK(waiting_.erase(sequence->key) == 1);
    RequestState& state = *requests_.at(sequence->key.arrival);
    if (--state.in_queue == 0) --counts_.waiting;
  }
  sequence->table.Clear(*pool_);
  sequence->computed = 0;
}

void Scheduler::EndChoice(RequestState& state, int32_t choice) {
  KVASIR_CHECK(!state.ended[static_cast<size_t>(choice)]);
  state.ended[static_cast<size_t>(choice)] = true;
  if (state.forked) {
    Detach(state.sequence(choice));
    state.sequences[static_cast<size_t>(choice)].reset();
    --state.open;
    return;
  }
  // The lead computes on for the others, whichever choice this was.
  if (state.sequence(0)->running) --seats_used_;
  if (--state.open == 0) {
    Detach(state.sequence(0));
    state.sequences[0].reset();
  }
}

void Scheduler::EraseIfEnded(RequestState& state) {
  if (state.open > 0) return;
  if (!state.scheduled_ns) --counts_.fresh;
  const uint64_t arrival = state.arrival;
  arrivals_.erase(state.id);
  requests_.erase(arrival);
}

}  // namespace kvasir
