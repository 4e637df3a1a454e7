#include "engine/top_k.h"

#include <algorithm>

namespace kvasir {

void TopK(std::span<const float> row, size_t k, std::vector<ScoredToken>& out) {
  constexpr size_t kHeapLimit = 256;
  out.clear();
  k = std::min(k, row.size());
  if (k == 0) return;
  if (k > kHeapLimit) {
    for (size_t i = 0; i < row.size(); ++i) out.push_back({row[i], static_cast<TokenId>(i)});
    const auto end = out.begin() + static_cast<ptrdiff_t>(k);
    std::nth_element(out.begin(), end - 1, out.end(), BetterToken);
    out.erase(end, out.end());
    std::sort(out.begin(), out.end(), BetterToken);
    return;
  }
  // The front of the heap is the worst of those kept. Ids ascend, so an equal logit never displaces
  // it.
  for (size_t i = 0; i < k; ++i) out.push_back({row[i], static_cast<TokenId>(i)});
  std::make_heap(out.begin(), out.end(), BetterToken);
  for (size_t i = k; i < row.size(); ++i) {
    if (!(row[i] > out.front().logit)) continue;
    std::pop_heap(out.begin(), out.end(), BetterToken);
    out.back() = {row[i], static_cast<TokenId>(i)};
    std::push_heap(out.begin(), out.end(), BetterToken);
  }
  std::sort_heap(out.begin(), out.end(), BetterToken);
}

}  // namespace kvasir
