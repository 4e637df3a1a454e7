// What is asked: prompts and answer lengths, a pure function of the seed and of a request's number,
// so every server and every setting of it gets the same requests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "loadgen/completion.h"

namespace kvasir {

struct LoadShape {
  uint64_t seed = 1;
  int32_t vocab = 49000;  // token ids are drawn from [300, vocab)
};

// Draws prompt units of one stream of the seed.
class PromptSource {
 public:
  PromptSource(const Target& target, const LoadShape& shape, uint64_t stream);
  PromptUnits Draw(size_t count);
  uint64_t Below(uint64_t n) { return rng_.Below(n); }

 private:
  bool text_;
  int32_t vocab_;
  Rng rng_;
};

PromptUnits Joined(const PromptUnits& first, const PromptUnits& second);

// A number of tokens, drawn evenly from [low, high].
struct LengthRange {
  int32_t low = 0, high = 0;
  static constexpr int32_t kMost = 10'000'000;
};
// "256" or "64:512". kInvalidArgument names the flag.
Result<LengthRange> ParseLengthRange(std::string_view text, const std::string& flag);

struct TraceLengths {
  int32_t prompt = 1, output = 1;
};
// Lengths of a CSV file with the columns ContextTokens and GeneratedTokens (the Azure traces),
// found by the names in its first line. Rows of no tokens are left out; scaled values are at
// least 1. kInvalidArgument: a column is missing, a field is no number (with its line), or no row
// is left.
Result<std::vector<TraceLengths>> ParseLengthTrace(std::string_view text, double scale);

struct TrafficOptions {
  LengthRange input{256, 256};
  LengthRange output{64, 64};
  int32_t shared_tokens = 0;  // of the input: the first ones, the same for all requests
  // In front of the input: a prefix of this length. `hot_share` of the requests have the common
  // one, the others a prefix of their own (one-off prompts of the same length).
  int32_t prefix_tokens = 0;
  double hot_share = 1;
  std::vector<TraceLengths> trace;  // not empty: instead of input and output
  int32_t turns = 1;                // requests of a session; each has all that went before in front
  double think_s = 0;               // between an answer and the next turn
  int64_t first_request = 0;        // number of the first one, to go on where a run ended

  // Names the flag and its limit.
  Status Validate() const;
};

// Immutable, any thread.
class Traffic {
 public:
  Traffic(const TrafficOptions& options, const Target& target, const LoadShape& shape);

  // First request of session `index` (from 0; first_request is added).
  CompletionJob First(int64_t index) const;
  // Turn `turn` (from 1) of the session after `before` was answered. Where the server did not tell
  // the answer's tokens, as many drawn ones stand for them.
  CompletionJob Next(int64_t index, int32_t turn, const CompletionJob& before,
                     const Outcome& answer) const;
  const TrafficOptions& options() const { return options_; }

 private:
  TraceLengths Lengths(int64_t number, int32_t turn) const;

  TrafficOptions options_;
  Target target_;
  LoadShape shape_;
  PromptUnits shared_, hot_;
};

}  // namespace kvasir
