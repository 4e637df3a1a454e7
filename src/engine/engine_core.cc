#include "engine/engine_core.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/check.h"

namespace kvasir {
namespace {

FinishReason ReasonOf(ChoiceEnd end) {
  switch (end) {
    case ChoiceEnd::kGoesOn:
      return FinishReason::kNone;
    case ChoiceEnd::kStop:
      return FinishReason::kStop;
    case ChoiceEnd::kLength:
      return FinishReason::kLength;
    case ChoiceEnd::kFailed:
      return FinishReason::kError;
  }
  return FinishReason::kError;
}

// Mean position of the rows of prompts.
double PrefillDepth(const ScheduledBatch& plan) {
  if (plan.prefill_rows == 0) return 0;
  double sum = 0;
  for (const ScheduledItem& item : plan.items) {
    if (item.prefill) sum += item.count * (item.first + 0.5 * (item.count - 1));
  }
  return sum / plan.prefill_rows;
}

int64_t Nanoseconds(double seconds) {
  return static_cast<int64_t>(std::min(seconds * 1e9, static_cast<double>(INT64_MAX / 4)));
}

}  // namespace

EngineCore::EngineCore(const SchedulerOptions& options, std::unique_ptr<KvCache> cache,
                       std::unique_ptr<SwapSpace> swap, ModelRunner* runner, KvArena* arena,
                       const Clock* clock, Executor* executor)
    : cache_(std::move(cache)),
      swap_(std::move(swap)),
      scheduler_(options, cache_.get()),
      runner_(runner),
      arena_(arena),
      clock_(clock),
      sampler_(runner->vocab(), executor, clock) {
  KVASIR_CHECK(cache_->groups() == 1 && cache_->total_blocks() == arena->blocks());
  KVASIR_CHECK(cache_->free_host_slots() == swap_->slots());
}

LiveRequest* EngineCore::Find(RequestId request) {
  const auto it = live_.find(request);
  return it == live_.end() ? nullptr : it->second.get();
}

void EngineCore::Submit(Request request, std::shared_ptr<EventSink> sink, uint64_t seed) {
  auto live = std::make_unique<LiveRequest>();
  live->id = request.id;
  live->seed = request.sampling.seed.value_or(seed);
  live->prompt_tokens = static_cast<int32_t>(request.prompt.size());
  live->sink = std::move(sink);
  live->open = request.n;
  live->started.resize(static_cast<size_t>(request.n), false);
  live->ended.resize(static_cast<size_t>(request.n), false);
  NewRequest fresh;
  fresh.id = request.id;
  fresh.prompt = std::move(request.prompt);
  fresh.choices = request.n;
  fresh.max_tokens = request.sampling.max_tokens;
  fresh.deadline_ns = request.deadline_ns;
  fresh.priority = request.priority;
  const CacheWish& wish = request.cache;
  fresh.space = cache_->OpenSpace(wish.tenant, wish.salt);
  // Every row of the prompt is wanted: none may come from the cache.
  fresh.read_cache = wish.read && request.sampling.prompt_logprobs < 0;
  fresh.hint.retain = wish.retain;
  fresh.hint.last_use = wish.last_use;
  if (wish.ttl_s > 0) fresh.ttl_ns = Nanoseconds(wish.ttl_s);
  if (!wish.session.empty()) fresh.hint.session = cache_->Session(fresh.space, wish.session);
  live->sampling = std::move(request.sampling);
  KVASIR_CHECK(live_.emplace(request.id, std::move(live)).second);
  scheduler_.Add(std::move(fresh), clock_->NowNs());
}

void EngineCore::Cancel(RequestId request, const Status& why) {
  LiveRequest* live = Find(request);
  if (live == nullptr) return;
  for (const int32_t choice : scheduler_.Cancel(request)) {
    EmitError(*live, choice, FinishReason::kCancelled, why);
  }
}

void EngineCore::CancelAll(const Status& why) {
  while (!live_.empty()) Cancel(live_.begin()->first, why);
}

void EngineCore::FinishChoice(RequestId request, int32_t choice) {
  LiveRequest* live = Find(request);
  if (live == nullptr || !scheduler_.FinishChoice(request, choice)) return;
  live->ended[static_cast<size_t>(choice)] = true;
  if (--live->open > 0) return;
  ended_.push_back(request);
  const auto it = live_.find(request);
  closing_.push_back(std::move(it->second));
  live_.erase(it);
}

TokenEvent& EngineCore::Emit(LiveRequest& live, int32_t choice, FinishReason finish,
                             int64_t time_ns) {
  const size_t c = static_cast<size_t>(choice);
  KVASIR_CHECK(!live.ended[c]);
  TokenEvent event;
  event.request = live.id;
  event.choice = choice;
  event.finish = finish;
  event.time_ns = time_ns;
  if (!live.started[c]) {
    event.scheduled_ns = live.scheduled_ns;
    event.cached_tokens = live.cached_tokens;
    event.miss_reason = live.miss_reason;
    live.started[c] = true;
  }
  live.events.push_back(std::move(event));
  if (!live.touched) touched_.push_back(&live);
  live.touched = true;
  TokenEvent& out = live.events.back();
  if (finish != FinishReason::kNone) {
    live.ended[c] = true;
    if (--live.open == 0) {
      ended_.push_back(live.id);
      const auto it = live_.find(live.id);
      closing_.push_back(std::move(it->second));
      live_.erase(it);
    }
  }
  return out;
}

void EngineCore::EmitError(LiveRequest& live, int32_t choice, FinishReason finish,
                           const Status& why) {
  Emit(live, choice, finish, clock_->NowNs()).error = why;
}

void EngineCore::Expire() {
  for (const ExpiredRequest& expired : scheduler_.Expire(clock_->NowNs())) {
    LiveRequest* live = Find(expired.request);
    KVASIR_CHECK(live != nullptr);
    char text[120];
    std::snprintf(text, sizeof(text), "the request waited %.1f s and was not started before its %s",
                  static_cast<double>(expired.waited_ns) * 1e-9,
                  expired.deadline ? "deadline" : "time in the queue (--queue-timeout) was over");
    const std::vector<bool> ended = live->ended;
    for (size_t c = 0; c < ended.size(); ++c) {
      if (!ended[c])
        EmitError(*live, static_cast<int32_t>(c), FinishReason::kError, DeadlineExceeded(text));
    }
  }
}

bool EngineCore::ExpireCache() {
  const int64_t now_ns = clock_->NowNs();
  if (now_ns < cache_->next_expiry_ns()) return false;
  cache_->Expire(now_ns);
  return true;
}

bool EngineCore::Step() {
  step_ = {};
  Expire();
  const int64_t start_ns = clock_->NowNs();
  ScheduledBatch plan = scheduler_.Plan(start_ns);
  step_.schedule_ns = clock_->NowNs() - start_ns;
  for (const ChoiceId& full : plan.exhausted) {
    Emit(*Find(full.request), full.choice, FinishReason::kLength, clock_->NowNs());
  }
  if (plan.empty()) {
    // Whoever waits while nobody runs is admitted; anything else would be a loop without an end.
    KVASIR_CHECK(scheduler_.idle() || !plan.exhausted.empty());
    return !touched_.empty() || !closing_.empty();
  }
  RunPlan(std::move(plan));
  return true;
}

void EngineCore::RunPlan(ScheduledBatch plan) {
  const int64_t build_ns = clock_->NowNs();
  Move(plan.moves);
  StepCost cost;
  cost.moved_blocks = static_cast<int32_t>(plan.moves.size());
  cost.move_ns = clock_->NowNs() - build_ns;
  item_live_.clear();
  for (const ScheduledItem& item : plan.items) {
    LiveRequest* live = Find(item.sequence->request);
    KVASIR_CHECK(live != nullptr);
    if (!live->begun) {
      live->begun = true;
      const FirstAdmission first = scheduler_.first_admission(live->id).value();
      live->scheduled_ns = first.scheduled_ns;
      live->cached_tokens = first.cached_tokens;
      live->miss_reason = first.reason;
      // Not before it runs: a queue of long prompts would hold much for nothing.
      if (live->sampling.prompt_logprobs >= 0) {
        live->prompt_logprobs = std::make_unique<std::vector<PositionLogprobs>>(
            static_cast<size_t>(live->prompt_tokens) - 1);
      }
    }
    item_live_.push_back(live);
  }
  BuildBatch(plan, item_live_, built_);
  sampler_.Begin(plan, scheduler_, item_live_, built_.tasks);
  step_.rows = plan.rows;
  step_.prefill_rows = plan.prefill_rows;
  step_.decode_rows = plan.rows - plan.prefill_rows;
  const int64_t run_ns = clock_->NowNs();
  step_.build_ns = run_ns - build_ns;
  const Status status = runner_->Run(built_.forward, [this](int first, int count, float* logits) {
    sampler_.OnLogits(first, count, logits);
  });
  const int64_t commit_ns = clock_->NowNs();
  step_.sample_ns = sampler_.sample_ns();
  step_.run_ns = commit_ns - run_ns - step_.sample_ns;
  ++steps_;
  cost.prefill_rows = step_.prefill_rows;
  cost.decode_rows = step_.decode_rows;
  cost.run_ns = commit_ns - run_ns;
  cost.prefill_depth = PrefillDepth(plan);
  scheduler_.Observe(cost);
  if (status.ok()) {
    Commit(plan);
  } else {
    for (const ChoiceId& lost : scheduler_.Abort(std::move(plan))) {
      EmitError(*Find(lost.request), lost.choice, FinishReason::kError, status);
    }
  }
  step_.commit_ns = clock_->NowNs() - commit_ns;
}

void EngineCore::Move(const std::vector<BlockMove>& moves) {
  for (const BlockMove& move : moves) {
    switch (move.kind) {
      case BlockMove::Kind::kCopy:
        arena_->CopyBlock(BlockId(move.from), BlockId(move.to));
        break;
      case BlockMove::Kind::kSwapOut:
        arena_->Export(BlockId(move.from), swap_->slot(move.to));
        break;
      case BlockMove::Kind::kSwapIn:
        arena_->Import(swap_->slot(move.from), BlockId(move.to));
        break;
    }
  }
}

void EngineCore::Commit(ScheduledBatch& plan) {
  sampler_.Finish();
  const std::vector<ChoiceOutcome>& outcomes = sampler_.outcomes();
  const std::vector<ChoiceEnd>& ends = scheduler_.Commit(std::move(plan), outcomes);
  KVASIR_CHECK(ends.size() == outcomes.size());
  for (size_t i = 0; i < ends.size(); ++i) {
    EmitOutcome(*item_live_[static_cast<size_t>(outcomes[i].item)], sampler_.samples()[i], ends[i]);
  }
}

void EngineCore::EmitOutcome(LiveRequest& live, StepSampler::Outcome& sampled, ChoiceEnd end) {
  ChoiceSample& sample = sampled.sample;
  const bool first = !live.started[static_cast<size_t>(sample.choice)];
  TokenEvent& event = Emit(live, sample.choice, ReasonOf(end), sampled.time_ns);
  event.token = sample.token;
  event.error = sample.error;
  event.logprobs = std::move(sample.logprobs);
  if (end == ChoiceEnd::kStop) event.stop_token = sample.token;
  if (first && sample.choice == 0 && sample.error.ok())
    event.prompt_logprobs = std::move(live.prompt_logprobs);
  if (sample.token >= 0) ++generation_tokens_;
}

void EngineCore::DeliverEvents() {
  for (LiveRequest* live : touched_) {
    live->touched = false;
    live->sink->OnTokens(live->events);
    live->events.clear();
  }
  touched_.clear();
  closing_.clear();
}

WorkerStats EngineCore::stats() const {
  const SchedulerCounts& counts = scheduler_.counts();
  WorkerStats stats;
  stats.running = counts.running;
  stats.waiting = counts.waiting;
  stats.books = cache_->books();
  stats.cache = cache_->counts();
  stats.slots_allocated = cache_->slots_allocated();
  stats.slots_used = cache_->slots_used();
  stats.retry_after_s = counts.retry_after_s;
  stats.preemptions = counts.preemptions;
  stats.preemptions_swap = counts.preemptions_swap;
  stats.prefill_tokens_saved = counts.found_tokens;
  stats.prefill_seconds_saved = counts.found_ns * 1e-9;
  stats.prompt_tokens = counts.prompt_tokens;
  stats.generation_tokens = generation_tokens_;
  stats.computed_prefill_tokens = counts.computed_prefill_tokens;
  stats.steps = steps_;
  return stats;
}

void EngineCore::CheckIntegrity() const {
  scheduler_.CheckIntegrity();
  KVASIR_CHECK(scheduler_.idle() == live_.empty());
  for (const auto& [id, live] : live_) {
    int32_t open = 0;
    for (const bool ended : live->ended) open += ended ? 0 : 1;
    KVASIR_CHECK(open == live->open && open > 0);
  }
}

}  // namespace kvasir
