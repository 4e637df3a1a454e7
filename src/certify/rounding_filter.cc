#include "certify/rounding_filter.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"

namespace kvasir {
namespace {

void Round(std::span<float> values, float steps) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const float first = *low;
  const float step = (*high - first) / steps;
  if (!(step > 0) || !std::isfinite(step)) return;
  for (float& value : values) value = first + step * std::nearbyint((value - first) / step);
}

}  // namespace

RoundingFilter::RoundingFilter(const ModelConfig& config, int bits)
    : heads_(static_cast<size_t>(config.kv_heads)),
      k_dim_(static_cast<size_t>(config.k_dim)),
      v_dim_(static_cast<size_t>(config.v_dim)),
      steps_(static_cast<float>((1 << bits) - 1)) {
  KVASIR_CHECK(bits >= 1 && bits <= 16);
}

void RoundingFilter::OnKv(int /*layer*/, float* k, size_t ldk, float* v, size_t ldv, int rows) {
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    for (size_t head = 0; head < heads_; ++head) {
      Round({k + row * ldk + head * k_dim_, k_dim_}, steps_);
      Round({v + row * ldv + head * v_dim_, v_dim_}, steps_);
    }
  }
}

}  // namespace kvasir
