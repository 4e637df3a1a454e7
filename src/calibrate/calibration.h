// What a served model needs to know about itself beyond its file: read from the sidecar, or found
// now and stored.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "calibrate/sidecar.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

// progress: a growing fraction, called only where something has to be computed.
using CalibrationProgress = std::function<void(double fraction)>;

// The model's two-term blocks (section "two_term_blocks"). A section that does not fit the model is
// found anew. What went wrong with the file is added to notes, one line each: it never fails a
// start.
Result<TwoTermBlocks> LoadTwoTermBlocks(const Model& model, Sidecar* sidecar, Executor& executor,
                                        const CalibrationProgress& progress,
                                        std::vector<std::string>* notes);

namespace internal {
// {"share": 0.12, "columns_per_block": 32, "blocks": [[layer's attention_in], …]}: for every layer
// and input site the indexes of the chosen blocks, ascending.
nlohmann::json TwoTermBlocksToJson(const TwoTermBlocks& blocks);
// kDataLoss naming the field and the limit.
Result<TwoTermBlocks> TwoTermBlocksFromJson(const nlohmann::json& json, const Model& model);
}  // namespace internal

}  // namespace kvasir
