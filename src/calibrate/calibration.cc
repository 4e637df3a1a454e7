#include "calibrate/calibration.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "calibrate/own_text.h"
#include "calibrate/two_term_finder.h"

namespace kvasir {
namespace {

constexpr char kTwoTermSection[] = "two_term_blocks";
constexpr int kTwoTermVersion = 2;
constexpr char kKeySection[] = "key_conditioning";
constexpr int kKeyVersion = 1;
constexpr int64_t kColumnsPerBlock = 32;

}  // namespace

namespace internal {

nlohmann::json TwoTermBlocksToJson(const TwoTermBlocks& blocks, const Model& model) {
  nlohmann::json lists = nlohmann::json::array();
  for (const std::vector<uint8_t>& flags : blocks.blocks) {
    nlohmann::json list = nlohmann::json::array();
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i] != 0) list.push_back(i);
    }
    lists.push_back(std::move(list));
  }
  return {
      {"shares", TwoTermShares(model)}, {"columns_per_block", kColumnsPerBlock}, {"blocks", lists}};
}

Result<TwoTermBlocks> TwoTermBlocksFromJson(const nlohmann::json& json, const Model& model) {
  const auto is = [&](const char* key, const nlohmann::json& value) {
    return json.is_object() && json.contains(key) && json[key] == value;
  };
  if (!is("shares", TwoTermShares(model))) {
    return DataLoss("two_term_blocks: 'shares' are not the ones in use");
  }
  if (!is("columns_per_block", kColumnsPerBlock)) {
    return DataLoss("two_term_blocks: 'columns_per_block' must be 32");
  }
  const size_t lists = InputCount(model.layers.size());
  if (!json.contains("blocks") || !json["blocks"].is_array() || json["blocks"].size() != lists) {
    return DataLoss("two_term_blocks: 'blocks' must hold " + std::to_string(lists) + " lists");
  }
  TwoTermBlocks result;
  for (size_t i = 0; i < lists; ++i) {
    const int64_t columns = ReadersOf(model, i)[0].columns();
    std::vector<uint8_t> flags(
        static_cast<size_t>((columns + kColumnsPerBlock - 1) / kColumnsPerBlock), 0);
    const nlohmann::json& list = json["blocks"][i];
    const std::string name = "two_term_blocks: 'blocks[" + std::to_string(i) + "]'";
    if (!list.is_array()) return DataLoss(name + " is no list");
    for (const nlohmann::json& index : list) {
      if (!index.is_number_unsigned() || index.get<uint64_t>() >= flags.size()) {
        return DataLoss(name + " names a block that is not there (limit " +
                        std::to_string(flags.size() - 1) + ")");
      }
      flags[index.get<size_t>()] = 1;
    }
    result.blocks.push_back(std::move(flags));
  }
  return result;
}

nlohmann::json KeyConditioningToJson(const KeyConditioning& keys) {
  return {
      {"positions", kConditioningPositions}, {"centre", keys.centre}, {"balance", keys.balance}};
}

namespace {

Result<std::vector<std::vector<float>>> Lists(const nlohmann::json& json, const char* key,
                                              bool positive, const ModelConfig& config) {
  const auto width = static_cast<size_t>(config.kv_heads) * static_cast<size_t>(config.k_dim);
  const auto layers = static_cast<size_t>(config.layers);
  const std::string name = std::string("key_conditioning: '") + key + "'";
  if (!json.contains(key) || !json[key].is_array() || json[key].size() != layers) {
    return DataLoss(name + " must hold " + std::to_string(layers) + " lists");
  }
  std::vector<std::vector<float>> lists;
  for (const nlohmann::json& list : json[key]) {
    if (!list.is_array() || list.size() != width) {
      return DataLoss(name + ": each list must hold " + std::to_string(width) + " numbers");
    }
    auto& numbers = lists.emplace_back();
    for (const nlohmann::json& number : list) {
      const float value = number.is_number() ? number.get<float>() : NAN;
      if (!std::isfinite(value) || (positive && value <= 0)) {
        return DataLoss(name + " holds something that is no " + (positive ? "positive " : "") +
                        "finite number");
      }
      numbers.push_back(value);
    }
  }
  return lists;
}

}  // namespace

