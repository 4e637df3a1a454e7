// Who comes in from the queue.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace kvasir {
namespace {

constexpr int kEstimatesPerPlan = 4;   // kPrefix: look-ups
constexpr int kVisitsPerPlan = 64;     // requests looked at to find them
constexpr uint64_t kPlansBlocked = 8;  // a remembered need is believed so long
constexpr int32_t kRoomMost = 16384;   // tokens to come for which a sequence's lists have room

}  // namespace

int32_t Scheduler::MatchLimit(const Sequence& sequence) const {
  const int32_t limit = sequence.size() - 1;  // the last row has to be run
  return sequence.state->read_cache ? limit : std::min(limit, sequence.most_computed);
}

CacheMatch Scheduler::Match(const Sequence& sequence, int32_t limit) const {
  CacheMatch match = cache_->Match(sequence.state->space, sequence.tokens, limit);
  const int32_t resume = options_.resume_tokens;
  if (resume == 1) return match;
  const int32_t present = match.tokens;
  const int32_t end = (match.tokens + match.pending_tokens) / resume * resume;
  while (const int32_t beyond = match.tokens % resume) {
    match = cache_->Match(sequence.state->space, sequence.tokens, match.tokens - beyond);
  }
  match.present = present;
  match.pending_tokens = std::max(0, end - match.tokens);
  return match;
}

// kPrefix: what is cached changes while a request waits. A few are looked up again in each plan, in
// turn by arrival.
void Scheduler::Reestimate() {
  if (options_.policy != SchedulingPolicy::kPrefix || counts_.fresh == 0) return;
  auto it = requests_.upper_bound(estimated_);
  const auto visits = std::min<size_t>(requests_.size(), kVisitsPerPlan);
  int looked_up = 0;
  for (size_t i = 0; i < visits && looked_up < kEstimatesPerPlan; ++i, ++it) {
    if (it == requests_.end()) it = requests_.begin();
    estimated_ = it->first;
    const RequestState& state = *it->second;
    if (state.first) continue;
    ++looked_up;
    Sequence* sequence = state.sequence(0);
    const int64_t rank = RankOf(state, Match(*sequence, MatchLimit(*sequence)).tokens);
    if (rank == sequence->key.rank) continue;
    auto node = waiting_.extract(sequence->key);
    sequence->key.rank = rank;
    node.key() = sequence->key;
    KVASIR_CHECK(waiting_.insert(std::move(node)).inserted);
  }
}

// A head that waited for tokens goes on waiting while they come, also in a step that has no row for
// it: else it would be taken for one that lacks a seat.
void Scheduler::KeepJoining() {
  if (options_.policy != SchedulingPolicy::kPriority || waiting_.empty()) return;
  Sequence* head = waiting_.begin()->second;
  if (head->joined + 1 != plan_) return;
  const int32_t limit = MatchLimit(*head);
  if (Joins(Match(*head, limit), limit)) head->joined = plan_;
}

void Scheduler::Admit(int64_t now_ns, ScheduledBatch& batch) {
  int32_t passed = 0;
  for (auto it = waiting_.begin(); it != waiting_.end() && PrefillRoom(batch) > 0;) {
    Sequence* sequence = it->second;
    ++it;
    // What made room a moment ago does not take it back.
    if (sequence->preempted == plan_ && !running_.empty()) return;
    const Try result = TryAdmit(sequence, now_ns, batch);
    if (result == Try::kBlocked) return;
    if (result != Try::kJoins) continue;
    sequence->joined = plan_;
    ++counts_.joining;
    if (++passed > options_.join_lookahead) return;
  }
}

// Announced tokens are written when this step ends. If it would gain a block, or all it can have,
// it waits; the announcement ends with the step, so it never waits for what does not come.
bool Scheduler::Joins(const CacheMatch& match, int32_t limit) const {
  const bool all = match.tokens + match.pending_tokens >= limit;
  return match.pending_tokens >= block_tokens_ || (all && match.pending_tokens > 0);
}

Scheduler::Try Scheduler::TryAdmit(Sequence* sequence, int64_t now_ns, ScheduledBatch& batch) {
  if (seats_used_ + sequence->state->seats() > seats_) return Try::kBlocked;
  if (running_.empty()) return AdmitAlone(sequence, now_ns, batch);
  if (StillBlocked(*sequence)) return Try::kBlocked;
  const int32_t limit = MatchLimit(*sequence);
  const CacheMatch match = Match(*sequence, limit);
  if (Joins(match, limit)) return Try::kJoins;
  if (!FitsBeside(*sequence, match)) {
    RememberBlocked(*sequence, match);
    return Try::kBlocked;
  }
  if (!Start(sequence, match, limit, now_ns, batch)) {
    RememberBlocked(*sequence, match);
    return Try::kBlocked;
  }
  return Try::kAdmitted;
}

Scheduler::Try Scheduler::AdmitAlone(Sequence* sequence, int64_t now_ns, ScheduledBatch& batch) {
  const int32_t limit = MatchLimit(*sequence);
  // A copy needs its source besides all the sequence's blocks; so in a tight pool it is tried with
  // whole blocks, then without any.
  CacheMatch match = Match(*sequence, limit);
  if (Start(sequence, match, limit, now_ns, batch)) return Try::kAdmitted;
  for (const int32_t shorter : {match.tokens / block_tokens_ * block_tokens_, 0}) {
    match = Match(*sequence, shorter);
    if (Start(sequence, match, limit, now_ns, batch)) return Try::kAdmitted;
  }
  // It grew to the whole pool while it shared blocks, or pins hold what it needs.
  EndExhausted(sequence, batch);
  return Try::kEnded;
}

