#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "engine/sampler.h"
#include "engine/top_k.h"

namespace kvasir {
PositionLogprobs ComputeLogprobs(std::span<const float> logits, TokenId chosen, int32_t top) {
  KVASIR_CHECK(chosen >= 0 && static_cast<size_t>(chosen) < logits.size());
  const double max = static_cast<double>(logits[static_cast<size_t>(ArgMax(logits))]);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  const double log_sum = max + std::log(sum);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };

  PositionLogprobs result;
  const float own = logits[static_cast<size_t>(chosen)];
  int32_t rank = 1;
  for (size_t i = 0; i < logits.size(); ++i) {
    rank += logits[i] > own || (logits[i] == own && static_cast<TokenId>(i) < chosen) ? 1 : 0;
  }
  result.chosen = {chosen, logprob(own), rank};
  int32_t place = 0;
  std::vector<ScoredToken> best;
  TopK(logits, static_cast<size_t>(std::max(top, 0)), best);
  for (const ScoredToken& entry : best) {
    result.top.push_back({entry.token, logprob(entry.logit), ++place});
  }
  return result;
}

}  // namespace kvasir
