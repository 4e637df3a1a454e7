// The negative control: K and V rounded to so few bits that a certificate must fail them. If it
// passes, the measurement is blind.
#pragma once

#include <cstddef>

#include "model/forward.h"
#include "model/model_config.h"

namespace kvasir {

// Rounds K and V of each token and head to 2^bits evenly spaced values from the smallest to the
// largest, ends included. NaN stays NaN.
class RoundingFilter final : public KvFilter {
 public:
  RoundingFilter(const ModelConfig& config, int bits);
  void OnKv(int layer, float* k, size_t ldk, float* v, size_t ldv, int rows) override;

 private:
  size_t heads_, k_dim_, v_dim_;
  float steps_;
};

}  // namespace kvasir
