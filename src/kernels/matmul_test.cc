// The product against a double-precision one with a bound taken from the arithmetic, and against
// itself bit for bit: over instruction sets, numbers of rows, and threads.
#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/matmul_fixture_test.h"
#include "kernels/matmul_layout.h"

namespace kvasir {
namespace {

using namespace testing_util;

TEST(Matmul, TheTableOfFormatsAgreesWithQuant) {
  for (const WeightType type : kAllTypes) {
    const internal::TileFormat format = internal::TileFormatOf(type);
    if (IsFloatType(type)) {
      EXPECT_EQ(format.element_bytes, GetWeightType(type).block_bytes);
      continue;
    }
    const CodeRules rules = GetCodeRules(type);
    EXPECT_EQ(format.code_bits, rules.bits);
    EXPECT_EQ(format.zero, rules.zero);
    EXPECT_EQ(format.has_min, rules.has_min);
    EXPECT_EQ(format.super_blocks * internal::kBlockColumns, GetWeightType(type).block_elements);
  }
}

TEST(Matmul, RowGroupsCoverEveryRowOnce) {
  for (const bool wide : {false, true}) {
    for (int m = 0; m < 60; ++m) {
      int next = 0;
      int width = wide ? internal::kWideGroupRows : internal::kGroupRows;
      for (int g = 0; g < internal::RowGroupCount(m, wide); ++g) {
        const internal::RowGroup group = internal::RowGroupAt(m, wide, g);
        EXPECT_EQ(group.first, next);
        EXPECT_GE(group.width, group.rows);
        EXPECT_LE(group.width, width) << "groups get narrower";
        EXPECT_GT(group.rows, 0);
        next += group.rows;
        width = group.width;
      }
      EXPECT_EQ(next, m);
      EXPECT_LE(internal::WideGroupCount(m), internal::RowGroupCount(m, true));
    }
  }
}

// What may separate a result from the exact product of the dequantised weights with x.
//   f32           one fma a column, and the dequantised weight is the one of DequantizeRow: columns
//   * 2^-24 times the sum of
//                 |w x|.
//   quantisation  per block of 32 columns a value is at most half a step off, the step being amax /
//   127 (int8x2: the
//                 residual, at most that half step, is quantised again: a 254th of it), times the
//                 sum of |w|. One part in 10^5 on top for the roundings of scale and inverse, 10^-9
//                 of amax for those of the residual.
//   folding       at most four roundings of the running sum and two of a term per block, each 2^-24
//   of the magnitudes that
//                 pass; a term's magnitude is that of scale * code or of min before they cancel:
//                 within 40 times the block's largest weight in these tests.
struct Bound {
  double exact = 0;
  double bound = 0;
};
Bound ExactWithBound(const Problem& p, ActMode mode, const float* x, int64_t row) {
  Bound b;
  double products = 0;
  double folded = 0;
  const bool quantised = !IsFloatType(p.type) && mode != ActMode::kF32;
  const float* w = p.weights.data() + row * p.columns;
  for (int64_t first = 0; first < p.columns; first += 32) {
    const int64_t last = std::min(first + 32, p.columns);
    double amax = 0;
    double w_sum = 0;
    double w_max = 0;
    double x_sum = 0;
    for (int64_t c = first; c < last; ++c) {
      const double product = static_cast<double>(w[c]) * x[c];
      b.exact += product;
      products += std::abs(product);
      amax = std::max(amax, std::abs(static_cast<double>(x[c])));
      x_sum += std::abs(static_cast<double>(x[c]));
      w_sum += std::abs(w[c]);
      w_max = std::max(w_max, static_cast<double>(std::abs(w[c])));
    }
    const double step = mode == ActMode::kInt8x2 ? amax / 254 / 254 : amax / 254;
    if (quantised) b.bound += w_sum * (step * 1.00001 + amax * 1e-9);
    folded += 40 * w_max * x_sum;
  }
  if (quantised) {
    b.bound += static_cast<double>(4 * ((p.columns + 31) / 32) + 2) * 0x1p-24 * folded;
  } else {
    b.bound += static_cast<double>(p.columns) * 0x1p-24 * products;
  }
  return b;
}

TEST(Matmul, IsAsCloseToTheExactProductAsItsArithmeticSays) {
  Rng rng(5);
  SerialExecutor serial;
  for (const WeightType type : kAllTypes) {
    for (const ActMode mode : kModes) {
      SCOPED_TRACE(Name(type, mode));
      double used = 0;  // the largest share of its bound that an error takes
      for (const int m : {1, 3, 8, 13}) {
        const Problem p = MakeProblem(rng, type, 37, ColumnsFor(rng, type));
        const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(m * p.columns));
        const std::vector<float> bias = RandomFloats(rng, 37);
        const std::vector<float> y = Multiply(p, mode, x, m, bias, serial);
        for (int r = 0; r < m; ++r) {
          for (int64_t o = 0; o < p.rows; ++o) {
            Bound b = ExactWithBound(p, mode, x.data() + r * p.columns, o);
            b.exact += bias[static_cast<size_t>(o)];
            b.bound += 0x1p-23 * std::abs(b.exact);
            const double error = std::abs(y[static_cast<size_t>(r * p.rows + o)] - b.exact);
            ASSERT_LE(error, b.bound) << "row " << r << " output " << o << " exact " << b.exact;
            used = std::max(used, error / b.bound);
          }
        }
      }
      // A bound a thousand times too wide would test nothing.
      EXPECT_GT(used, 1e-3);
    }
  }
}

TEST(Matmul, AllInstructionSetsGiveTheSameBits) {
  const IsaGuard guard;
  Rng rng(6);
  SerialExecutor serial;
  for (const WeightType type : kAllTypes) {
    for (const ActMode mode : kModes) {
      SCOPED_TRACE(Name(type, mode));
      for (const int m : {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 16,
                          17, 20, 21, 23, 24, 25, 32, 35, 40, 42, 53, 69, 85}) {
        const auto rows = static_cast<int64_t>(1 + rng.Below(70));
        const Problem p = MakeProblem(rng, type, rows, ColumnsFor(rng, type));
        std::vector<float> x = RandomFloats(rng, static_cast<size_t>(m * p.columns));
        x[rng.Below(x.size())] = 300.0F;  // an outlier: small codes in its block
        x[rng.Below(x.size())] = 0.0F;
        std::vector<float> bias;
        if (m % 2 == 0) bias = RandomFloats(rng, static_cast<size_t>(rows));
        ASSERT_TRUE(SetIsa(Isa::kPortable).ok());
        const std::vector<float> want = Multiply(p, mode, x, m, bias, serial);
        for (const Isa isa : SupportedIsas()) {
          ASSERT_TRUE(SetIsa(isa).ok());
          EXPECT_TRUE(SameBits(Multiply(p, mode, x, m, bias, serial), want))
              << IsaName(isa) << " m " << m << " rows " << rows << " columns " << p.columns;
        }
      }
    }
  }
}

// Codes and activations at the ends of their ranges: where a 16-bit sum of the AVX2 path would
// saturate.
TEST(Matmul, ExtremeCodesDoNotSaturate) {
  const IsaGuard guard;
  SerialExecutor serial;
  for (const WeightType type : kAllTypes) {
    if (IsFloatType(type)) continue;
    for (const int fill : {0x00, 0xFF, 0x80, 0x7F}) {
      Rng rng(7);
      const int64_t columns = 256;
      Problem p = MakeProblem(rng, type, 16, columns);
      const WeightTypeInfo& info = GetWeightType(type);
      for (size_t at = 0; at < p.bytes.size(); at += static_cast<size_t>(info.block_bytes)) {
        std::byte* block = p.bytes.data() + at;
        std::memset(block, fill, static_cast<size_t>(info.block_bytes));
        PutHalf(type == WeightType::kQ6_K ? block + 208 : block, 0.5F);
        if (GetCodeRules(type).has_min) PutHalf(block + 2, 0.25F);
      }
      const WeightView view = {type, p.bytes.data(), p.rows, columns};
      p.packed = PackedMatrix::Pack(std::span(&view, 1), serial).value();
      for (const float sign : {1.0F, -1.0F}) {
        for (const ActMode mode : kModes) {
          const std::vector<float> x(40 * static_cast<size_t>(columns), sign);
          ASSERT_TRUE(SetIsa(Isa::kPortable).ok());
          const std::vector<float> want = Multiply(p, mode, x, 40, {}, serial);
          for (const Isa isa : SupportedIsas()) {
            ASSERT_TRUE(SetIsa(isa).ok());
            EXPECT_TRUE(SameBits(Multiply(p, mode, x, 40, {}, serial), want))
                << Name(type, mode) << " " << IsaName(isa) << " fill " << fill;
          }
        }
      }
    }
  }
}

TEST(Matmul, ARowDoesNotSeeItsNeighboursNorTheThreads) {
  const IsaGuard guard;
  Rng rng(8);
  SerialExecutor serial;
  ShuffledExecutor shuffled(9);
  for (const Isa isa : SupportedIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    for (const WeightType type : kAllTypes) {
      for (const ActMode mode : kModes) {
        SCOPED_TRACE(Name(type, mode) + " " + std::string(IsaName(isa)));
        const int m = static_cast<int>(1 + rng.Below(isa == Isa::kPortable ? 12
                                                     : isa == Isa::kAmx    ? 90
                                                                           : 40));
        const Problem p = MakeProblem(rng, type, static_cast<int64_t>(200 + rng.Below(300)),
                                      ColumnsFor(rng, type));
        const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(m * p.columns));
        const std::vector<float> all = Multiply(p, mode, x, m, {}, serial);
        EXPECT_TRUE(SameBits(Multiply(p, mode, x, m, {}, shuffled), all));
        for (int r = 0; r < m; ++r) {
          const std::vector<float> row(x.begin() + r * p.columns, x.begin() + (r + 1) * p.columns);
          const std::vector<float> alone = Multiply(p, mode, row, 1, {}, serial);
          EXPECT_EQ(std::memcmp(alone.data(), all.data() + r * p.rows, alone.size() * 4), 0)
              << "row " << r << " of " << m;
        }
      }
    }
  }
}

