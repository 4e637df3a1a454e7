// From the scheduler's plan to the runner's batch, and what each row of logits is for.
#pragma once

#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "engine/live_request.h"
#include "engine/model_runner.h"
#include "scheduler/scheduled_batch.h"

namespace kvasir {

// One row of logits. Belongs to items[item] of the plan.
struct LogitTask {
  int32_t item = 0;
  int32_t position = 0;  // of the row; its logits are about the token at position + 1
  bool samples = false;  // else: log-probability of a prompt token
};

struct BuiltBatch {
  ForwardBatch forward;          // spans look into the tables of the plan's sequences
  std::vector<LogitTask> tasks;  // one per entry of forward.logit_rows
};

// live(i) is the request of items[i]. `out` is overwritten; its vectors keep their memory from step
// to step.
void BuildBatch(const ScheduledBatch& plan, const std::vector<LiveRequest*>& live, BuiltBatch& out);

}  // namespace kvasir
