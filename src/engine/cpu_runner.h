// CpuRunner: the model's forward pass on this machine as a ModelRunner. Turns the layout into the
// plain views of kernels.
#pragma once

#include <memory>
#include <vector>

#include "engine/model_runner.h"
#include "kernels/attention.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

class CpuRunner final : public ModelRunner {
 public:
  // model, arena and executor outlive the runner. sequences: most that run at once.
  static Result<std::unique_ptr<CpuRunner>> Make(const Model& model, KvArena* arena,
                                                 ForwardOptions options, int sequences,
                                                 Executor& executor);

  int32_t vocab() const override { return vocab_; }
  int32_t max_rows() const override { return max_rows_; }
  int32_t resume_tokens() const override;
  Status Run(const ForwardBatch& batch,
             FunctionRef<void(int first, int count, float* logits)> sink) override;

 private:
  CpuRunner(const Model& model, KvArena* arena, int max_rows, KeyConditioning keys,
            std::unique_ptr<ForwardPass> forward);

  int32_t vocab_;
  int32_t max_rows_;
  std::unique_ptr<ForwardPass> forward_;
  const KeyConditioning keys_;
  std::vector<PagedKv> layers_;
  std::unique_ptr<KvTail> tail_;                    // if a layer has one
  std::vector<AttentionSpanOfSequence> sequences_;  // scratch
  std::vector<int32_t> slots_;                      // scratch
};

}  // namespace kvasir