Result<KeyConditioning> KeyConditioningFromJson(const nlohmann::json& json, const Model& model) {
  if (!json.is_object() || !json.contains("positions") ||
      json["positions"] != kConditioningPositions) {
    return DataLoss("key_conditioning: 'positions' is not the one in use");
  }
  KeyConditioning keys;
  KVASIR_ASSIGN_OR_RETURN(keys.centre, Lists(json, "centre", false, model.config()));
  KVASIR_ASSIGN_OR_RETURN(keys.balance, Lists(json, "balance", true, model.config()));
  return keys;
}

}  // namespace internal

namespace {

// One part: from the sidecar if it is there and fits.
template <typename T>
bool Known(const Sidecar& sidecar, const char* section, int version,
           Result<T> (*parse)(const nlohmann::json&, const Model&), const Model& model, T* out,
           std::vector<std::string>* notes) {
  const nlohmann::json* data = sidecar.Find(section, version);
  if (data == nullptr) return false;
  Result<T> known = parse(*data, model);
  if (known.ok()) {
    *out = std::move(known).value();
    return true;
  }
  notes->push_back(sidecar.path() + ": " + known.status().message() + "; found anew");
  return false;
}

// Lets two observers see one text.
class Both final : public InputObserver {
 public:
  Both(InputObserver* a, InputObserver* b) : all_{a, b} {}
  void OnInput(int layer, InputSite site, const float* x, size_t ldx, int rows,
               int columns) override {
    for (InputObserver* one : all_) {
      if (one != nullptr) one->OnInput(layer, site, x, ldx, rows, columns);
    }
  }
  void OnQueryKey(int layer, const float* q, const float* k, size_t ld, int rows) override {
    for (InputObserver* one : all_) {
      if (one != nullptr) one->OnQueryKey(layer, q, k, ld, rows);
    }
  }

 private:
  InputObserver* all_[2];
};

}  // namespace

Result<Calibration> LoadCalibration(const Model& model, CalibrationWish wish, Sidecar* sidecar,
                                    Executor& executor, const CalibrationProgress& progress,
                                    std::vector<std::string>* notes) {
  Calibration result;
  const bool find_blocks =
      wish.two_terms && !Known(*sidecar, kTwoTermSection, kTwoTermVersion,
                               internal::TwoTermBlocksFromJson, model, &result.two_terms, notes);
  const bool find_keys =
      wish.keys && !Known(*sidecar, kKeySection, kKeyVersion, internal::KeyConditioningFromJson,
                          model, &result.keys, notes);
  if (!find_blocks && !find_keys) return result;
  if (!sidecar->complaint().empty()) notes->push_back(sidecar->complaint());
  internal::RoundingLoss loss(model.config().layers);
  internal::KeyMoments moments(model.config());
  Both both(find_blocks ? &loss : nullptr, find_keys ? &moments : nullptr);
  OwnTextOptions text;
  text.tokens = std::min(text.tokens, model.config().context);
  text.observer = &both;
  KVASIR_RETURN_IF_ERROR(WriteOwnText(model, text, executor, progress).status());
  Status stored;
  if (find_blocks) {
    result.two_terms = ChooseTwoTermBlocks(model, loss, executor);
    stored = sidecar->Store(kTwoTermSection, kTwoTermVersion,
                            internal::TwoTermBlocksToJson(result.two_terms, model));
  }
  if (find_keys) {
    result.keys = internal::FitKeys(model.config(), moments);
    // Writes all that could not be written before it, so its status stands for both.
    stored = sidecar->Store(kKeySection, kKeyVersion, internal::KeyConditioningToJson(result.keys));
  }
  if (!stored.ok()) {
    notes->push_back(
        "what was learnt about the model could not be stored and will be found again "
        "at the next start: " +
        stored.message());
  }
  return result;
}

}  // namespace kvasir
