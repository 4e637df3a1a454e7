#include "quant/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/hash.h"

namespace kvasir {
namespace {

TEST(Hadamard, BlockIsTheLargestPowerOfTwoThatDivides) {
  const int dims[][2] = {{1, 1},   {8, 8},   {64, 64},  {72, 8},
                         {80, 16}, {96, 32}, {112, 16}, {576, 64}};
  for (const auto& [dim, block] : dims) EXPECT_EQ(HadamardBlock(dim), block);
}

// Against the matrix's definition: entry (i, j) of a block is (-1)^popcount(i & j) / sqrt(block).
TEST(Hadamard, IsTheMatrix) {
  Rng rng(5);
  for (const int dim : {1, 2, 7, 8, 24, 64, 80, 96, 112, 256, 576}) {
    std::vector<float> x(static_cast<size_t>(dim));
    for (float& f : x) f = static_cast<float>(rng.Uniform() * 2 - 1);
    std::vector<float> y = x;
    Rotate(y.data(), dim);
    const int block = HadamardBlock(dim);
    for (int i = 0; i < dim; ++i) {
      double want = 0;
      for (int j = 0; j < block; ++j) {
        const int other = i / block * block + j;
        const int sign = std::popcount(static_cast<unsigned>((i % block) & j)) % 2 == 0 ? 1 : -1;
        want += sign * static_cast<double>(x[static_cast<size_t>(other)]);
      }
      want /= std::sqrt(static_cast<double>(block));
      // log2(block) additions and one product, each off by 2^-24 of at most block^(1/2).
      const double bound = (std::log2(block) + 2) * 0x1p-24 * block;
      EXPECT_NEAR(y[static_cast<size_t>(i)], want, bound) << dim << " " << i;
    }
    Rotate(y.data(), dim);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-5);
  }
}

}  // namespace
}  // namespace kvasir
