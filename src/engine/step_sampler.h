// StepSampler: takes the rows of logits of one step as the runner gives them out and makes tokens
// and log-probabilities. Rows are shared out over the executor's workers; each result depends on
// its own row and request only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "engine/batch_builder.h"
#include "engine/sampler.h"
#include "env/clock.h"
#include "scheduler/scheduler.h"

namespace kvasir {

// What became of one choice.
struct ChoiceSample {
  int32_t choice = 0;
  TokenId token = -1;
  Status error;  // not OK: no token
  std::unique_ptr<PositionLogprobs> logprobs;
};

// What became of one row.
struct RowResult {
  std::vector<ChoiceSample> choices;  // of a sampling row
  Status error;                       // of a prompt row
  int64_t time_ns = 0;
};

class StepSampler {
 public:
  StepSampler(int32_t vocab, Executor* executor, const Clock* clock);

  // plan, live and tasks stay valid until the step ends.
  void Begin(const ScheduledBatch& plan, const Scheduler& scheduler,
             const std::vector<LiveRequest*>& live, const std::vector<LogitTask>& tasks);
  // ModelRunner's sink.
  void OnLogits(int first, int count, const float* logits);
  // After a run that went well: outcomes for Scheduler::Commit, in the order of items and choices,
  // and beside each the sample it came from (null for a choice that ends without a row).
  struct Outcome {
    ChoiceOutcome outcome;
    ChoiceSample sample;
    int64_t time_ns = 0;
  };
  std::vector<Outcome> Finish();
  int64_t sample_ns() const { return sample_ns_; }

 private:
  void DoRow(size_t task, std::span<const float> logits, int worker);
  void FinishItem(size_t item, size_t first_task, size_t end_task, std::vector<Outcome>& outcomes);

  int32_t vocab_;
  Executor* executor_;
  const Clock* clock_;
  std::vector<Sampler> samplers_;  // one per worker
  const ScheduledBatch* plan_ = nullptr;
  const std::vector<LiveRequest*>* live_ = nullptr;
  const std::vector<LogitTask>* tasks_ = nullptr;
  std::vector<std::vector<int32_t>> open_;  // per item: its open choices
  std::vector<RowResult> results_;          // per task
  int32_t rows_seen_ = 0;
  int64_t sample_ns_ = 0;
};

}  // namespace kvasir
