#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/row_weights.h"

namespace kvasir {
namespace {

// 1 + the tokens that stand before it.
int32_t RankOf(std::span<const float> logits, std::span<const float> maxima, TokenId chosen) {
  const float own = logits[static_cast<size_t>(chosen)];
  int32_t rank = 1;
  for (size_t b = 0; b < maxima.size(); ++b) {
    if (maxima[b] < own) continue;
    const size_t end = std::min(logits.size(), (b + 1) * kRowBlock);
    for (size_t i = b * kRowBlock; i < end; ++i) {
      rank += logits[i] > own || (logits[i] == own && static_cast<TokenId>(i) < chosen) ? 1 : 0;
    }
  }
  return rank;
}

}  // namespace

PositionLogprobs ComputeLogprobs(std::span<const float> logits, TokenId chosen, int32_t top,
                                 RowScratch& scratch) {
  KVASIR_CHECK(chosen >= 0 && static_cast<size_t>(chosen) < logits.size());
  scratch.Look(logits);
  const float max = logits[static_cast<size_t>(scratch.First(logits))];
  scratch.weights.resize(logits.size());
  scratch.sums.resize(RowBlocks(logits.size()));
  RowWeights(logits, max, 1.0F, 0.0F, scratch.weights, scratch.sums);
  double sum = 0;
  for (const float block : scratch.sums) sum += static_cast<double>(block);
  const double log_sum = static_cast<double>(max) + std::log(sum);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  PositionLogprobs result;
  result.chosen = {chosen, logprob(logits[static_cast<size_t>(chosen)]),
                   RankOf(logits, scratch.maxima, chosen)};
  TopK(logits, scratch.maxima, static_cast<size_t>(std::max(top, 0)), scratch.least, scratch.best);
  result.top.reserve(scratch.best.size());
  int32_t place = 0;
  for (const ScoredToken& entry : scratch.best) {
    result.top.push_back({entry.token, logprob(entry.logit), ++place});
  }
  return result;
}

PositionLogprobs ComputeLogprobs(std::span<const float> logits, TokenId chosen, int32_t top) {
  RowScratch scratch;
  return ComputeLogprobs(logits, chosen, top, scratch);
}

}  // namespace kvasir
