#include "engine/cpu_runner.h"

#include <utility>

#include "base/check.h"

namespace kvasir {

std::vector<PagedKv> PagedViews(KvArena& arena) {
  return PagedViews(arena.layout(), arena.base());
}

std::vector<PagedKv> PagedViews(const KvLayout& layout, std::byte* base) {
  std::vector<PagedKv> views;
  for (const LayerSlot& slot : layout.layers()) {
    PagedKv view;
    view.base = base;
    view.block_stride = layout.block_bytes();
    view.k_offset = slot.k_offset;
    view.v_offset = slot.v_offset;
    view.block_tokens = layout.block_tokens();
    view.kv_heads = slot.spec.kv_heads;
    view.k_dim = slot.spec.k_dim;
    view.v_dim = slot.spec.v_dim;
    view.k_type = slot.k_type;
    view.v_type = slot.v_type;
    views.push_back(view);
  }
  return views;
}

CpuRunner::CpuRunner(const Model& model, KvArena* arena, int max_rows,
                     std::unique_ptr<ForwardPass> forward)
    : vocab_(model.config().vocab),
      max_rows_(max_rows),
      forward_(std::move(forward)),
      layers_(PagedViews(*arena)) {}

Result<std::unique_ptr<CpuRunner>> CpuRunner::Make(const Model& model, KvArena* arena,
                                                   Precision precision, int max_rows,
                                                   int max_positions, Executor& executor) {
  KVASIR_CHECK(static_cast<int>(arena->layout().layers().size()) == model.config().layers);
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<ForwardPass> forward,
                          ForwardPass::Make(model, precision, max_rows, max_positions, executor));
  return std::unique_ptr<CpuRunner>(new CpuRunner(model, arena, max_rows, std::move(forward)));
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
