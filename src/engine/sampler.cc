#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/hash.h"
#include "kernels/row_weights.h"

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

// What differences of logits are multiplied with. At most the largest float: 0 times it is 0.
float Scale(const SamplingParams& params) {
  return static_cast<float>(
      std::min(1.0 / static_cast<double>(params.temperature), static_cast<double>(kLargest)));
}

// The best so many are tried first where top_p has to sort: usual rows need a few dozen.
constexpr size_t kHeads[] = {64, 256};

// Weights, 0 to 1, by exponent and four bits more: within a bucket they differ by 6 % at most.
constexpr size_t kBuckets = 2048;
size_t BucketOf(float weight) {
  return std::bit_cast<uint32_t>(weight) >> 19;
}

}  // namespace

bool RowScratch::Look(std::span<const float> row) {
  maxima.resize(RowBlocks(row.size()));
  return RowMaxima(row, maxima);
}

TokenId RowScratch::First(std::span<const float> row) const {
  const auto block = std::max_element(maxima.begin(), maxima.end());
  const auto from = row.begin() + (block - maxima.begin()) * static_cast<ptrdiff_t>(kRowBlock);
  return static_cast<TokenId>(std::find(from, row.end(), *block) - row.begin());
}

Sampler::Sampler(int32_t vocab) : vocab_(vocab) {
  KVASIR_CHECK(vocab > 0);
  counts_.resize(static_cast<size_t>(vocab), 0);
}

Result<TokenId> Sampler::Sample(std::span<const float> logits, const SampleInput& input) {
  KVASIR_CHECK(static_cast<int32_t>(logits.size()) == vocab_);
  const SamplingParams& params = *input.params;
  if (!row_.Look(logits)) {
    return Internal("logits are not finite at position " + std::to_string(input.tokens.size()));
  }
  std::span<const float> row = logits;
  if (Adjust(logits, input)) {
    row = adjusted_;
    row_.Look(row);
  }
  const TokenId best = row_.First(row);
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
  return restricted ? DrawFromBest(row, max, params, uniform)
                    : DrawFromAll(row, max, params, uniform);
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

// Weights of all tokens and their sum, min_p applied.
double Sampler::WeighAll(std::span<const float> logits, float max, const SamplingParams& p) {
  row_.weights.resize(logits.size());
  row_.sums.resize(RowBlocks(logits.size()));
  RowWeights(logits, max, Scale(p), p.min_p, row_.weights, row_.sums);
  double total = 0;
  for (const float sum : row_.sums) total += static_cast<double>(sum);
  return total;
}

// No top_k, no top_p: along the sums of blocks, then inside one, in order of token id.
TokenId Sampler::DrawFromAll(std::span<const float> logits, float max, const SamplingParams& p,
                             double uniform) {
  const double target = uniform * WeighAll(logits, max, p);
  double sum = 0;
  size_t block = 0;
  for (size_t b = 0; b < row_.sums.size(); ++b) {
    if (row_.sums[b] == 0.0F) continue;
    block = b;
    if (sum + static_cast<double>(row_.sums[b]) > target) break;
    sum += static_cast<double>(row_.sums[b]);
  }
  // Where the sum of a block was rounded up, or all of them, the last token with a weight is taken.
  size_t last = block * kRowBlock;
  const size_t end = std::min(logits.size(), (block + 1) * kRowBlock);
  for (size_t i = block * kRowBlock; i < end; ++i) {
    if (row_.weights[i] == 0.0F) continue;
    last = i;
    sum += static_cast<double>(row_.weights[i]);
    if (sum > target) break;
  }
  return static_cast<TokenId>(last);
}

TokenId Sampler::DrawFromBest(std::span<const float> logits, float max, const SamplingParams& p,
                              double uniform) {
  size_t kept = 0;
  if (p.top_k > 0) {
    const double total = KeepTopK(logits, max, p);
    kept = SortUntilMass(Scale(p), max, static_cast<double>(p.top_p) * total);
  } else {
    const double total = WeighAll(logits, max, p);
    const double wanted = static_cast<double>(p.top_p) * total;
    kept = KeepFew(logits, max, p, wanted);
    if (kept == 0) return DrawFromMany(logits, max, p, wanted, uniform);
  }
  return DrawFromFew(kept, max, p, uniform);
}

// Of the first `kept` of row_.best, best first.
TokenId Sampler::DrawFromFew(size_t kept, float max, const SamplingParams& p,
                             double uniform) const {
  const float scale = Scale(p);
  double mass = 0;
  for (size_t i = 0; i < kept; ++i)
    mass += static_cast<double>(RowWeight(row_.best[i].logit, max, scale));
  const double target = uniform * mass;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += static_cast<double>(RowWeight(row_.best[i].logit, max, scale));
    if (sum > target) return row_.best[i].token;
  }
  return row_.best[kept - 1].token;
}

