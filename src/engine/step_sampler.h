// StepSampler: takes the rows of logits of one step as the runner gives them out and makes tokens
// and log-probabilities. Rows are shared out over the executor's workers; each result depends on
// its own row and request only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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

class StepSampler {
 public:
  StepSampler(int32_t vocab, Executor* executor, const Clock* clock);

  // plan, live and tasks stay valid until the step ends.
  void Begin(const ScheduledBatch& plan, const Scheduler& scheduler,
             const std::vector<LiveRequest*>& live, const std::vector<LogitTask>& tasks);
  // ModelRunner's sink.
  void OnLogits(int first, int count, const float* logits);
  // After a run that went well, in the order of items and choices: what Scheduler::Commit is told,
  // and beside each the sample it came from. Yours to take from until the next Begin.
  struct Outcome {
    ChoiceSample sample;
    int64_t time_ns = 0;
  };
  void Finish();
  const std::vector<ChoiceOutcome>& outcomes() const { return outcomes_; }
  std::vector<Outcome>& samples() { return samples_; }
  int64_t sample_ns() const { return sample_ns_; }

 private:
  void DoRow(size_t task, std::span<const float> logits, int worker);
  void FinishItem(size_t item, size_t first_task, size_t end_task);
  void Add(size_t item, ChoiceSample sample, int64_t time_ns);
  std::span<const int32_t> Open(size_t item) const;

  // What became of one row.
  struct RowResult {
    size_t first = 0;  // of a sampling row: its choices in drawn_
    Status error;      // of a prompt row
    int64_t time_ns = 0;
  };

  int32_t vocab_;
  Executor* executor_;
  const Clock* clock_;
  std::vector<Sampler> samplers_;    // one per worker
  std::vector<RowScratch> scratch_;  // one per worker
  const ScheduledBatch* plan_ = nullptr;
  const std::vector<LiveRequest*>* live_ = nullptr;
  const std::vector<LogitTask>* tasks_ = nullptr;
  // All of these keep their memory from step to step.
  std::vector<int32_t> open_;        // open choices, item by item
  std::vector<size_t> open_end_;     // per item: where its choices end in open_
  std::vector<RowResult> results_;   // per task
  std::vector<ChoiceSample> drawn_;  // choices of sampling rows, task by task
  std::vector<ChoiceOutcome> outcomes_;
  std::vector<Outcome> samples_;
  int32_t rows_seen_ = 0;
  int64_t sample_ns_ = 0;
};

}  // namespace kvasir