TEST(Matmul, NanAndInfinityStayInTheirRow) {
  const IsaGuard guard;
  Rng rng(10);
  SerialExecutor serial;
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (const Isa isa : SupportedIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    for (const WeightType type : kAllTypes) {
      for (const ActMode mode : kModes) {
        SCOPED_TRACE(Name(type, mode) + " " + std::string(IsaName(isa)));
        const int m = 43;
        const Problem p = MakeProblem(rng, type, 33, ColumnsFor(rng, type));
        std::vector<float> x = RandomFloats(rng, static_cast<size_t>(m * p.columns));
        const std::vector<float> clean = Multiply(p, mode, x, m, {}, serial);
        for (int row : {0, 6, 15, 16, 31, 33, 42}) {
          std::vector<float> dirty = x;
          dirty[static_cast<size_t>(row * p.columns) +
                rng.Below(static_cast<uint64_t>(p.columns))] = bad[rng.Below(3)];
          const std::vector<float> y = Multiply(p, mode, dirty, m, {}, serial);
          int broken = 0;
          for (int r = 0; r < m; ++r) {
            for (int64_t o = 0; o < p.rows; ++o) {
              const auto at = static_cast<size_t>(r * p.rows + o);
              if (r == row) {
                broken += !std::isfinite(y[at]);
              } else {
                EXPECT_EQ(y[at], clean[at]);
              }
            }
          }
          EXPECT_GT(broken, 0);
        }
      }
    }
  }
}