// row_.best: what top_k and then min_p leave. Returns the sum of the weights that top_p is measured
// on.
double Sampler::KeepTopK(std::span<const float> logits, float max, const SamplingParams& p) {
  const float scale = Scale(p);
  std::vector<ScoredToken>& best = row_.best;
  TopK(logits, row_.maxima, static_cast<size_t>(p.top_k), row_.least, best);
  double total = 0;
  size_t kept = 0;
  for (; kept < best.size(); ++kept) {
    const float weight = RowWeight(best[kept].logit, max, scale);
    if (weight == 0.0F || weight < p.min_p) break;
    total += static_cast<double>(weight);
  }
  best.resize(kept);
  return total;
}

// row_.best: the best few, in order. Returns how many of them top_p keeps; 0: more than these.
size_t Sampler::KeepFew(std::span<const float> logits, float max, const SamplingParams& p,
                        double wanted) {
  const float scale = Scale(p);
  for (const size_t head : kHeads) {
    TopK(logits, row_.maxima, head, row_.least, row_.best);
    double sum = 0;
    for (size_t i = 0; i < row_.best.size(); ++i) {
      const float weight = RowWeight(row_.best[i].logit, max, scale);
      if (weight == 0.0F || weight < p.min_p) return i;  // rounding: no more is left
      sum += static_cast<double>(weight);
      if (sum >= wanted) return i + 1;
    }
  }
  return 0;
}

// A flat row: top_p keeps hundreds or thousands. Weights are added up in buckets of about equal
// weight, from the largest down; only the bucket in which the sum reaches `wanted` is put in order.
// Then a walk over what is kept, in order of token id.
TokenId Sampler::DrawFromMany(std::span<const float> logits, float max, const SamplingParams& p,
                              double wanted, double uniform) {
  buckets_.assign(kBuckets, 0.0);
  for (size_t i = 0; i < logits.size(); ++i)
    buckets_[BucketOf(row_.weights[i])] += static_cast<double>(row_.weights[i]);
  double above = 0;
  size_t at = kBuckets - 1;
  while (at > 0 && above + buckets_[at] < wanted) above += buckets_[at--];
  std::vector<ScoredToken>& best = row_.best;
  best.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (row_.weights[i] > 0.0F && BucketOf(row_.weights[i]) == at)
      best.push_back({logits[i], static_cast<TokenId>(i)});
  }
  const size_t kept = best.empty() ? 0 : SortUntilMass(Scale(p), max, wanted - above);
  for (size_t i = 0; i < kept; ++i)
    above += static_cast<double>(RowWeight(best[i].logit, max, Scale(p)));
  // By rounding all may be too little: then all are kept.
  const ScoredToken cut = kept > 0 ? best[kept - 1] : ScoredToken{kMasked, INT32_MAX};
  const double target = uniform * above;
  double sum = 0;
  size_t last = 0;
  for (size_t b = 0; b < row_.maxima.size(); ++b) {
    if (row_.maxima[b] < cut.logit) continue;
    const size_t end = std::min(logits.size(), (b + 1) * kRowBlock);
    for (size_t i = b * kRowBlock; i < end; ++i) {
      const ScoredToken one = {logits[i], static_cast<TokenId>(i)};
      if (row_.weights[i] == 0.0F || BetterToken(cut, one)) continue;
      last = i;
      sum += static_cast<double>(row_.weights[i]);
      if (sum > target) return one.token;
    }
  }
  return static_cast<TokenId>(last);
}

// Puts the best candidates in order until their weights reach `wanted`; how many that took. Sorts
// ever larger heads: the answer is the same as with a full sort, the usual cost is that of a few
// dozen.
size_t Sampler::SortUntilMass(float scale, float max, double wanted) {
  std::vector<ScoredToken>& best = row_.best;
  size_t sorted = 0;
  double sum = 0;
  for (size_t head = 64; sorted < best.size(); head *= 4) {
    const size_t end = std::min(head, best.size());
    const auto begin = best.begin() + static_cast<ptrdiff_t>(sorted);
    const auto middle = best.begin() + static_cast<ptrdiff_t>(end);
    if (end < best.size()) std::nth_element(begin, middle - 1, best.end(), BetterToken);
    std::sort(begin, middle, BetterToken);
    for (; sorted < end; ++sorted) {
      sum += static_cast<double>(RowWeight(best[sorted].logit, max, scale));
      if (sum >= wanted) return sorted + 1;
    }
  }
  return best.size();
}

}  // namespace kvasir