// Tokens that its lists take room for at once, so that no step of a long answer has to grow them.
int32_t Scheduler::RoomFor(const Sequence& sequence) const {
  const int64_t to_come = std::min<int64_t>(sequence.state->max_tokens, kRoomMost);
  return static_cast<int32_t>(std::min<int64_t>(sequence.size() + to_come, options_.max_model_len));
}

// False: it does not fit, and nothing changed.
bool Scheduler::Start(Sequence* sequence, const CacheMatch& match, int32_t limit, int64_t now_ns,
                      ScheduledBatch& batch) {
  RequestState& state = *sequence->state;
  BeginOptions begin;
  begin.tokens = sequence->tokens;
  begin.limit = limit;
  begin.promise = sequence->size();
  begin.room = RoomFor(*sequence);
  begin.chunk = options_.max_num_batched_tokens;
  begin.count = !state.first;
  BeginResult result;
  if (!cache_->Begin(sequence->kv, match, begin, batch.moves, &result)) return false;
  LeaveQueue(sequence);
  sequence->tokens.reserve(static_cast<size_t>(begin.room));
  KVASIR_CHECK(result.computed < sequence->size());
  sequence->computed = result.computed;
  sequence->most_computed = std::max(sequence->most_computed, result.computed);
  // A preempted one that found all its tokens again decodes on.
  const bool complete = sequence->generated() > 0 && result.computed + 1 == sequence->size();
  sequence->prefill_target = complete ? result.computed : sequence->size();
  counts_.found_tokens += static_cast<uint64_t>(result.hit);
  counts_.swapped_in_tokens += static_cast<uint64_t>(result.swapped_in);
  counts_.found_ns += costs_.prefill_ns(0, result.hit);
  if (!state.first) {
    state.first = FirstAdmission{now_ns, result.hit, result.reason};
    --counts_.fresh;
    ++first_admitted_;
  }
  EnterRunning(sequence);
  KVASIR_CHECK(seats_used_ <= seats_);
  if (growth_known_) AddGrowth(*sequence);
  KVASIR_CHECK(AddItem(sequence, PrefillRoom(batch), batch));  // its blocks were promised
  return true;
}

// The need remembered is a lower bound as long as no more of the prompt gets cached; so it is
// believed for a few plans only.
bool Scheduler::StillBlocked(const Sequence& sequence) {
  if (blocked_.choice != sequence.key.choice || blocked_.arrival != sequence.key.arrival) {
    return false;
  }
  if (plan_ >= blocked_.until_plan) return false;
  for (int32_t g = 0; g < cache_->groups(); ++g) {
    if (cache_->available(g) < blocked_.need[static_cast<size_t>(g)] + Reserve(g)) return true;
  }
  return false;
}

void Scheduler::RememberBlocked(const Sequence& sequence, const CacheMatch& match) {
  blocked_.arrival = sequence.key.arrival;
  blocked_.choice = sequence.key.choice;
  blocked_.until_plan = plan_ + kPlansBlocked;
  blocked_.need.clear();
  for (int32_t g = 0; g < cache_->groups(); ++g) blocked_.need.push_back(Need(sequence, match, g));
}

bool Scheduler::FitsBeside(const Sequence& sequence, const CacheMatch& match) {
  // Fits knows exactly what is shared but has one reserve, in blocks of group 0, for all groups in
  // proportion: the least of theirs. Then each group against its own, where what is shared counts
  // in group 0 only.
  int64_t least = INT32_MAX;
  for (int32_t g = 0; g < cache_->groups(); ++g) {
    least = std::min(least, Reserve(g) * cache_->total_blocks() / cache_->total_blocks(g));
  }
  if (!cache_->Fits(match, sequence.kv, GrownTokens(sequence), options_.max_num_batched_tokens,
                    static_cast<int32_t>(least))) {
    return false;
  }
  if (cache_->groups() == 1) return true;
  for (int32_t g = 0; g < cache_->groups(); ++g) {
    if (cache_->available(g) < Need(sequence, match, g) + Reserve(g)) return false;
  }
  return true;
}

int64_t Scheduler::Need(const Sequence& sequence, const CacheMatch& match, int32_t group) const {
  const int64_t held =
      cache_->BlocksHeld(group, GrownTokens(sequence), options_.max_num_batched_tokens);
  if (group > 0) return held;
  return std::max<int64_t>(0, held - static_cast<int64_t>(match.nodes.size())) + match.unheld;
}

// Blocks that an admission leaves free: the watermark, and room for the running ones.
int64_t Scheduler::Reserve(int32_t group) {
  if (!growth_known_) {
    growth_known_ = true;
    std::fill(growth_.begin(), growth_.end(), 0);
    if (output_.mean() > 0) {
      for (const Sequence* sequence : running_) AddGrowth(*sequence);
    }
  }
  const auto g = static_cast<size_t>(group);
  return watermark_[g] + growth_[g];
}

int32_t Scheduler::GrownTokens(const Sequence& sequence) const {
  const RequestState& state = *sequence.state;
  const int32_t remaining = output_.Remaining(sequence.generated(), state.max_tokens);
  const double grown =
      sequence.size() + std::ceil(options_.growth_share * remaining) * state.seats();
  return static_cast<int32_t>(
      std::max<double>(std::min<double>(grown, options_.max_model_len), sequence.size()));
}

void Scheduler::AddGrowth(const Sequence& sequence) {
  const int32_t grown = GrownTokens(sequence);
  if (grown == sequence.size()) return;
  for (int32_t g = 0; g < cache_->groups(); ++g) {
    growth_[static_cast<size_t>(g)] +=
        cache_->BlocksHeld(g, grown, 1) - cache_->BlocksHeld(g, sequence.size(), 1);
  }
}

}  // namespace kvasir
