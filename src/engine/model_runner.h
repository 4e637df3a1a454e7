// ModelRunner: runs one step's batch. One of the five seams: the CPU runner, a GPU's, a fake in
// tests, the simulator's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "kvcache/kv_arena.h"
#include "scheduler/scheduler_types.h"

namespace kvasir {

// Rows of one sequence: tokens [first_row, first_row + count) at positions [position, position +
// count).
struct ForwardSpan {
  std::span<const int32_t> block_table;
  int32_t position = 0;
  int32_t count = 0;
  int32_t first_row = 0;
  int32_t slot = 0;  // the sequence's, see ModelRunner::resume_tokens
};

struct ForwardBatch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<ForwardSpan> spans;
  std::vector<int32_t> logit_rows;    // ascending
  std::vector<SlotCopy> slot_copies;  // done first, also if the run then fails
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual int32_t vocab() const = 0;
  virtual int32_t max_rows() const = 0;  // of one batch
  // 1, or a runner keeps more of a sequence than its blocks: the tokens after the last multiple of
  // this, in its slot (model/kv_tail.h). Then a sequence goes on where it was and in its own slot,
  // or begins at a multiple.
  virtual int32_t resume_tokens() const { return 1; }
  // Logits come through the sink in groups in the order of logit_rows: `count` rows of vocab floats
  // starting with logit_rows[first]; the sink may overwrite them. A failure means nothing of the
  // batch may be committed.
  virtual Status Run(const ForwardBatch& batch,
                     FunctionRef<void(int first, int count, float* logits)> sink) = 0;
};

}  // namespace kvasir
