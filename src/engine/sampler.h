// Sampler: from one row of logits to one token. A pure function of the row, the history, the
// parameters, the seed, the choice and the number of tokens generated so far; so neighbours,
// chunking and preemption cannot change a draw.
//
// Order of operations (vLLM's):
//   masks (allowed_tokens, bad_words, min_tokens) -> logit_bias -> repetition penalty -> presence
//   and frequency penalties
//   -> greedy choice, or: temperature -> min_p -> top_k -> top_p -> draw.
// Ties are ordered by token id, lower first, everywhere. top_k keeps exactly k. top_p keeps the
// smallest set of best tokens that reaches it, at least one, measured on what min_p and top_k left.
//
// Weights are floats (kernels/row_weights.h), sums over them doubles in an order that the row's
// length alone decides: a draw is the same on every instruction set.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/request.h"
#include "engine/top_k.h"

namespace kvasir {

struct SampleInput {
  const SamplingParams* params = nullptr;
  std::span<const TokenId> tokens;  // prompt, then generated
  int32_t prompt_tokens = 0;
  uint64_t seed = 0;  // params->seed, or what the engine drew for the request
  int32_t choice = 0;
};

// Scratch for one row; grows to the vocabulary and stays.
struct RowScratch {
  std::vector<float> maxima;   // of blocks
  std::vector<float> weights;  // of tokens
  std::vector<float> sums;     // of the weights of blocks
  std::vector<float> least;    // TopK's
  std::vector<ScoredToken> best;

  // Maxima of the row's blocks; false if it is not finite.
  bool Look(std::span<const float> row);
  // The first of the largest values of the row that Look saw last.
  TokenId First(std::span<const float> row) const;
};

// Holds scratch of about 12 bytes per vocabulary entry. One thread at a time.
class Sampler {
 public:
  explicit Sampler(int32_t vocab);

  // logits: vocab floats, left as they are. Fails (kInternal) if they are not all finite, and
  // (kInvalidArgument) if masks leave no token.
  Result<TokenId> Sample(std::span<const float> logits, const SampleInput& input);

 private:
  bool Adjust(std::span<const float> logits, const SampleInput& input);
  void Mask(std::span<const float> logits, const SampleInput& input);
  void Penalise(const SampleInput& input);
  TokenId DrawFromAll(std::span<const float> logits, float max, const SamplingParams& p,
                      double uniform);
  TokenId DrawFromBest(std::span<const float> logits, float max, const SamplingParams& p,
                       double uniform);
  double KeepTopK(std::span<const float> logits, float max, const SamplingParams& p);
  double WeighAll(std::span<const float> logits, float max, const SamplingParams& p);
  size_t KeepFew(std::span<const float> logits, float max, const SamplingParams& p, double wanted);
  TokenId DrawFromFew(size_t kept, float max, const SamplingParams& p, double uniform) const;
  TokenId DrawFromMany(std::span<const float> logits, float max, const SamplingParams& p,
                       double wanted, double uniform);
  size_t SortUntilMass(float scale, float max, double wanted);

  int32_t vocab_;
  std::vector<float> adjusted_;
  std::vector<int32_t> counts_;  // zero between calls
  std::vector<double> buckets_;
  RowScratch row_;
};

}  // namespace kvasir
