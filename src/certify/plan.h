// What a certification does, as a list of parts. A pure function of the options and the model's
// shape, so that a run that was stopped finds its parts again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvasir {

enum class PartKind : uint8_t { kPrefill, kDecode, kGreedy, kRepeat, kNeedles };

struct Part {
  PartKind kind = PartKind::kPrefill;
  std::string name;        // "prefill-0"
  std::vector<int> texts;  // kPrefill, kDecode: which; kGreedy: which prompts
  int32_t distance = 0;    // kRepeat; kNeedles: length of the text
  uint64_t seed = 0;       // kRepeat, kNeedles
  double cost = 0;         // in rows, roughly, of one runner

  // For the memory of a runner.
  int32_t sequences = 1;
  int32_t positions = 1;
};

struct CertifyPlan {
  std::vector<int32_t> text_tokens;  // length of each text, longest first
  int32_t prompts = 0;
  int32_t prompt_tokens = 0;
  int32_t greedy_tokens = 0;  // written after each prompt
  std::vector<Part> parts;    // the long ones first
};

// max_len: tokens of the longest text.
CertifyPlan MakePlan(int32_t max_len, bool quick, uint64_t seed);

// Texts of the lengths planned, cut from `tokens` in order; each begins with `bos` if that is not
// negative. What the tokens do not fill is shorter or left out; the plan is adapted. Prompts are
// cut at even distances. kInvalidArgument where there are fewer than kTextTokens.
inline constexpr size_t kTextTokens = 256;
struct CertifyTexts {
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<int32_t>> prompts;
};
Result<CertifyTexts> CutTexts(const CertifyPlan& plan, std::span<const int32_t> tokens,
                              int32_t bos);

// The parts for texts of these lengths.
std::vector<Part> PartsFor(std::span<const int32_t> text_tokens, const CertifyPlan& plan,
                           bool quick, uint64_t seed);

}  // namespace kvasir
