#include "engine/cpu_runner.h"

#include <utility>

#include "base/check.h"
#include "calibrate/paged_views.h"

namespace kvasir {

CpuRunner::CpuRunner(const Model& model, KvArena* arena, int max_rows, KeyConditioning keys,
                     std::unique_ptr<ForwardPass> forward)
    : vocab_(model.config().vocab),
      max_rows_(max_rows),
      forward_(std::move(forward)),
      keys_(std::move(keys)),
      layers_(PagedViews(arena->layout(), arena->base(), keys_)) {}

Result<std::unique_ptr<CpuRunner>> CpuRunner::Make(const Model& model, KvArena* arena,
                                                   ForwardOptions options, Executor& executor) {
  KVASIR_CHECK(static_cast<int>(arena->layout().layers().size()) == model.config().layers);
  const int max_rows = options.max_rows;
  KeyConditioning keys = options.keys;
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<ForwardPass> forward,
                          ForwardPass::Make(model, std::move(options), executor));
  return std::unique_ptr<CpuRunner>(
      new CpuRunner(model, arena, max_rows, std::move(keys), std::move(forward)));
}

Status CpuRunner::Run(const ForwardBatch& batch,
                      FunctionRef<void(int first, int count, float* logits)> sink) {
  KVASIR_CHECK(batch.tokens.size() <= static_cast<size_t>(max_rows_));
  sequences_.clear();
  for (const ForwardSpan& span : batch.spans) {
    AttentionSpanOfSequence sequence;
    sequence.block_table = span.block_table.data();
    sequence.position = span.position;
    sequence.tokens = span.count;
    sequence.row = span.first_row;
    sequences_.push_back(sequence);
  }
  ForwardInput input;
  input.tokens = batch.tokens;
  input.positions = batch.positions;
  input.sequences = sequences_;
  input.layers = layers_;
  input.logit_rows = batch.logit_rows;
  return forward_->Run(input, sink);
}

}  // namespace kvasir
