// Constants that make keys easier to quantise, exactly: K' = (K − centre) / balance and q' = q ·
// balance, both after RoPE, give the scores of q·K up to a number that is the same for all tokens,
// which softmax does not see. Per layer, KV head and channel, a constant of the model.
//
//   centre  = mean of K
//   balance = sqrt(deviation of K / root mean square of q), q over the query heads that read it
//
// both over positions 0 … P − 1 alike, P = min(context, 8,192). Moments are taken before RoPE, from
// text the model writes itself, and turned through the angles of all P positions in closed form, so
// a short text stands for a long one: for a pair (x, y) turned by φ, E[x'²] = E[cos²φ]·E[x²] −
// 2·E[cosφ sinφ]·E[xy] + E[sin²φ]·E[y²], and likewise the rest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

inline constexpr int kConditioningPositions = 8192;
// A channel's balance stays within this factor of its head's geometric mean, so that a channel that
// was dead in the text cannot blow up another's rounding later.
inline constexpr double kBalanceReach = 16.0;

namespace internal {

// Sums of x, x², and of the products of neighbours, of K and q before RoPE.
class KeyMoments final : public InputObserver {
 public:
  explicit KeyMoments(const ModelConfig& config);
  void OnInput(int, InputSite, const float*, size_t, int, int) override {}
  void OnQueryKey(int layer, const float* q, const float* k, size_t ld, int rows) override;

  // One layer; index as in KeyConditioning. `product`: of channels 2i and 2i + 1, stored at 2i.
  struct Layer {
    int64_t rows = 0;
    std::vector<double> k_sum, k_square, k_product, q_square, q_product;
  };
  const std::vector<Layer>& layers() const { return layers_; }

 private:
  int heads_, kv_heads_, k_dim_;
  std::vector<Layer> layers_;
};

KeyConditioning FitKeys(const ModelConfig& config, const KeyMoments& moments);

}  // namespace internal
}  // namespace kvasir
