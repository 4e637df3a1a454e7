// Which blocks of activations hurt most when they are rounded to eight bits, so that
// Precision::kDefault gives them a second term (docs/calibration.md, "Two-term blocks").
//
// For an input, score(block) = Σ over its 32 columns c of
// mean((x_c − rounded x_c)²) · Σ over output rows of w_c²: what the block's rounding adds to the
// square of the outputs' error, columns taken as independent. The largest floor(share · blocks +
// 1/2) of each input are chosen, with the share of its site; of equals the lower index. Activations
// come from text the model writes itself (own_text.h), weight norms from at most 1,024 evenly
// spaced rows of each matrix.
#pragma once

#include <array>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

// Of all multiply-adds of a row that samples, this share is done twice at the most.
inline constexpr double kTwoTermWork = 0.12;
// The share of blocks by site. Second terms are worth most before attention and at the head, least
// before the attention's output projection (docs/calibration.md has the measurements). All shrink
// by one factor where they would ask for more than kTwoTermWork of this model.
std::array<double, kInputSites> TwoTermShares(const Model& model);

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
  explicit RoundingLoss(int layers) : sums_(InputCount(static_cast<size_t>(layers))) {}
  void OnInput(int layer, InputSite site, const float* x, size_t ldx, int rows,
               int columns) override;
  // [InputIndex][column]; empty where no input was seen.
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