TEST(Matmul, TinyAndHugeActivations) {
  const IsaGuard guard;
  Rng rng(11);
  SerialExecutor serial;
  for (const float size : {0.0F, 1e-45F, 1e-38F, 1e-37F, 1e-36F, 1e-30F, 1e30F, 3e38F}) {
    for (const ActMode mode : kModes) {
      const Problem p = MakeProblem(rng, WeightType::kQ4_1, 20, 64);
      std::vector<float> x = RandomFloats(rng, 64);
      for (float& v : x) v = std::clamp(v, -1.0F, 1.0F) * size;
      ASSERT_TRUE(SetIsa(Isa::kPortable).ok());
      const std::vector<float> want = Multiply(p, mode, x, 1, {}, serial);
      for (const Isa isa : SupportedIsas()) {
        ASSERT_TRUE(SetIsa(isa).ok());
        EXPECT_TRUE(SameBits(Multiply(p, mode, x, 1, {}, serial), want)) << size << IsaName(isa);
      }
      if (size < 1e20F) {
        for (const float v : want) EXPECT_TRUE(std::isfinite(v)) << size;
      }
    }
  }
}

std::vector<uint8_t> RandomBlocks(Rng& rng, int64_t columns, uint64_t one_in) {
  std::vector<uint8_t> blocks(static_cast<size_t>(columns / 32));
  for (uint8_t& b : blocks)
    b = static_cast<uint8_t>(rng.Below(one_in) == 0 ? 1 + rng.Below(255) : 0);
  return blocks;
}

