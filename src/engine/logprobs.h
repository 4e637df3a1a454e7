// Log-probabilities of one position, from the raw logits.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "engine/request.h"
#include "engine/sampler.h"

namespace kvasir {

// logits: finite. The chosen token's log-probability and rank, and the `top` best tokens, best
// first. The sum over the vocabulary is that of kernels/row_weights.h by blocks, and double over
// these in order of token id: the same on every machine. Ties are ranked by token id, lower first.
PositionLogprobs ComputeLogprobs(std::span<const float> logits, TokenId chosen, int32_t top,
                                 RowScratch& scratch);
PositionLogprobs ComputeLogprobs(std::span<const float> logits, TokenId chosen, int32_t top);

}  // namespace kvasir
