// What a certification found about one format, summed up.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/status.h"
#include "certify/part_result.h"

namespace kvasir {

// Of a set of positions. Divergences in nats.
struct Spread {
  int64_t count = 0;
  int64_t broken = 0;  // of them, those whose logits were not finite; in nothing below
  double mean = 0;
  double p99 = 0;  // the smallest value that 99 % of positions do not exceed
  double max = 0;
  double top1 = 1;  // share of positions whose likeliest token is the base's
};

// Positions first to last of a sequence, both included.
struct Bucket {
  int32_t first = 0;
  int32_t last = 0;
  Spread prefill, decode;
};

struct GreedyMeasure {
  int32_t prompts = 0;
  int32_t tokens = 0;  // of each text; a text without a difference counts as this long
  int32_t median = 0;  // first differing token: half of the texts differ no later
  int32_t p10 = 0;     // and a tenth of them
  int32_t same = 0;    // texts without a difference
};

struct Measures {
  std::vector<Bucket> buckets;
  Spread prefill, decode;
  // Mean of decode mode over mean of prefill mode on the same positions, both plus a millionth of a
  // nat: below that, nothing is told apart. 0 if nothing was read in both modes.
  double ratio = 0;
  GreedyMeasure greedy;
  std::vector<RetrievalCell> retrieval;  // by kind and distance, ascending

  int64_t questions() const;  // that the base answers right
  double recall() const;      // share of them answered; 1 if there are none
};

// 0-127, 128-511, 512-1023, then up to each power of two; the last ends at max_len - 1.
std::vector<Bucket> PositionBuckets(int32_t max_len);

// `parts`: all that was measured for one format; which mode a text score belongs to is said by its
// part.
struct MeasuredPart {
  enum class Mode : uint8_t { kPrefill, kDecode, kOther } mode = Mode::kOther;
  PartResult result;
};
Measures SumUp(std::span<const MeasuredPart> parts, int32_t max_len, int32_t greedy_tokens);

nlohmann::ordered_json SpreadToJson(const Spread& spread);
Result<Spread> SpreadFromJson(const nlohmann::json& json);
nlohmann::ordered_json MeasuresToJson(const Measures& measures);
Result<Measures> MeasuresFromJson(const nlohmann::json& json);  // kDataLoss naming the field

}  // namespace kvasir
