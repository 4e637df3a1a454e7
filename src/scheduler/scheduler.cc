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

// a * b, kept where adding a time to it cannot overflow.
int64_t BoundedProduct(int64_t a, int64_t b) {
  constexpr int64_t kLimit = INT64_MAX / 4;
  if (b <= 0) return 0;
  return std::clamp(a, -kLimit / b, kLimit / b) * b;
}

bool KeyLess(const Sequence* a, const Sequence* b) {
  return a->key < b->key;
}

}  // namespace

std::optional<SchedulingPolicy> SchedulingPolicyByName(std::string_view name) {
  if (name == "fcfs") return SchedulingPolicy::kFcfs;
  if (name == "priority") return SchedulingPolicy::kPriority;
  if (name == "prefix") return SchedulingPolicy::kPrefix;
  return std::nullopt;
}

std::optional<PreemptMode> PreemptModeByName(std::string_view name) {
  if (name == "auto") return PreemptMode::kAuto;
  if (name == "swap") return PreemptMode::kSwap;
  if (name == "recompute") return PreemptMode::kRecompute;
  return std::nullopt;
}

Scheduler::Scheduler(const SchedulerOptions& options, KvCache* cache)
    : options_(options),
      cache_(cache),
      block_tokens_(cache->block_tokens()),
      costs_(options.itl_target_ns) {
  KVASIR_CHECK(options.max_model_len > 0 && options.max_num_seqs > 0 &&
               options.max_num_batched_tokens > 0 && options.itl_floor_rows > 0 &&
               options.prefill_beside_decodes >= 0);
  KVASIR_CHECK(options.reserve_blocks >= 0 && options.reserve_blocks < 1);
  KVASIR_CHECK(options.growth_share >= 0 && options.join_lookahead >= 0);
  seats_ = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  for (int32_t g = 0; g < cache->groups(); ++g) {
    watermark_.push_back(
        static_cast<int32_t>(std::ceil(options.reserve_blocks * cache->total_blocks(g))));
  }
  KVASIR_CHECK(options.resume_tokens > 0);
  for (int32_t slot = SlotsFor(seats_); slot-- > 0;) free_slots_.push_back(slot);
  growth_.resize(watermark_.size(), 0);
  counts_.free_seats = seats_;
}

Scheduler::~Scheduler() {
  KVASIR_CHECK(!batch_open_);
  while (!requests_.empty()) Cancel(requests_.begin()->second->id);
}

RequestState* Scheduler::Find(RequestId request) const {
  const auto it = arrivals_.find(request);
  return it == arrivals_.end() ? nullptr : requests_.at(it->second).get();
}

Status Scheduler::Admissible(int32_t prompt_tokens, int32_t choices) const {
  if (prompt_tokens < 1) return InvalidArgument("the prompt has no tokens", "prompt");
  const int64_t pool_tokens =
      static_cast<int64_t>(cache_->total_blocks()) * static_cast<int64_t>(block_tokens_);
  std::string short_group;
  for (int32_t g = 0; g < cache_->groups() && prompt_tokens < options_.max_model_len; ++g) {
    const int32_t need = cache_->BlocksHeld(g, prompt_tokens, options_.max_num_batched_tokens);
    if (need <= cache_->total_blocks(g)) continue;
    short_group = "; it needs " + std::to_string(need) + " of the " +
                  std::to_string(cache_->total_blocks(g)) + " blocks of layer group " +
                  std::to_string(g);
    break;
  }
  if (prompt_tokens >= options_.max_model_len || !short_group.empty()) {
    return InvalidArgument(
        "the prompt has " + std::to_string(prompt_tokens) +
            " tokens and leaves no room for output: the maximum context length is " +
            std::to_string(options_.max_model_len) + " tokens and the KV pool holds " +
            std::to_string(pool_tokens) + " tokens" + short_group,
        "prompt");
  }
  if (choices < 1 || choices > seats_) {
    return InvalidArgument("n is " + std::to_string(choices) + ", must be 1 to " +
                               std::to_string(seats_) + " (sequences that can run at once)",
                           "n");
  }
  return Status::Ok();
}

