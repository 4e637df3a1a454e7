#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/hash.h"
#include "kernels/elementwise.h"

namespace kvasir {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

bool HasEnding(std::span<const TokenId> tokens, std::span<const TokenId> ending) {
  return tokens.size() >= ending.size() &&
         std::equal(ending.begin(), ending.end(),
                    tokens.end() - static_cast<ptrdiff_t>(ending.size()));
}

// Penalties divide and subtract: a result beyond float's range stays the largest number, and a
// masked token masked.
float Clamp(double value) {
  return static_cast<float>(
      std::clamp(value, -static_cast<double>(kLargest), static_cast<double>(kLargest)));
}

// Weight of a token relative to the best one. Differences are taken in double: they cannot
// overflow.
double Weight(float logit, float max, double inverse_temperature) {
  if (logit == kMasked) return 0;
  const double x = (static_cast<double>(logit) - static_cast<double>(max)) * inverse_temperature;
  return x < -87.0 ? 0.0 : static_cast<double>(Exp(static_cast<float>(x)));
}

double InverseTemperature(const SamplingParams& params) {
  return 1.0 / static_cast<double>(params.temperature);
}

}  // namespace

// Both walk 16 numbers abreast, which compilers turn into vector code; the results do not depend on
// it.
bool AllFinite(std::span<const float> values) {
  constexpr size_t kLanes = 16;
  constexpr uint32_t kExponent = 0x7F800000U;
  uint32_t bad[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      bad[j] |=
          static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i + j]) & kExponent) == kExponent);
    }
  }
  uint32_t any = 0;
  for (; i < values.size(); ++i) {
    any |= static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent);
  }
  for (const uint32_t lane : bad) any |= lane;
  return any == 0;
}

int32_t ArgMax(std::span<const float> values) {
  constexpr size_t kLanes = 16;
  float best[kLanes];
  std::fill(best, best + kLanes, kMasked);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) best[j] = values[i + j] > best[j] ? values[i + j] : best[j];
  }
  float max = *std::max_element(best, best + kLanes);
  for (; i < values.size(); ++i) max = std::max(max, values[i]);
  return static_cast<int32_t>(std::find(values.begin(), values.end(), max) - values.begin());
}

Sampler::Sampler(int32_t vocab) : vocab_(vocab) {
  KVASIR_CHECK(vocab > 0);
  counts_.resize(static_cast<size_t>(vocab), 0);
}

Result<TokenId> Sampler::Sample(std::span<const float> logits, const SampleInput& input) {
  KVASIR_CHECK(static_cast<int32_t>(logits.size()) == vocab_);
  const SamplingParams& params = *input.params;
  if (!AllFinite(logits)) {
    return Internal("logits are not finite at position " + std::to_string(input.tokens.size()));
  }
  std::span<const float> row = logits;
  if (Adjust(logits, input)) row = adjusted_;
  const TokenId best = ArgMax(row);
  const float max = row[static_cast<size_t>(best)];
  if (max == kMasked) {
    return InvalidArgument(
        "allowed_token_ids, bad_words and min_tokens leave no token to sample at position " +
            std::to_string(input.tokens.size()),
        "allowed_token_ids");
  }
  if (params.temperature == 0.0F) return best;
  const double uniform =
      CounterUniform(input.seed, static_cast<uint64_t>(input.choice),
                     input.tokens.size() - static_cast<size_t>(input.prompt_tokens));
  const bool restricted = params.top_k > 0 || params.top_p < 1.0F;
  return restricted ? DrawFromBest(row, max, input, uniform)
                    : DrawFromAll(row, max, input, uniform);
}

// True if adjusted_ holds the row to be used. A plain request costs no copy.
bool Sampler::Adjust(std::span<const float> logits, const SampleInput& input) {
  const SamplingParams& p = *input.params;
  const int32_t generated = static_cast<int32_t>(input.tokens.size()) - input.prompt_tokens;
  const bool masks = !p.allowed_tokens.empty() || !p.bad_words.empty() || generated < p.min_tokens;
  const bool penalties =
      p.repetition_penalty != 1.0F ||
      ((p.presence_penalty != 0.0F || p.frequency_penalty != 0.0F) && generated > 0);
  if (!masks && !penalties && p.logit_bias.empty()) return false;
  Mask(logits, input);
  for (const auto& [token, bias] : p.logit_bias) {
    float& value = adjusted_[static_cast<size_t>(token)];
    if (value != kMasked) value = Clamp(static_cast<double>(value) + static_cast<double>(bias));
  }
  if (penalties) Penalise(input);
  return true;
}

void Sampler::Mask(std::span<const float> logits, const SampleInput& input) {
  const SamplingParams& p = *input.params;
  if (p.allowed_tokens.empty()) {
    adjusted_.assign(logits.begin(), logits.end());
  } else {
    adjusted_.assign(logits.size(), kMasked);
    for (const TokenId token : p.allowed_tokens) {
      adjusted_[static_cast<size_t>(token)] = logits[static_cast<size_t>(token)];
    }
  }
  const auto generated = input.tokens.subspan(static_cast<size_t>(input.prompt_tokens));
  for (const std::vector<TokenId>& word : p.bad_words) {
    const std::span<const TokenId> all(word);
    if (HasEnding(generated, all.first(all.size() - 1))) {
      adjusted_[static_cast<size_t>(all.back())] = kMasked;
    }
  }
  if (static_cast<int32_t>(generated.size()) < p.min_tokens) {
    for (const TokenId token : p.stop_tokens) adjusted_[static_cast<size_t>(token)] = kMasked;
    if (!p.ignore_eos) {
      for (const TokenId token : p.end_tokens) adjusted_[static_cast<size_t>(token)] = kMasked;
    }
  }
}

