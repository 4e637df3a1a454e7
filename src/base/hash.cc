#include "base/hash.h"

#include <xxhash.h>

namespace kvasir {
namespace {

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants by D. Stafford, "Mix13").
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t CounterRandom(uint64_t seed, uint64_t stream, uint64_t position) {
  return Mix(Mix(Mix(seed) ^ stream) ^ position);
}

double CounterUniform(uint64_t seed, uint64_t stream, uint64_t position) {
  return static_cast<double>(CounterRandom(seed, stream, position) >> 11) * 0x1.0p-53;
}

}  // namespace kvasir