int64_t Scheduler::RankOf(const RequestState& state, int32_t hit) const {
  switch (options_.policy) {
    case SchedulingPolicy::kFcfs:
      break;
    case SchedulingPolicy::kPriority:
      return state.enqueued_ns + BoundedProduct(state.priority, options_.age_step_ns);
    case SchedulingPolicy::kPrefix:
      return state.enqueued_ns - BoundedProduct(hit, options_.prefix_age_ns);
  }
  return state.enqueued_ns;
}

void Scheduler::Add(NewRequest request, int64_t now_ns) {
  now_ns_ = now_ns;
  KVASIR_CHECK(!batch_open_);
  KVASIR_CHECK(Admissible(static_cast<int32_t>(request.prompt.size()), request.choices).ok());
  KVASIR_CHECK(request.max_tokens >= 0 && request.space >= 0);
  KVASIR_CHECK(now_ns < INT64_MAX / 4);
  const uint64_t arrival = next_arrival_++;
  KVASIR_CHECK(arrivals_.emplace(request.id, arrival).second);
  auto state = std::make_unique<RequestState>();
  state->id = request.id;
  state->arrival = arrival;
  state->max_tokens = request.max_tokens;
  state->enqueued_ns = now_ns;
  state->deadline_ns = request.deadline_ns;
  state->space = request.space;
  state->hint = request.hint;
  state->ttl_ns = request.ttl_ns;
  state->read_cache = request.read_cache;
  state->priority = request.priority;
  state->open = request.choices;
  state->ended.resize(static_cast<size_t>(request.choices), false);
  state->sequences.resize(static_cast<size_t>(request.choices));
  auto lead = std::make_unique<Sequence>();
  Sequence* sequence = lead.get();
  sequence->request = request.id;
  sequence->state = state.get();
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_tokens = sequence->size();
  const int32_t hit = options_.policy == SchedulingPolicy::kPrefix
                          ? Match(*sequence, MatchLimit(*sequence)).tokens
                          : 0;
  sequence->key = {RankOf(*state, hit), arrival, 0};
  state->sequences[0] = std::move(lead);
  next_expiry_ns_ = std::min(
      {next_expiry_ns_, state->deadline_ns, SaturatingAdd(now_ns, options_.queue_timeout_ns)});
  requests_.emplace(arrival, std::move(state));
  ++counts_.fresh;
  EnterQueue(sequence);
}

