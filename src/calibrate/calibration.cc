#include "calibrate/calibration.h"

#include <utility>

#include "calibrate/two_term_finder.h"

namespace kvasir {
namespace {

constexpr char kSection[] = "two_term_blocks";
constexpr int kVersion = 1;
constexpr int64_t kColumnsPerBlock = 32;

int64_t ColumnsOf(const LayerWeights& layer, int site) {
  switch (static_cast<InputSite>(site)) {
    case InputSite::kAttentionIn:
      return layer.qkv[0].columns();
    case InputSite::kAttentionOut:
      return layer.attn_output.columns();
    case InputSite::kFeedForwardIn:
      return layer.gate_up[0].columns();
    case InputSite::kFeedForwardDown:
      break;
  }
  return layer.down.columns();
}

}  // namespace

namespace internal {

nlohmann::json TwoTermBlocksToJson(const TwoTermBlocks& blocks) {
  nlohmann::json lists = nlohmann::json::array();
  for (const std::vector<uint8_t>& flags : blocks.blocks) {
    nlohmann::json list = nlohmann::json::array();
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i] != 0) list.push_back(i);
    }
    lists.push_back(std::move(list));
  }
  return {{"share", kTwoTermShare}, {"columns_per_block", kColumnsPerBlock}, {"blocks", lists}};
}

Result<TwoTermBlocks> TwoTermBlocksFromJson(const nlohmann::json& json, const Model& model) {
  const auto is = [&](const char* key, const nlohmann::json& value) {
    return json.is_object() && json.contains(key) && json[key] == value;
  };
  if (!is("share", kTwoTermShare))
    return DataLoss("two_term_blocks: 'share' is not the one in use");
  if (!is("columns_per_block", kColumnsPerBlock)) {
    return DataLoss("two_term_blocks: 'columns_per_block' must be 32");
  }
  const size_t lists = model.layers.size() * kInputSites;
  if (!json.contains("blocks") || !json["blocks"].is_array() || json["blocks"].size() != lists) {
    return DataLoss("two_term_blocks: 'blocks' must hold " + std::to_string(lists) + " lists");
  }
  TwoTermBlocks result;
  for (size_t i = 0; i < lists; ++i) {
    const auto columns =
        ColumnsOf(model.layers[i / kInputSites], static_cast<int>(i % kInputSites));
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

}  // namespace internal

Result<TwoTermBlocks> LoadTwoTermBlocks(const Model& model, Sidecar* sidecar, Executor& executor,
                                        const CalibrationProgress& progress,
                                        std::vector<std::string>* notes) {
  if (const nlohmann::json* data = sidecar->Find(kSection, kVersion); data != nullptr) {
    Result<TwoTermBlocks> known = internal::TwoTermBlocksFromJson(*data, model);
    if (known.ok()) return known;
    notes->push_back(sidecar->path() + ": " + known.status().message() + "; found anew");
  } else if (!sidecar->complaint().empty()) {
    notes->push_back(sidecar->complaint());
  }
  KVASIR_ASSIGN_OR_RETURN(TwoTermBlocks found, FindTwoTermBlocks(model, executor, progress));
  const Status stored = sidecar->Store(kSection, kVersion, internal::TwoTermBlocksToJson(found));
  if (!stored.ok()) {
    notes->push_back(
        "what was learnt about the model could not be stored and will be found again "
        "at the next start: " +
        stored.message());
  }
  return found;
}

}  // namespace kvasir
