#include "base/hash.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <string_view>

namespace kvasir {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// XXH3_64bits of the empty input and of 'a' with seed 0: the xxHash specification's test program
// gives the first.
TEST(Hash64, IsXxh3) {
  EXPECT_EQ(Hash64({}), 0x2D06800538D394C2u);
  EXPECT_EQ(Hash64(Bytes("a")), 0xE6C632B61E964E1Fu);
}

TEST(Hash64, DependsOnEveryByteAndTheSeed) {
  std::array<std::byte, 300> data{};
  std::set<uint64_t> seen{Hash64(data), Hash64(data, 1)};
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = std::byte{1};
    seen.insert(Hash64(data));
    data[i] = std::byte{0};
  }
  EXPECT_EQ(seen.size(), data.size() + 2);
}

TEST(CounterRandom, IsAPureFunctionOfItsArguments) {
  EXPECT_EQ(CounterRandom(1, 2, 3), CounterRandom(1, 2, 3));
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (uint64_t stream = 0; stream < 20; ++stream) {
      for (uint64_t position = 0; position < 20; ++position)
        seen.insert(CounterRandom(seed, stream, position));
    }
  }
  EXPECT_EQ(seen.size(), 20u * 20 * 20);
}

// Mean and the share in each of 16 bins, over neighbouring positions: 5 standard deviations of a
// fair generator.
TEST(CounterUniform, IsEvenlySpread) {
  constexpr int kDraws = 200000;
  std::array<int, 16> bins{};
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = CounterUniform(42, 7, static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    ++bins[static_cast<size_t>(u * 16)];
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  for (const int n : bins) EXPECT_NEAR(n, kDraws / 16.0, 5 * std::sqrt(kDraws / 16.0));
}

TEST(Rng, RepeatsFromItsSeedAndStaysBelow) {
  Rng a(5);
  Rng b(5);
  Rng c(6);
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t x = a.Next();
    EXPECT_EQ(x, b.Next());
    differs |= x != c.Next();
  }
  EXPECT_TRUE(differs);
  for (int i = 0; i < 1000; ++i) EXPECT_LT(a.Below(7), 7u);
  EXPECT_EQ(a.Below(0), 0u);
}

}  // namespace
}  // namespace kvasir