std::vector<ExpiredRequest> Scheduler::Expire(int64_t now_ns) {
  now_ns_ = now_ns;
  KVASIR_CHECK(!batch_open_);
  std::vector<ExpiredRequest> expired;
  if (now_ns < next_expiry_ns_) return expired;
  next_expiry_ns_ = INT64_MAX;
  for (const auto& [key, sequence] : waiting_) {
    const RequestState& state = *sequence->state;
    if (state.first) continue;
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
  if (state->forked) output_.Finished(state->sequence(choice)->generated());
  EndChoice(*state, choice);
  EraseIfEnded(*state);
  return true;
}

std::optional<FirstAdmission> Scheduler::first_admission(RequestId request) const {
  const RequestState* state = Find(request);
  return state == nullptr ? std::nullopt : state->first;
}

std::optional<int64_t> Scheduler::scheduled_ns(RequestId request) const {
  const auto first = first_admission(request);
  return first ? std::optional(first->scheduled_ns) : std::nullopt;
}

void Scheduler::AppendOpenChoices(const ScheduledItem& item, std::vector<int32_t>& out) const {
  const RequestState& state = *item.sequence->state;
  if (state.forked) {
    out.push_back(item.sequence->key.choice);
    return;
  }
  for (int32_t c = 0; c < state.choices(); ++c) {
    if (!state.ended[static_cast<size_t>(c)]) out.push_back(c);
  }
}

std::vector<int32_t> Scheduler::OpenChoices(const ScheduledItem& item) const {
  std::vector<int32_t> open;
  AppendOpenChoices(item, open);
  return open;
}

const SchedulerCounts& Scheduler::counts() const {
  counts_.running = static_cast<int64_t>(running_.size());
  counts_.free_seats = seats_ - seats_used_;
  counts_.expected_output = output_.mean();
  counts_.retry_after_s = pace_.seconds();
  return counts_;
}

void Scheduler::EnterQueue(Sequence* sequence) {
  KVASIR_CHECK(!sequence->running && sequence->kv.empty() && sequence->computed == 0);
  KVASIR_CHECK(waiting_.emplace(sequence->key, sequence).second);
  if (sequence->state->in_queue++ == 0) ++counts_.waiting;
}

void Scheduler::LeaveQueue(Sequence* sequence) {
  KVASIR_CHECK(waiting_.erase(sequence->key) == 1);
  if (--sequence->state->in_queue == 0) --counts_.waiting;
}

void Scheduler::EnterRunning(Sequence* sequence) {
  KVASIR_CHECK(!sequence->running);
  sequence->running = true;
  if (sequence->slot < 0) {
    KVASIR_CHECK(!free_slots_.empty());
    sequence->slot = free_slots_.back();
    free_slots_.pop_back();
  }
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, KeyLess), sequence);
  seats_used_ += sequence->state->seats();
}

void Scheduler::LeaveRunning(Sequence* sequence) {
  const auto it = std::lower_bound(running_.begin(), running_.end(), sequence, KeyLess);
  KVASIR_CHECK(it != running_.end() && *it == sequence);
  running_.erase(it);
  seats_used_ -= sequence->state->seats();
  sequence->running = false;
  if (options_.resume_tokens == 1 || !sequence->kv.swapped()) FreeSlot(sequence);
}

void Scheduler::FreeSlot(Sequence* sequence) {
  if (sequence->slot >= 0) free_slots_.push_back(sequence->slot);
  sequence->slot = -1;
}

void Scheduler::Drop(Sequence* sequence) {
  CacheHint hint = sequence->state->hint;
  if (sequence->state->ttl_ns > 0)
    hint.expires_ns = SaturatingAdd(now_ns_, sequence->state->ttl_ns);
  if (sequence->running) {
    cache_->Release(sequence->kv, sequence->tokens, sequence->computed, hint);
    LeaveRunning(sequence);
  } else {
    if (sequence->kv.swapped()) cache_->DropSwapped(sequence->kv);
    FreeSlot(sequence);
    cache_->MarkWaiting(sequence->kv, sequence->state->space, sequence->tokens,
                        sequence->most_computed, hint);
    LeaveQueue(sequence);
  }
  sequence->computed = 0;
}

void Scheduler::EndChoice(RequestState& state, int32_t choice) {
  KVASIR_CHECK(!state.ended[static_cast<size_t>(choice)]);
  state.ended[static_cast<size_t>(choice)] = true;
  if (state.forked) {
    Drop(state.sequence(choice));
    state.sequences[static_cast<size_t>(choice)].reset();
    --state.open;
    return;
  }
  // The lead computes on for the others, whichever choice this was.
  if (state.open > 1) {
    if (state.sequence(0)->running) --seats_used_;
    --state.open;
    return;
  }
  Drop(state.sequence(0));
  state.sequences[0].reset();
  --state.open;
}

void Scheduler::EraseIfEnded(RequestState& state) {
  if (state.open > 0) return;
  if (!state.first) --counts_.fresh;
  cache_->CloseSpace(state.space);
  const uint64_t arrival = state.arrival;
  arrivals_.erase(state.id);
  requests_.erase(arrival);
}

}  // namespace kvasir
