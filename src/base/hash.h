// Hashes that may leave the process (fingerprints, checksums) and counter-based random numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvasir {

// XXH3-64 of the bytes (xxHash, BSD-2): stable over versions and machines of either byte order.
uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed = 0);

// A random number that is a pure function of its three arguments, so a draw is tied to (seed,
// stream, position) and not to how many were drawn before: neighbours, chunking and preemption
// cannot change it. SplitMix64 finaliser chain.
uint64_t CounterRandom(uint64_t seed, uint64_t stream, uint64_t position);

// The same as a double in [0, 1) with 53 random bits.
double CounterUniform(uint64_t seed, uint64_t stream, uint64_t position);

// A small sequential generator for tests and property runs (xoshiro-like quality is not needed
// there).
class Rng {
 public:
  explicit Rng(uint64_t seed) : seed_(seed) {}
  uint64_t Next() { return CounterRandom(seed_, 0, count_++); }
  uint64_t Below(uint64_t n) { return n == 0 ? 0 : Next() % n; }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

}  // namespace kvasir
