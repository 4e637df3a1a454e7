// CostModel: what a step costs on this machine, learnt from what steps cost. Given numbers, no
// clock. Not thread-safe.
//
//   run_ns = D(decode rows) + P * prefill rows
// D: a moving mean per power of two of decode rows, from steps without prefill (and lowered when a
// mixed step was faster). P: a moving mean of (run_ns - D) / prefill rows that goes up in big steps
// and down in small ones, since rows deeper in a prompt cost more and being late is what hurts. A
// wrong D is made good by P: with n = (target - D) / P rows a step, n settles where run_ns is the
// target, whatever D is below it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvasir {

// One step as the engine measured it.
struct StepCost {
  int32_t prefill_rows = 0;
  int32_t decode_rows = 0;
  int64_t run_ns = 0;
  int32_t moved_blocks = 0;  // ScheduledBatch::moves
  int64_t move_ns = 0;
};

class CostModel {
 public:
  void Observe(const StepCost& step);

  double decode_ns(int32_t rows) const;  // D; 0: nothing known
  double prefill_ns_per_row() const { return prefill_ns_; }
  double swap_ns_per_block() const { return move_ns_; }
  // Prefill rows that fit beside so many decode rows into target_ns, at least `floor`; `floor` if
  // nothing is known.
  int32_t PrefillRows(int32_t decode_rows, int64_t target_ns, int32_t floor) const;

 private:
  static constexpr size_t kBuckets = 32;
  std::array<double, kBuckets> decode_ns_{};  // by bit width of the rows; 0: not seen
  double prefill_ns_ = 0;
  double move_ns_ = 0;
};

}  // namespace kvasir