void Sampler::Penalise(const SampleInput& input) {
  const SamplingParams& p = *input.params;
  const double repetition = static_cast<double>(p.repetition_penalty);
  const auto generated = input.tokens.subspan(static_cast<size_t>(input.prompt_tokens));
  if (repetition != 1.0) {
    for (const TokenId token : input.tokens) {
      if (counts_[static_cast<size_t>(token)]++ > 0) continue;
      float& value = adjusted_[static_cast<size_t>(token)];
      if (value == kMasked) continue;
      const double logit = static_cast<double>(value);
      value = Clamp(logit > 0 ? logit / repetition : logit * repetition);
    }
    for (const TokenId token : input.tokens) counts_[static_cast<size_t>(token)] = 0;
  }
  for (const TokenId token : generated) ++counts_[static_cast<size_t>(token)];
  for (const TokenId token : generated) {
    const int32_t count = std::exchange(counts_[static_cast<size_t>(token)], 0);
    float& value = adjusted_[static_cast<size_t>(token)];
    if (count == 0 || value == kMasked) continue;
    value = Clamp(static_cast<double>(value) - static_cast<double>(p.presence_penalty) -
                  static_cast<double>(p.frequency_penalty) * count);
  }
}

// No top_k, no top_p: one pass for the weights and one along the running sum, in order of token id.
TokenId Sampler::DrawFromAll(std::span<const float> logits, float max, const SampleInput& input,
                             double uniform) {
  const double inverse = InverseTemperature(*input.params);
  const double floor = static_cast<double>(input.params->min_p);
  weights_.resize(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = Weight(logits[i], max, inverse);
    weights_[i] = weight < floor ? 0.0 : weight;
    total += weights_[i];
  }
  const double target = uniform * total;
  double sum = 0;
  size_t last = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0.0) continue;
    sum += weights_[i];
    last = i;
    if (sum > target) break;
  }
  return static_cast<TokenId>(last);
}

TokenId Sampler::DrawFromBest(std::span<const float> logits, float max, const SampleInput& input,
                              double uniform) {
  const SamplingParams& p = *input.params;
  const double inverse = InverseTemperature(p);
  const double total = p.top_k > 0 ? KeepTopK(logits, max, p) : KeepLikely(logits, max, p);
  const size_t kept = SortUntilMass(inverse, max, static_cast<double>(p.top_p) * total);
  double mass = 0;
  for (size_t i = 0; i < kept; ++i) mass += Weight(candidates_[i].logit, max, inverse);
  const double target = uniform * mass;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += Weight(candidates_[i].logit, max, inverse);
    if (sum > target) return candidates_[i].token;
  }
  return candidates_[kept - 1].token;
}

// Both fill candidates_ with what min_p leaves and return the sum of the weights that top_p is
// measured on.
double Sampler::KeepTopK(std::span<const float> logits, float max, const SamplingParams& p) {
  const double inverse = InverseTemperature(p);
  TopK(logits, static_cast<size_t>(p.top_k), candidates_);
  double total = 0;
  size_t kept = 0;
  for (; kept < candidates_.size(); ++kept) {
    const double weight = Weight(candidates_[kept].logit, max, inverse);
    if (weight == 0.0 || weight < static_cast<double>(p.min_p)) break;
    total += weight;
  }
  candidates_.resize(kept);
  return total;
}

// Tokens whose weight is so small that all of them together cannot reach past top_p are left out
// before sorting: the set that top_p keeps is the same (the factor 1/2 stands far above rounding).
double Sampler::KeepLikely(std::span<const float> logits, float max, const SamplingParams& p) {
  const double inverse = InverseTemperature(p);
  weights_.resize(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = Weight(logits[i], max, inverse);
    weights_[i] = weight < static_cast<double>(p.min_p) ? 0.0 : weight;
    total += weights_[i];
  }
  const double negligible =
      0.5 * (1.0 - static_cast<double>(p.top_p)) * total / static_cast<double>(logits.size());
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] > 0.0 && weights_[i] >= negligible)
      candidates_.push_back({logits[i], static_cast<TokenId>(i)});
  }
  return total;
}

// Puts the best candidates in order until their weights reach `wanted`; how many that took. Sorts
// ever larger heads: the answer is the same as with a full sort, the usual cost is that of a few
// dozen.
size_t Sampler::SortUntilMass(double inverse, float max, double wanted) {
  size_t sorted = 0;
  double sum = 0;
  for (size_t head = 64; sorted < candidates_.size(); head *= 4) {
    const size_t end = std::min(head, candidates_.size());
    const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
    const auto middle = candidates_.begin() + static_cast<ptrdiff_t>(end);
    if (end < candidates_.size())
      std::nth_element(begin, middle - 1, candidates_.end(), BetterToken);
    std::sort(begin, middle, BetterToken);
    for (; sorted < end; ++sorted) {
      sum += Weight(candidates_[sorted].logit, max, inverse);
      if (sum >= wanted) return sorted + 1;
    }
  }
  return candidates_.size();
}

}  // namespace kvasir
