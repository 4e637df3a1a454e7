// What a served model needs to know about itself beyond its file: read from the sidecar, or found
// now and stored.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "calibrate/key_conditioning.h"
#include "calibrate/sidecar.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

// progress: a growing fraction, called only where something has to be computed.
using CalibrationProgress = std::function<void(double fraction)>;

// Which parts a start needs.
struct CalibrationWish {
  bool two_terms = false;
  bool keys = false;
};
struct Calibration {
  TwoTermBlocks two_terms;  // section "two_term_blocks"
  KeyConditioning keys;     // section "key_conditioning"
};

// What is wished and not in the sidecar, or does not fit the model there, is found from one text
// and stored. What went wrong with the file is added to notes, one line each: it never fails a
// start.
Result<Calibration> LoadCalibration(const Model& model, CalibrationWish wish, Sidecar* sidecar,
                                    Executor& executor, const CalibrationProgress& progress,
                                    std::vector<std::string>* notes);

namespace internal {
// {"shares": [0.28, …], "columns_per_block": 32, "blocks": [[layer's attention_in], …, [head's]]}:
// the share of each site, and by InputIndex the indexes of the chosen blocks, ascending.
nlohmann::json TwoTermBlocksToJson(const TwoTermBlocks& blocks, const Model& model);
// kDataLoss naming the field and the limit.
Result<TwoTermBlocks> TwoTermBlocksFromJson(const nlohmann::json& json, const Model& model);
// {"positions": 8192, "centre": [[…], …], "balance": [[…], …]}: a list per layer; numbers are f32.
nlohmann::json KeyConditioningToJson(const KeyConditioning& keys);
Result<KeyConditioning> KeyConditioningFromJson(const nlohmann::json& json, const Model& model);
}  // namespace internal

}  // namespace kvasir
