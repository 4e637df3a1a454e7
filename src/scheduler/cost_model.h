// CostModel: what a step costs on this machine, learnt from what steps cost. Given numbers, no
// clock. Not thread-safe.
//
//   run_ns = D(decode rows) + P * sum over prefill rows of (1 + S * depth)
// depth: a row's position. S: the slope of a line through (mean depth of a step's prefill rows,
// time a row), steps of about the last hundred, weighed by their rows; 0 until depths differ enough
// to see one. D: a moving mean per power of two of decode rows, from steps without prefill (and
// lowered when a mixed step was faster). P: a moving mean of (run_ns - D) / that sum that goes up
// in big steps and down in small ones, since being late is what hurts. A wrong D is made good by P:
// with n = (aim - D) / P rows a step, n settles where run_ns is the aim, whatever D is below it.
//
// The aim is the target, or less: machines have moments in which a step takes tens of milliseconds
// longer than foretold, however short it is. L is the most that any step of late was longer, at
// most 0.7 of the target (more would change nothing, and one long pause of the process would keep
// chunks short for minutes), falling to 1 / e over 30 s of steps. The aim is 1.2 times the target
// less L, between half of the target and all of it. L cannot tell a moment from a cost that is not
// learnt yet (a slope, a number of decode rows).
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
  double prefill_depth = 0;  // mean position of the prefill rows
};

class CostModel {
 public:
  explicit CostModel(int64_t target_ns = 0) : target_ns_(static_cast<double>(target_ns)) {}

  void Observe(const StepCost& step);

  double decode_ns(int32_t rows) const;                      // D; 0: nothing known
  double prefill_ns_per_row() const { return prefill_ns_; }  // P: at depth 0
  double depth_slope() const { return slope_; }              // S
  // Of rows [first, first + rows) of one sequence, in rows at depth 0, and in time.
  double Units(int32_t first, int32_t rows) const;
  double prefill_ns(int32_t first, int32_t rows) const { return prefill_ns_ * Units(first, rows); }
  // Most rows from `first` on that cost no more than so many rows at depth 0.
  int32_t RowsIn(double units, int32_t first) const;
  double swap_ns_per_block() const { return move_ns_; }
  double late_ns() const { return late_ns_; }  // L
  // Prefill rows at depth 0 that fit beside so many decode rows into the target, at least `floor`;
  // `floor` if nothing is known.
  int32_t PrefillRows(int32_t decode_rows, int32_t floor) const;

 private:
  void LearnDepth(double depth, double rows, double row_ns);
  void LearnLate(const StepCost& step);
  double RowUnits(double depth) const { return 1 + slope_ * depth; }

  static constexpr size_t kBuckets = 32;
  std::array<double, kBuckets> decode_ns_{};  // by bit width of the rows; 0: not seen
  double prefill_ns_ = 0;
  double slope_ = 0;
  // Of the line: weights, and weighed depth, depth^2, time, depth * time.
  double w_ = 0, wd_ = 0, wdd_ = 0, wt_ = 0, wdt_ = 0;
  double move_ns_ = 0;
  double late_ns_ = 0;
  double target_ns_;  // 0: none, and nothing is late
};

}  // namespace kvasir
