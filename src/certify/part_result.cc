#include "certify/part_result.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

using nlohmann::json;

constexpr double kPerNat = 1e9;
constexpr double kMostNats = 1e6;

Status Broken(const char* field) {
  return DataLoss(std::string("a kept result is broken: '") + field + "'");
}

bool IsInt(const json& object, const char* key) {
  return object.contains(key) && object[key].is_number_integer();
}

bool IsIntArray(const json& object, const char* key) {
  return object.contains(key) && object[key].is_array() &&
         std::all_of(object[key].begin(), object[key].end(),
                     [](const json& item) { return item.is_number_integer(); });
}

bool IsString(const json& object, const char* key) {
  return object.contains(key) && object[key].is_string();
}

Result<TextScores> ScoresFromJson(const json& object) {
  if (!object.is_object() || !IsInt(object, "sequence") || !IsIntArray(object, "kld") ||
      !IsString(object, "same")) {
    return Broken("text");
  }
  TextScores scores;
  scores.sequence = object["sequence"].get<int>();
  scores.kld = object["kld"].get<std::vector<int64_t>>();
  scores.same_top = object["same"].get<std::string>();
  if (scores.same_top.size() != scores.kld.size()) return Broken("same");
  return scores;
}

Result<RetrievalCell> CellFromJson(const json& object) {
  if (!object.is_object() || !IsString(object, "kind") || !IsInt(object, "distance") ||
      !IsInt(object, "counted") || !IsInt(object, "right")) {
    return Broken("cells");
  }
  return RetrievalCell{object["kind"].get<std::string>(), object["distance"].get<int>(),
                       object["counted"].get<int>(), object["right"].get<int>()};
}

}  // namespace

void TextScores::Add(const Divergence& divergence) {
  kld.push_back(divergence.finite ? std::llround(std::min(divergence.kld, kMostNats) * kPerNat)
                                  : kNotFinite);
  same_top += divergence.finite && divergence.same_top ? '1' : '0';
}

nlohmann::json PartResultToJson(const PartResult& result) {
  json text = json::array(), cells = json::array();
  for (const TextScores& scores : result.text) {
    text.push_back({{"sequence", scores.sequence}, {"kld", scores.kld}, {"same", scores.same_top}});
  }
  for (const RetrievalCell& cell : result.cells) {
    cells.push_back({{"kind", cell.kind},
                     {"distance", cell.distance},
                     {"counted", cell.counted},
                     {"right", cell.right}});
  }
  return {{"text", text}, {"first_difference", result.first_difference}, {"cells", cells}};
}

Result<PartResult> PartResultFromJson(const nlohmann::json& object) {
  if (!object.is_object() || !object.contains("text") || !object["text"].is_array() ||
      !object.contains("cells") || !object["cells"].is_array() ||
      !IsIntArray(object, "first_difference")) {
    return Broken("part");
  }
  PartResult result;
  for (const json& item : object["text"]) {
    KVASIR_ASSIGN_OR_RETURN(TextScores scores, ScoresFromJson(item));
    result.text.push_back(std::move(scores));
  }
  for (const json& item : object["cells"]) {
    KVASIR_ASSIGN_OR_RETURN(RetrievalCell cell, CellFromJson(item));
    result.cells.push_back(std::move(cell));
  }
  result.first_difference = object["first_difference"].get<std::vector<int32_t>>();
  return result;
}

}  // namespace kvasir
