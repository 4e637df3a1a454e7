#include "engine/cpu_runner.h"

#include <string>
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
                                                   ForwardOptions options, int sequences,
                                                   Executor& executor) {
  KVASIR_CHECK(static_cast<int>(arena->layout().layers().size()) == model.config().layers);
  const int max_rows = options.max_rows;
  KeyConditioning keys = options.keys;
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<ForwardPass> forward,
                          ForwardPass::Make(model, std::move(options), executor));
  std::unique_ptr<CpuRunner> runner(
      new CpuRunner(model, arena, max_rows, std::move(keys), std::move(forward)));
  if (KvTail::Wanted(runner->layers_)) {
    Result<std::unique_ptr<KvTail>> tail =
        KvTail::Make(runner->layers_, SlotsFor(sequences), max_rows);
    if (!tail.ok()) {
      return OutOfMemory("--max-num-seqs " + std::to_string(sequences) + ": " +
                         tail.status().message() +
                         "; fewer sequences or another --kv-type need less");
    }
    runner->tail_ = std::move(tail).value();
  }
  return runner;
}

int32_t CpuRunner::resume_tokens() const {
  return tail_ != nullptr ? kKvTailTokens : 1;
}

Status CpuRunner::Run(const ForwardBatch& batch,
                      FunctionRef<void(int first, int count, float* logits)> sink) {
  KVASIR_CHECK(batch.tokens.size() <= static_cast<size_t>(max_rows_));
  if (tail_ != nullptr) {
    for (const SlotCopy& copy : batch.slot_copies) tail_->Copy(copy.from, copy.to);
  }
  sequences_.clear();
  slots_.clear();
  for (const ForwardSpan& span : batch.spans) {
    AttentionSpanOfSequence sequence;
    sequence.block_table = span.block_table.data();
    sequence.position = span.position;
    sequence.tokens = span.count;
    sequence.row = span.first_row;
    sequences_.push_back(sequence);
    slots_.push_back(span.slot);
  }
  ForwardInput input;
  input.tokens = batch.tokens;
  input.positions = batch.positions;
  input.sequences = sequences_;
  input.layers = layers_;
  input.logit_rows = batch.logit_rows;
  input.tail = tail_.get();
  input.slots = slots_;
  return forward_->Run(input, sink);
}

}  // namespace kvasir
