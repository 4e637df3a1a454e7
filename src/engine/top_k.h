// The k best tokens of a row. Order everywhere: larger logit first, then lower token id.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/ids.h"

namespace kvasir {

struct ScoredToken {
  float logit = 0;
  TokenId token = -1;
};

inline bool BetterToken(const ScoredToken& a, const ScoredToken& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// min(k, row.size()) tokens, best first. maxima: of the row's blocks (RowMaxima of
// kernels/row_weights.h); only blocks that can hold one of the k are looked into. `out` is
// overwritten; `scratch` too.
void TopK(std::span<const float> row, std::span<const float> maxima, size_t k,
          std::vector<float>& scratch, std::vector<ScoredToken>& out);

// Finds the maxima itself.
void TopK(std::span<const float> row, size_t k, std::vector<ScoredToken>& out);

}  // namespace kvasir
