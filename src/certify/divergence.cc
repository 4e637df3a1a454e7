#include "certify/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace kvasir {
namespace {

bool AllFinite(std::span<const float> logits) {
  return std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
}

// log sum exp; p, if given, receives exp(x - result).
double LogSumExp(std::span<const float> logits, float top, double* p) {
  const auto high = static_cast<double>(top);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double e = std::exp(static_cast<double>(logits[i]) - high);
    sum += e;
    if (p != nullptr) p[i] = e;
  }
  if (p != nullptr) {
    for (size_t i = 0; i < logits.size(); ++i) p[i] /= sum;
  }
  return high + std::log(sum);
}

}  // namespace

int32_t Likeliest(std::span<const float> logits) {
  int32_t best = 0;
  float top = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > top)) continue;
    top = logits[i];
    best = static_cast<int32_t>(i);
  }
  return best;
}

DivergenceMeter::DivergenceMeter(size_t rows, size_t vocab, Executor& executor)
    : vocab_(vocab),
      executor_(executor),
      base_logits_(rows * vocab),
      candidate_logits_(rows * vocab),
      p_(rows * vocab),
      base_(rows),
      result_(rows) {}

int DivergenceMeter::RowsFor(size_t vocab) {
  constexpr size_t kBytes = size_t{64} << 20;
  const size_t rows = kBytes / (16 * vocab) / 16 * 16;
  return static_cast<int>(std::clamp<size_t>(rows, 16, 128));
}

std::span<float> DivergenceMeter::Row(std::vector<float>& values, size_t row) const {
  KVASIR_CHECK(row < base_.size());
  return std::span(values).subspan(row * vocab_, vocab_);
}

void DivergenceMeter::SetBase(size_t row, std::span<const float> logits) {
  KVASIR_CHECK(logits.size() == vocab_);
  std::copy(logits.begin(), logits.end(), Row(base_logits_, row).begin());
}

void DivergenceMeter::SetCandidate(size_t row, std::span<const float> logits) {
  KVASIR_CHECK(logits.size() == vocab_);
  std::copy(logits.begin(), logits.end(), Row(candidate_logits_, row).begin());
}

DivergenceMeter::BaseRow DivergenceMeter::Finish(size_t row) {
  const std::span<const float> logits = Row(base_logits_, row);
  BaseRow result;
  result.finite = AllFinite(logits);
  if (!result.finite) return result;
  result.top = Likeliest(logits);
  result.log_sum =
      LogSumExp(logits, logits[static_cast<size_t>(result.top)], p_.data() + row * vocab_);
  return result;
}

bool DivergenceMeter::FinishBase(size_t rows) {
  KVASIR_CHECK(rows <= base_.size());
  rows_ = rows;
  executor_.ParallelFor(rows, [&](size_t row, int) { base_[row] = Finish(row); });
  return std::all_of(base_.begin(), base_.begin() + static_cast<std::ptrdiff_t>(rows),
                     [](const BaseRow& row) { return row.finite; });
}

Divergence DivergenceMeter::CompareRow(size_t row) {
  const std::span<const float> a = Row(base_logits_, row);
  const std::span<const float> b = Row(candidate_logits_, row);
  Divergence result;
  result.finite = AllFinite(b);
  if (!result.finite) return result;
  const int32_t top = Likeliest(b);
  result.same_top = top == base_[row].top;
  const double log_sum = LogSumExp(b, b[static_cast<size_t>(top)], nullptr);
  const double* p = p_.data() + row * vocab_;
  double sum = 0;
  for (size_t i = 0; i < vocab_; ++i) {
    sum += p[i] * (static_cast<double>(a[i]) - static_cast<double>(b[i]));
  }
  // Rounding may leave a trace below zero.
  result.kld = std::max(0.0, sum - (base_[row].log_sum - log_sum));
  return result;
}

std::span<const Divergence> DivergenceMeter::Compare() {
  executor_.ParallelFor(rows_, [&](size_t row, int) { result_[row] = CompareRow(row); });
  return std::span<const Divergence>(result_).first(rows_);
}

}  // namespace kvasir
