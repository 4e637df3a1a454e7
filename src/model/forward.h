// The forward pass of a decoder over plain views. Knows no request and no pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/parallel.h"
#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "model/model_config.h"

namespace kvasir {

enum class Precision : uint8_t {
  kFast,       // 8-bit activations everywhere
  kDefault,    // 8 bits, output head in two terms
  kExact,      // two terms everywhere
  kReference,  // f32 activations: for tests and golden files, slow
};

// One call's work: `rows` tokens of several sequences, prefill chunks and decodes mixed in any
// order.
struct ForwardInput {
  std::span<const int32_t> tokens;     // [rows]
  std::span<const int32_t> positions;  // [rows]
  std::span<const AttentionSpanOfSequence> sequences;
  std::span<const PagedKv> layers;      // one per layer
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
};

// Receives logits in groups as they are computed, in the order of logit_rows: `count` rows of vocab
// floats, from logit_rows[first]. The buffer is reused after the call, and the sink may write into
// it.
using LogitSink = FunctionRef<void(int first, int count, float* logits)>;

class Model;  // model/model.h

class ForwardPass {
 public:
  // Scratch for at most max_rows rows a call is taken here, not later. `max_positions` bounds
  // positions.
  static Result<std::unique_ptr<ForwardPass>> Make(const Model& model, Precision precision,
                                                   int max_rows, int max_positions,
                                                   Executor& executor);
  virtual ~ForwardPass() = default;
  virtual Status Run(const ForwardInput& input, LogitSink sink) = 0;
  virtual size_t scratch_bytes() const = 0;
};

inline constexpr int kLogitGroup = 16;  // rows of logits held at once

}  // namespace kvasir
