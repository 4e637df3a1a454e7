#include "engine/top_k.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "kernels/row_weights.h"

namespace kvasir {

void TopK(std::span<const float> row, std::span<const float> maxima, size_t k,
          std::vector<float>& scratch, std::vector<ScoredToken>& out) {
  out.clear();
  k = std::min(k, row.size());
  if (k == 0) return;
  // k blocks have a maximum of at least `least`: so do k tokens, and no worse one is among the k.
  float least = -std::numeric_limits<float>::infinity();
  if (k < maxima.size()) {
    scratch.assign(maxima.begin(), maxima.end());
    const auto kth = scratch.begin() + static_cast<ptrdiff_t>(k) - 1;
    std::nth_element(scratch.begin(), kth, scratch.end(), std::greater<>());
    least = *kth;
  }
  for (size_t b = 0; b < maxima.size(); ++b) {
    if (maxima[b] < least) continue;
    const size_t end = std::min(row.size(), (b + 1) * kRowBlock);
    for (size_t i = b * kRowBlock; i < end; ++i) {
      if (row[i] >= least) out.push_back({row[i], static_cast<TokenId>(i)});
    }
  }
  const auto end = out.begin() + static_cast<ptrdiff_t>(k);
  if (out.size() > k) {
    std::nth_element(out.begin(), end - 1, out.end(), BetterToken);
    out.erase(end, out.end());
  }
  std::sort(out.begin(), out.end(), BetterToken);
}

void TopK(std::span<const float> row, size_t k, std::vector<ScoredToken>& out) {
  std::vector<float> maxima(RowBlocks(row.size()));
  RowMaxima(row, maxima);
  std::vector<float> scratch;
  TopK(row, maxima, k, scratch, out);
}

}  // namespace kvasir
