// What one part of a certification gives for one format, in the form in which it is kept in the
// work file. Certificates are computed from these alone, so a run that was stopped and taken up
// again ends with the same bytes as one that was not.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "certify/divergence.h"

namespace kvasir {

// One sequence, scored at every position from 0.
struct TextScores {
  int sequence = 0;          // index among the texts
  std::vector<int64_t> kld;  // billionths of a nat; kNotFinite where the logits were not
  std::string same_top;      // '1' or '0' a position

  static constexpr int64_t kNotFinite = -1;
  void Add(const Divergence& divergence);
};

// Questions about something `distance` tokens back.
struct RetrievalCell {
  std::string kind;  // "repeat", "needle"
  int distance = 0;  // tokens
  int counted = 0;   // questions that the base answers right
  int right = 0;     // of them the format too
};

struct PartResult {
  std::vector<TextScores> text;
  std::vector<int32_t> first_difference;  // of greedy texts; their length where there is none
  std::vector<RetrievalCell> cells;
};

nlohmann::json PartResultToJson(const PartResult& result);
Result<PartResult> PartResultFromJson(const nlohmann::json& json);  // kDataLoss

}  // namespace kvasir
