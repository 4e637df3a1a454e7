// Text that the model writes itself: what calibration and certificates look at by default, so that
// no text, licence or download is needed and every model is judged in its own language.
//
// Every sequence starts with the model's BOS (or, where the file names none, with a token of its
// own) and goes on by sampling at temperature 1 among the tokens within e^-12 of the likeliest,
// with draws that are a function of (seed, sequence, position). Logits, exponentials and sums are
// the same bits on every machine and thread count, so the text is a constant of the model, the
// seed and the precision.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

struct OwnTextOptions {
  int sequences = 16;
  int tokens = 64;  // of each sequence, the first included; at most the model's context
  uint64_t seed = 1;
  Precision precision = Precision::kExact;  // with an f32 cache
  InputObserver* observer = nullptr;        // sees every pass; may be null
  const std::atomic<bool>* stop = nullptr;  // may be null; once it is set: kCancelled, soon
};

// [sequence][tokens]. progress: a growing fraction.
Result<std::vector<std::vector<int32_t>>> WriteOwnText(
    const Model& model, const OwnTextOptions& options, Executor& executor,
    const std::function<void(double fraction)>& progress = {});

// One token of `logits` by the rule above; uniform in [0, 1). NaN never wins; if nothing is finite
// the result is 0.
int32_t DrawToken(std::span<const float> logits, double uniform);

}  // namespace kvasir
