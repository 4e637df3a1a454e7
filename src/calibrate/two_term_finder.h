// Which blocks of activations hurt most when they are rounded to eight bits, so that
// Precision::kDefault gives them a second term (docs/calibration.md, "Two-term blocks").
//
// For the input of a layer's products, score(block) = Σ over its 32 columns c of
// mean((x_c − rounded x_c)²) · Σ over output rows of w_c²: what the block's rounding adds to the
// square of the outputs' error, columns taken as independent. The largest floor(share · blocks +
// 1/2) of each input are chosen; of equals the lower index. Activations come from text the model
// writes itself (own_text.h), weight norms from at most 1,024 evenly spaced rows of each matrix.
#pragma once

#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

inline constexpr double kTwoTermShare = 0.12;  // of the blocks of an input

namespace internal {
class RoundingLoss;
}

// A function of the model alone: the same on every machine and thread count. Takes about as long
// as decoding 64 tokens for 16 users.
Result<TwoTermBlocks> FindTwoTermBlocks(const Model& model, Executor& executor);
// The second half of it, for who has let a RoundingLoss observe already.
TwoTermBlocks ChooseTwoTermBlocks(const Model& model, const internal::RoundingLoss& loss,
                                  Executor& executor);

namespace internal {

// Sums the squares of what rounding loses, column by column.
class RoundingLoss final : public InputObserver {
 public:
  explicit RoundingLoss(int layers) : sums_(static_cast<size_t>(layers * kInputSites)) {}
  void OnInput(int layer, InputSite site, const float* x, size_t ldx, int rows,
               int columns) override;
  // [layer * kInputSites + site][column]; empty where no input was seen.
  const std::vector<std::vector<double>>& sums() const { return sums_; }

 private:
  std::vector<std::vector<double>> sums_;
};

// The best `share` of blocks by loss[c] · norm[c]; one byte per block of 32 (the last may be
// shorter).
std::vector<uint8_t> ChooseBlocks(std::span<const double> loss, std::span<const double> norm,
                                  double share);

}  // namespace internal
}  // namespace kvasir
