// What the scheduler learns from what it sees: how long answers are, how often a place is free.
// Values; time comes in as an argument.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvasir {

// Mean of generated tokens over the choices that finished, the last ~64 weighing most.
class OutputEstimate {
 public:
  void Finished(int32_t generated) {
    count_ = std::min(count_ + 1, 64);
    mean_ += (generated - mean_) / count_;
  }
  double mean() const { return mean_; }  // 0: nothing finished yet
  // Tokens that a sequence is expected to generate still.
  int32_t Remaining(int32_t generated, int32_t max_tokens) const {
    const double expected = std::min<double>(mean_, max_tokens);
    return std::max(0, static_cast<int32_t>(expected) - generated);
  }

 private:
  int32_t count_ = 0;
  double mean_ = 0;
};

// Mean time between first admissions while others waited for theirs: what a full queue needs to
// have one place more.
class AdmissionPace {
 public:
  // After each plan. waiting: requests never admitted that it left.
  void Planned(int64_t now_ns, int32_t admitted, int64_t waiting) {
    if (admitted > 0 && busy_) {
      const double interval = static_cast<double>(now_ns - since_ns_) / admitted;
      mean_ns_ = known_ ? mean_ns_ + (interval - mean_ns_) * 0.1 : interval;
      known_ = true;
    }
    // Time in which nobody waited says nothing about the pace.
    if (admitted > 0 || !busy_) since_ns_ = now_ns;
    busy_ = waiting > 0;
    now_ns_ = now_ns;
  }
  // Seconds; when the pace has become slower than the mean, the time waited so far. 1 if nothing
  // is known.
  double seconds() const {
    const double waited = busy_ ? static_cast<double>(now_ns_ - since_ns_) : 0;
    if (!known_) return std::max(1.0, waited / 1e9);
    return std::max(mean_ns_, waited) / 1e9;
  }

 private:
  bool busy_ = false, known_ = false;
  int64_t since_ns_ = 0, now_ns_ = 0;
  double mean_ns_ = 0;
};

}  // namespace kvasir
