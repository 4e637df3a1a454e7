// KL divergence of next-token distributions, in nats: D = sum over the vocabulary of
// p * (log p - log q), p the base's softmax and q the candidate's.
//
// Computed in double from the float logits a (base) and b (candidate) as
//   D = sum p_i (a_i - b_i) - (log sum exp a - log sum exp b),
// summed in ascending order of the vocabulary: the same on every thread count, and 0 to the last
// bit for equal logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/parallel.h"

namespace kvasir {

struct Divergence {
  double kld = 0;         // >= 0; meaningless unless finite
  bool same_top = false;  // the likeliest token (of equals the first) is the same
  bool finite = false;    // all logits of the candidate were finite
};

// Index of the largest; of equals the first; NaN never wins; 0 if nothing is greater than
// -infinity.
int32_t Likeliest(std::span<const float> logits);

// Compares rows of logits in groups: the base's first, then those of one candidate after the other.
class DivergenceMeter {
 public:
  // Holds 16 bytes a row and token of the vocabulary.
  DivergenceMeter(size_t rows, size_t vocab, Executor& executor);
  // How many rows a meter should hold at once: about 64 MiB, 16 to 128 rows.
  static int RowsFor(size_t vocab);

  void SetBase(size_t row, std::span<const float> logits);
  // Call once the rows [0, rows) are set. False if one of them is not finite.
  bool FinishBase(size_t rows);
  void SetCandidate(size_t row, std::span<const float> logits);
  // One for each row of FinishBase; valid until the next call.
  std::span<const Divergence> Compare();
  int32_t base_top(size_t row) const { return base_[row].top; }

 private:
  struct BaseRow {
    double log_sum = 0;
    int32_t top = 0;
    bool finite = false;
  };
  std::span<float> Row(std::vector<float>& values, size_t row) const;
  BaseRow Finish(size_t row);
  Divergence CompareRow(size_t row);

  size_t vocab_;
  size_t rows_ = 0;  // of the current group
  Executor& executor_;
  std::vector<float> base_logits_, candidate_logits_;  // [rows][vocab]
  std::vector<double> p_;                              // [rows][vocab]
  std::vector<BaseRow> base_;
  std::vector<Divergence> result_;
};

}  // namespace kvasir
