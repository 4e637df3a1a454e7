// SequenceRunner: a model over a cache of its own, driven token by token. No engine, no scheduler,
// no sharing: for calibration, certificates and tests, where each sequence is fed exactly what is
// said.
//
// Blocks of a sequence lie scattered and backwards in memory that starts as NaN patterns, so that
// reading a slot which was never written shows. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "env/machine.h"
#include "kernels/attention.h"
#include "kvcache/kv_layout.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

class SequenceRunner {
 public:
  // Index of the row in what was asked for, and its logits [vocab]; the buffer may be written into
  // and is reused after the call.
  using Sink = FunctionRef<void(size_t i, std::span<float> logits)>;

  // options.max_positions: the longest a sequence may grow. options.max_rows: the largest call;
  // longer chunks are cut. model and executor outlive the runner. kOutOfMemory with the bytes if
  // the cache cannot be had.
  static Result<std::unique_ptr<SequenceRunner>> Make(const Model& model, ForwardOptions options,
                                                      const KvLayout& layout, int sequences,
                                                      Executor& executor);

  // Runs `tokens` of one sequence after what it holds. want: indexes into tokens, ascending; sink
  // gets the logits after tokens[want[i]].
  Status Prefill(int sequence, std::span<const int32_t> tokens, std::span<const int32_t> want,
                 Sink sink);
  // One token for each of the sequences 0, 1, … tokens.size() - 1, in one call; sink(sequence,
  // logits).
  Status Decode(std::span<const int32_t> tokens, Sink sink);
  // Forgets tokens from the end: the sequence is then `length` long.
  void Truncate(int sequence, int32_t length);

  int sequences() const { return static_cast<int>(lengths_.size()); }
  int32_t length(int sequence) const { return lengths_[static_cast<size_t>(sequence)]; }

 private:
  SequenceRunner() = default;
  Status Run(std::span<const int32_t> tokens, std::span<const AttentionSpanOfSequence> spans,
             size_t first, Sink sink);

  Status HoldTail(int sequence);

  size_t vocab_ = 0;
  int max_rows_ = 0;
  int max_positions_ = 0;
  std::unique_ptr<ForwardPass> pass_;
  BigBuffer memory_;
  KeyConditioning keys_;
  std::vector<PagedKv> layers_;
  std::unique_ptr<KvTail> tail_;               // if a layer has one
  std::vector<std::vector<int32_t>> history_;  // with a tail: the tokens of each sequence
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> positions_, rows_;       // of one call
  std::vector<int32_t> slots_;                  // the same
  std::vector<AttentionSpanOfSequence> spans_;  // of one call
};

}  // namespace kvasir
