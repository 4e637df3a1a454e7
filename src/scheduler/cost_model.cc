#include "scheduler/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvasir {
namespace {

constexpr double kSlow = 0.25, kFast = 0.5;
constexpr double kRemember = 0.98;   // of the line's sums, from step to step
constexpr double kDepthSpread = 64;  // standard deviation of depths from which a line is believed
constexpr double kSlopeMost = 1.0 / 64;
constexpr double kForgetNs = 30e9;  // of steps in which L falls to 1 / e
constexpr double kLatestEnd = 1.2;  // of the target, for a step that is late by L
constexpr double kLeastAim = 0.5;   // of the target

size_t BucketOf(int32_t rows) {
  return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(rows, 0))));
}

double Blend(double mean, double value, double weight) {
  return mean == 0 ? value : mean + (value - mean) * weight;
}

}  // namespace

void CostModel::Observe(const StepCost& step) {
  if (step.moved_blocks > 0) {
    move_ns_ = Blend(move_ns_, static_cast<double>(step.move_ns) / step.moved_blocks, kSlow);
  }
  if (step.run_ns <= 0) return;
  LearnLate(step);
  const auto run_ns = static_cast<double>(step.run_ns);
  if (step.prefill_rows <= 0) {
    if (step.decode_rows <= 0) return;
    double& bucket = decode_ns_[BucketOf(step.decode_rows)];
    bucket = Blend(bucket, run_ns, run_ns > bucket ? kFast : kSlow);
    return;
  }
  double base = decode_ns(step.decode_rows);
  if (base > run_ns) {
    double& bucket = decode_ns_[BucketOf(step.decode_rows)];
    if (bucket > run_ns) bucket = run_ns;
    base = run_ns;
  }
  // Without any decode step seen, a decode row counts like a prefill row.
  const double rows = base > 0 ? step.prefill_rows : step.prefill_rows + step.decode_rows;
  const double row_ns = (run_ns - base) / rows;
  LearnDepth(step.prefill_depth, rows, row_ns);
  const double unit_ns = row_ns / RowUnits(step.prefill_depth);
  prefill_ns_ = Blend(prefill_ns_, unit_ns, unit_ns > prefill_ns_ ? kFast : kSlow);
}

// Against what was known before the step. Where one of the two costs is not, nothing was foretold.
void CostModel::LearnLate(const StepCost& step) {
  const auto run_ns = static_cast<double>(step.run_ns);
  late_ns_ *= std::exp(-run_ns / kForgetNs);
  const double decode = decode_ns(step.decode_rows);
  if (step.decode_rows > 0 && decode == 0) return;
  if (step.prefill_rows > 0 && prefill_ns_ == 0) return;
  const double prefill = prefill_ns_ * step.prefill_rows * RowUnits(step.prefill_depth);
  const double most = (kLatestEnd - kLeastAim) * target_ns_;
  late_ns_ = std::max(late_ns_, std::min(run_ns - decode - prefill, most));
}

void CostModel::LearnDepth(double depth, double rows, double row_ns) {
  for (double* sum : {&w_, &wd_, &wdd_, &wt_, &wdt_}) *sum *= kRemember;
  w_ += rows;
  wd_ += rows * depth;
  wdd_ += rows * depth * depth;
  wt_ += rows * row_ns;
  wdt_ += rows * depth * row_ns;
  const double spread = wdd_ / w_ - wd_ / w_ * (wd_ / w_);
  if (spread < kDepthSpread * kDepthSpread) return;
  const double per_depth = (wdt_ / w_ - wd_ / w_ * (wt_ / w_)) / spread;
  const double at_zero = wt_ / w_ - per_depth * (wd_ / w_);
  if (per_depth <= 0) {
    slope_ = 0;
  } else {
    slope_ = at_zero > 0 ? std::min(per_depth / at_zero, kSlopeMost) : kSlopeMost;
  }
}

double CostModel::Units(int32_t first, int32_t rows) const {
  return rows * RowUnits(first + 0.5 * (rows - 1));
}

int32_t CostModel::RowsIn(double units, int32_t first) const {
  if (units <= 0) return 0;
  double rows = units;
  if (slope_ > 0) {  // n (1 + S (first + (n - 1) / 2)) = units
    const double half = slope_ / 2;
    const double linear = 1 + slope_ * first - half;
    rows = (std::sqrt(linear * linear + 4 * half * units) - linear) / (2 * half);
  }
  return static_cast<int32_t>(std::min(rows + 1e-6, 1e9));
}

double CostModel::decode_ns(int32_t rows) const {
  if (rows <= 0) return 0;
  const size_t at = BucketOf(rows);
  size_t below = at, above = at;
  while (below > 0 && decode_ns_[below] == 0) --below;
  while (above + 1 < kBuckets && decode_ns_[above] == 0) ++above;
  const double low = decode_ns_[below], high = decode_ns_[above];
  if (below == above || high == 0) return low;
  if (low == 0) return high;
  return low + (high - low) * static_cast<double>(at - below) / static_cast<double>(above - below);
}

int32_t CostModel::PrefillRows(int32_t decode_rows, int32_t floor) const {
  if (prefill_ns_ <= 0) return floor;
  double base = decode_ns(decode_rows);
  if (base == 0) base = prefill_ns_ * decode_rows;
  const double aim =
      std::clamp(target_ns_ * kLatestEnd - late_ns_, target_ns_ * kLeastAim, target_ns_);
  const double rows = (aim - base) / prefill_ns_;
  return static_cast<int32_t>(std::clamp(rows, static_cast<double>(floor), 1e9));
}

}  // namespace kvasir