// A block of zeros adds nothing in either mode, so with the other blocks zero the chosen ones must
// give the bits of kInt8x2, and with the chosen ones zero the others those of kInt8.
TEST(Matmul, TwoTermBlocksAreBetweenOneAndTwoTerms) {
  const IsaGuard guard;
  Rng rng(14);
  SerialExecutor serial;
  ShuffledExecutor shuffled(15);
  for (const WeightType type : kAllTypes) {
    for (const int m : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 27, 35, 69, 85}) {
      const int64_t columns = GetWeightType(type).block_elements == 256 ? 512 : 32 * 11;
      const Problem p = MakeProblem(rng, type, static_cast<int64_t>(1 + rng.Below(60)), columns);
      const auto width = static_cast<size_t>(columns);
      const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(m) * width);
      const std::vector<uint8_t> none(width / 32, 0);
      const std::vector<uint8_t> every(width / 32, 7);
      const std::vector<uint8_t> some = RandomBlocks(rng, columns, 3);
      std::vector<float> chosen = x;
      std::vector<float> rest = x;
      for (size_t i = 0; i < x.size(); ++i) (some[i % width / 32] != 0 ? rest : chosen)[i] = 0;
      ASSERT_TRUE(SetIsa(Isa::kPortable).ok());
      const std::vector<float> mixed = Multiply(p, {ActMode::kInt8, some}, x, m, {}, serial);
      for (const Isa isa : SupportedIsas()) {
        ASSERT_TRUE(SetIsa(isa).ok());
        SCOPED_TRACE(std::string(GetWeightType(type).name) + " " + std::string(IsaName(isa)) +
                     " m " + std::to_string(m));
        const auto run = [&](const Activations& how, const std::vector<float>& in) {
          return Multiply(p, how, in, m, {}, serial);
        };
        EXPECT_TRUE(SameBits(run({ActMode::kInt8, none}, x), run(ActMode::kInt8, x)));
        EXPECT_TRUE(SameBits(run({ActMode::kInt8, every}, x), run(ActMode::kInt8x2, x)));
        EXPECT_TRUE(SameBits(run({ActMode::kInt8, some}, x), mixed));
        EXPECT_TRUE(SameBits(Multiply(p, {ActMode::kInt8, some}, x, m, {}, shuffled), mixed));
        EXPECT_TRUE(SameBits(run({ActMode::kInt8, some}, chosen), run(ActMode::kInt8x2, chosen)));
        EXPECT_TRUE(SameBits(run({ActMode::kInt8, some}, rest), run(ActMode::kInt8, rest)));
        for (int r = 0; r < m; ++r) {
          const std::vector<float> row(x.begin() + r * columns, x.begin() + (r + 1) * columns);
          const std::vector<float> alone = Multiply(p, {ActMode::kInt8, some}, row, 1, {}, serial);
          EXPECT_EQ(std::memcmp(alone.data(), mixed.data() + r * p.rows, alone.size() * 4), 0);
        }
      }
    }
  }
}

// MatmulMany on mixed types, strides wider than the rows, and one scratch used for calls of
// different size.
TEST(Matmul, ManyEqualsOneByOne) {
  Rng rng(12);
  SerialExecutor serial;
  ShuffledExecutor shuffled(13);
  MatmulScratch scratch;
  for (int round = 0; round < 30; ++round) {
    const ActMode mode = kModes[rng.Below(3)];
    const int m = static_cast<int>(rng.Below(round % 3 == 0 ? 50 : 12));
    const size_t ldx = 256 + rng.Below(9);
    const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(m) * ldx + 1);
    std::vector<float> tight;
    for (int r = 0; r < m; ++r) {
      const float* row = x.data() + static_cast<size_t>(r) * ldx;
      tight.insert(tight.end(), row, row + 256);
    }
    std::vector<Problem> problems;
    for (size_t i = 0; i < 1 + rng.Below(4); ++i) {
      problems.push_back(MakeProblem(rng, kAllTypes[rng.Below(std::size(kAllTypes))],
                                     static_cast<int64_t>(1 + rng.Below(300)), 256));
    }
    std::vector<std::vector<float>> out(problems.size());
    std::vector<MatmulTarget> targets;
    for (size_t i = 0; i < problems.size(); ++i) {
      const size_t ldy = static_cast<size_t>(problems[i].rows) + 5;
      out[i].assign(static_cast<size_t>(m) * ldy + 1, 7.0F);
      targets.push_back({&problems[i].packed, out[i].data(), ldy, {}});
    }
    MatmulMany(targets, mode, x.data(), ldx, m, scratch, shuffled);
    for (size_t i = 0; i < problems.size(); ++i) {
      const auto rows = static_cast<size_t>(problems[i].rows);
      const std::vector<float> want = Multiply(problems[i], mode, tight, m, {}, serial);
      for (int r = 0; r < m; ++r) {
        const float* got = out[i].data() + static_cast<size_t>(r) * (rows + 5);
        EXPECT_EQ(std::memcmp(got, want.data() + static_cast<size_t>(r) * rows, rows * 4), 0);
        for (size_t k = rows; k < rows + 5; ++k) EXPECT_EQ(got[k], 7.0F) << "wrote beyond the row";
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
