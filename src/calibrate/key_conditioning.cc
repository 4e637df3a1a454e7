#include "calibrate/key_conditioning.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace internal {
namespace {

// Means over positions 0 … count − 1 of the angles p · step.
struct Turn {
  double c = 1, s = 0, cc = 1, ss = 0, cs = 0;
};

Turn MeanTurn(double step, int count) {
  Turn turn{0, 0, 0, 0, 0};
  for (int p = 0; p < count; ++p) {
    const double c = std::cos(step * p), s = std::sin(step * p);
    turn.c += c;
    turn.s += s;
    turn.cc += c * c;
    turn.ss += s * s;
    turn.cs += c * s;
  }
  const double n = count;
  return {turn.c / n, turn.s / n, turn.cc / n, turn.ss / n, turn.cs / n};
}

// A head's ratios to usable factors: finite, positive, not far from their geometric mean.
void Tame(std::span<double> balance) {
  double logs = 0;
  int known = 0;
  for (const double b : balance) {
    if (b > 0 && std::isfinite(b)) {
      logs += std::log(b);
      ++known;
    }
  }
  const double middle = known > 0 ? std::exp(logs / known) : 1.0;
  for (double& b : balance) {
    if (!(b > 0) || !std::isfinite(b)) b = middle;
    b = std::clamp(b, middle / kBalanceReach, middle * kBalanceReach) / middle;
  }
}

}  // namespace

KeyMoments::KeyMoments(const ModelConfig& config)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      k_dim_(config.k_dim),
      layers_(static_cast<size_t>(config.layers)) {
  const auto n = static_cast<size_t>(kv_heads_) * static_cast<size_t>(k_dim_);
  for (Layer& layer : layers_) {
    for (auto* sums :
         {&layer.k_sum, &layer.k_square, &layer.k_product, &layer.q_square, &layer.q_product}) {
      sums->assign(n, 0.0);
    }
  }
}

void KeyMoments::OnQueryKey(int layer, const float* q, const float* k, size_t ld, int rows) {
  Layer& sums = layers_[static_cast<size_t>(layer)];
  sums.rows += rows;
  const auto dim = static_cast<size_t>(k_dim_);
  const auto width = static_cast<size_t>(kv_heads_) * dim;
  const size_t group = static_cast<size_t>(heads_ / kv_heads_);
  for (int r = 0; r < rows; ++r) {
    const float* key = k + static_cast<size_t>(r) * ld;
    const float* query = q + static_cast<size_t>(r) * ld;
    for (size_t i = 0; i < width; ++i) {
      const auto x = static_cast<double>(key[i]);
      sums.k_sum[i] += x;
      sums.k_square[i] += x * x;
      if (i % dim % 2 == 0 && i % dim + 1 < dim) {
        sums.k_product[i] += x * static_cast<double>(key[i + 1]);
      }
    }
    for (size_t i = 0; i < width * group; ++i) {
      const size_t channel = i % dim;
      const size_t at = i / dim / group * dim + channel;
      const auto x = static_cast<double>(query[i]);
      sums.q_square[at] += x * x;
      if (channel % 2 == 0 && channel + 1 < dim) {
        sums.q_product[at] += x * static_cast<double>(query[i + 1]);
      }
    }
  }
}

KeyConditioning FitKeys(const ModelConfig& config, const KeyMoments& moments) {
  const std::vector<double> steps = config.RopeSteps();
  const int positions = std::clamp(config.context, 1, kConditioningPositions);
  std::vector<Turn> turns;
  turns.reserve(steps.size());
  for (const double step : steps) turns.push_back(MeanTurn(step, positions));
  const auto dim = static_cast<size_t>(config.k_dim);
  KeyConditioning result;
  for (const KeyMoments::Layer& layer : moments.layers()) {
    const size_t width = layer.k_sum.size();
    const double n = static_cast<double>(std::max<int64_t>(layer.rows, 1));
    std::vector<double> centre(width), balance(width);
    for (size_t i = 0; i < width; ++i) {
      const size_t channel = i % dim;
      const size_t even = i - channel % 2;
      const bool paired = channel - channel % 2 + 1 < dim && channel / 2 < turns.size();
      const Turn turn = paired ? turns[channel / 2] : Turn();
      const size_t other = paired ? even + (1 - channel % 2) : i;
      const double sign = channel % 2 == 0 ? -1.0 : 1.0;  // x' = x cos − y sin, y' = y cos + x sin
      centre[i] = (turn.c * layer.k_sum[i] + sign * turn.s * layer.k_sum[other]) / n;
      const auto turned = [&](const std::vector<double>& square,
                              const std::vector<double>& product) {
        return (turn.cc * square[i] + turn.ss * square[other] +
                sign * 2 * turn.cs * product[even]) /
               n;
      };
      const double deviation = turned(layer.k_square, layer.k_product) - centre[i] * centre[i];
      const double query = turned(layer.q_square, layer.q_product);
      balance[i] = std::sqrt(std::sqrt(std::max(deviation, 0.0)) / std::sqrt(std::max(query, 0.0)));
    }
    for (size_t head = 0; head < width; head += dim) Tame(std::span(balance).subspan(head, dim));
    result.centre.emplace_back(centre.begin(), centre.end());
    result.balance.emplace_back(balance.begin(), balance.end());
  }
  return result;
}

}  // namespace internal
}  // namespace kvasir
