#include "engine/step_sampler.h"

#include <utility>

#include "base/check.h"
#include "engine/logprobs.h"

namespace kvasir {

StepSampler::StepSampler(int32_t vocab, Executor* executor, const Clock* clock)
    : vocab_(vocab), executor_(executor), clock_(clock) {
  for (int i = 0; i < executor->workers(); ++i) samplers_.emplace_back(vocab);
  scratch_.resize(samplers_.size());
}

void StepSampler::Begin(const ScheduledBatch& plan, const Scheduler& scheduler,
                        const std::vector<LiveRequest*>& live,
                        const std::vector<LogitTask>& tasks) {
  plan_ = &plan;
  live_ = &live;
  tasks_ = &tasks;
  open_.clear();
  open_end_.clear();
  for (const ScheduledItem& item : plan.items) {
    scheduler.AppendOpenChoices(item, open_);
    open_end_.push_back(open_.size());
  }
  results_.clear();
  results_.resize(tasks.size());
  size_t draws = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    results_[i].first = draws;
    if (tasks[i].samples) draws += Open(static_cast<size_t>(tasks[i].item)).size();
  }
  drawn_.clear();
  drawn_.resize(draws);
  rows_seen_ = 0;
  sample_ns_ = 0;
}

std::span<const int32_t> StepSampler::Open(size_t item) const {
  const size_t first = item == 0 ? 0 : open_end_[item - 1];
  return std::span(open_).subspan(first, open_end_[item] - first);
}

void StepSampler::OnLogits(int first, int count, const float* logits) {
  KVASIR_CHECK(first == rows_seen_ && count > 0 &&
               static_cast<size_t>(first) + static_cast<size_t>(count) <= results_.size());
  rows_seen_ += count;
  const int64_t start_ns = clock_->NowNs();
  const size_t vocab = static_cast<size_t>(vocab_);
  const auto row = [&](size_t i, int worker) {
    results_[static_cast<size_t>(first) + i].time_ns = start_ns;
    DoRow(static_cast<size_t>(first) + i, {logits + i * vocab, vocab}, worker);
  };
  // Waking workers costs about as much as a small row.
  constexpr size_t kWorthSharing = 1 << 16;
  const size_t rows = static_cast<size_t>(count);
  if (rows > 1 && rows * vocab >= kWorthSharing) {
    executor_->ParallelFor(rows, row);
  } else {
    for (size_t i = 0; i < rows; ++i) row(i, 0);
  }
  sample_ns_ += clock_->NowNs() - start_ns;
}

void StepSampler::DoRow(size_t index, std::span<const float> logits, int worker) {
  const LogitTask& task = (*tasks_)[index];
  const size_t item = static_cast<size_t>(task.item);
  const Sequence& sequence = *plan_->items[item].sequence;
  LiveRequest& live = *(*live_)[item];
  RowResult& result = results_[index];
  if (!task.samples) {
    const size_t position = static_cast<size_t>(task.position);
    RowScratch& scratch = scratch_[static_cast<size_t>(worker)];
    if (!scratch.Look(logits)) {
      result.error = Internal("logits are not finite at position " + std::to_string(position + 1));
      return;
    }
    (*live.prompt_logprobs)[position] = ComputeLogprobs(logits, sequence.tokens[position + 1],
                                                        live.sampling.prompt_logprobs, scratch);
    return;
  }
  SampleInput input;
  input.params = &live.sampling;
  input.tokens = sequence.tokens;
  input.prompt_tokens = sequence.prompt_tokens;
  input.seed = live.seed;
  size_t next = result.first;
  for (const int32_t choice : Open(item)) {
    ChoiceSample& sample = drawn_[next++];
    sample.choice = choice;
    input.choice = choice;
    Result<TokenId> token = samplers_[static_cast<size_t>(worker)].Sample(logits, input);
    if (!token.ok()) {
      sample.error = token.status();
    } else {
      sample.token = *token;
      if (live.sampling.logprobs >= 0) {
        sample.logprobs = std::make_unique<PositionLogprobs>(ComputeLogprobs(
            logits, *token, live.sampling.logprobs, scratch_[static_cast<size_t>(worker)]));
      }
    }
  }
}

void StepSampler::Finish() {
  KVASIR_CHECK(static_cast<size_t>(rows_seen_) == results_.size());
  outcomes_.clear();
  samples_.clear();
  size_t next = 0;
  for (size_t item = 0; item < plan_->items.size(); ++item) {
    const size_t first = next;
    while (next < tasks_->size() && static_cast<size_t>((*tasks_)[next].item) == item) ++next;
    FinishItem(item, first, next);
  }
}

void StepSampler::Add(size_t item, ChoiceSample sample, int64_t time_ns) {
  ChoiceOutcome o;
  o.item = static_cast<int32_t>(item);
  o.choice = sample.choice;
  o.token = sample.token;
  o.failed = !sample.error.ok();
  o.stop = sample.token >= 0 && (*live_)[item]->EndsWith(sample.token);
  outcomes_.push_back(o);
  samples_.push_back({std::move(sample), time_ns});
}

void StepSampler::FinishItem(size_t item, size_t first_task, size_t end_task) {
  LiveRequest& live = *(*live_)[item];
  const ScheduledItem& planned = plan_->items[item];
  for (size_t task = first_task; task < end_task; ++task) {
    if (results_[task].error.ok()) continue;
    // A broken prompt row ends all choices.
    for (const int32_t choice : Open(item)) {
      ChoiceSample failed;
      failed.choice = choice;
      failed.error = results_[task].error;
      Add(item, std::move(failed), results_[task].time_ns);
    }
    return;
  }
  if (live.prompt_logprobs) {
    const int32_t done = planned.first + planned.count;
    if (done > live.prompt_rows_done) live.prompt_rows_done = done;
  }
  if (!planned.samples) return;
  if (live.sampling.max_tokens == 0) {
    for (const int32_t choice : Open(item)) {
      ChoiceSample nothing;
      nothing.choice = choice;
      Add(item, std::move(nothing), clock_->NowNs());
    }
    return;
  }
  KVASIR_CHECK(end_task > first_task);
  const RowResult& result = results_[end_task - 1];
  for (size_t i = 0; i < Open(item).size(); ++i)
    Add(item, std::move(drawn_[result.first + i]), result.time_ns);
}

}  // namespace kvasir
