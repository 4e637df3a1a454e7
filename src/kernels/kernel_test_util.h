// What the kernel tests share: random weights of every type, an executor that runs parts in a
// random order on several threads, and a guard that puts the instruction set back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/parallel.h"
#include "kernels/isa.h"
#include "quant/block_codes.h"
#include "quant/float16.h"
#include "quant/weight_type.h"

namespace kvasir::testing_util {

inline constexpr WeightType kAllTypes[] = {WeightType::kF32,  WeightType::kF16,  WeightType::kBf16,
                                           WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ4_1,
                                           WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kQ4_K,
                                           WeightType::kQ5_K, WeightType::kQ6_K};

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> list;
  for (const Isa isa : kAllIsas) {
    if (IsaSupported(isa)) list.push_back(isa);
  }
  return list;
}

class IsaGuard {
 public:
  IsaGuard() : before_(CurrentIsa()) {}
  ~IsaGuard() { static_cast<void>(SetIsa(before_)); }

 private:
  Isa before_;
};

// Three threads taking parts in a random order.
class ShuffledExecutor final : public Executor {
 public:
  explicit ShuffledExecutor(uint64_t seed) : rng_(seed) {}
  int workers() const override { return 3; }
  void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override {
    std::vector<size_t> order(parts);
    for (size_t i = 0; i < parts; ++i) order[i] = i;
    for (size_t i = parts; i > 1; --i) std::swap(order[i - 1], order[rng_.Below(i)]);
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (int worker = 0; worker < workers(); ++worker) {
      threads.emplace_back([&, worker] {
        for (size_t i = next.fetch_add(1); i < parts; i = next.fetch_add(1)) body(order[i], worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  Rng rng_;
};

inline float RandomNormal(Rng& rng) {
  const double u = std::max(rng.Uniform(), 1e-12);
  return static_cast<float>(std::sqrt(-2 * std::log(u)) *
                            std::cos(6.283185307179586 * rng.Uniform()));
}

inline std::vector<float> RandomFloats(Rng& rng, size_t n) {
  std::vector<float> values(n);
  for (float& v : values) v = RandomNormal(rng);
  return values;
}

inline void PutHalf(std::byte* p, float value) {
  const uint16_t bits = F32ToF16(value);
  std::memcpy(p, &bits, 2);
}

// Rows of random bytes, with block scales of a sensible size (random bytes alone would hold NaN
// scales).
inline std::vector<std::byte> RandomWeights(Rng& rng, WeightType type, int64_t rows,
                                            int64_t columns) {
  const size_t row_bytes = WeightRowBytes(type, columns).value();
  std::vector<std::byte> bytes(row_bytes * static_cast<size_t>(rows));
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Next() >> 11);
  const auto size = static_cast<size_t>(GetWeightType(type).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += size) {
    std::byte* block = bytes.data() + at;
    const float value = 0.05F * RandomNormal(rng);
    if (type == WeightType::kF32) {
      std::memcpy(block, &value, 4);
    } else if (type == WeightType::kF16) {
      PutHalf(block, value);
    } else if (type == WeightType::kBf16) {
      const uint16_t bits = F32ToBf16(value);
      std::memcpy(block, &bits, 2);
    } else if (type == WeightType::kQ6_K) {
      PutHalf(block + 208, value * 0.01F);
    } else {
      PutHalf(block, value);
      if (GetCodeRules(type).has_min) PutHalf(block + 2, 0.1F * RandomNormal(rng));
    }
  }
  return bytes;
}

}  // namespace kvasir::testing_util
