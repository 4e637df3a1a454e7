// Packed weights give back the rows of the file, whatever the threads and the stacking.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "kernels/matmul_fixture_test.h"

namespace kvasir {
namespace {

using namespace testing_util;

TEST(PackedMatrix, RowsAreThoseOfTheFile) {
  Rng rng(1);
  SerialExecutor serial;
  for (const WeightType type : kAllTypes) {
    SCOPED_TRACE(GetWeightType(type).name);
    for (const int64_t rows : {1, 15, 16, 17, 50}) {
      const Problem p = MakeProblem(rng, type, rows, ColumnsFor(rng, type));
      EXPECT_EQ(p.packed.rows(), rows);
      EXPECT_EQ(p.packed.columns(), p.columns);
      EXPECT_EQ(p.packed.type(), type);
      std::vector<float> row(static_cast<size_t>(p.columns));
      for (int64_t r = 0; r < rows; ++r) {
        p.packed.Row(r, row);
        EXPECT_EQ(std::memcmp(row.data(), p.weights.data() + r * p.columns, row.size() * 4), 0)
            << r;
      }
    }
  }
}

TEST(PackedMatrix, StacksPartsInOrderWhateverTheThreads) {
  Rng rng(2);
  SerialExecutor serial;
  ShuffledExecutor shuffled(3);
  for (const WeightType type : kAllTypes) {
    const int64_t columns = ColumnsFor(rng, type);
    const Problem a = MakeProblem(rng, type, 21, columns);
    const Problem b = MakeProblem(rng, type, 7, columns);
    const Problem c = MakeProblem(rng, type, 900, columns);
    const WeightView views[] = {{type, a.bytes.data(), 21, columns},
                                {type, b.bytes.data(), 7, columns},
                                {type, c.bytes.data(), 900, columns}};
    const PackedMatrix one = PackedMatrix::Pack(views, serial).value();
    const PackedMatrix two = PackedMatrix::Pack(views, shuffled).value();
    EXPECT_EQ(one.rows(), 928);
    std::vector<float> row(static_cast<size_t>(columns));
    std::vector<float> other(row.size());
    std::vector<float> all = a.weights;
    all.insert(all.end(), b.weights.begin(), b.weights.end());
    all.insert(all.end(), c.weights.begin(), c.weights.end());
    for (int64_t r = 0; r < 928; ++r) {
      one.Row(r, row);
      two.Row(r, other);
      EXPECT_EQ(std::memcmp(row.data(), all.data() + r * columns, row.size() * 4), 0);
      EXPECT_TRUE(SameBits(row, other));
    }
  }
}

TEST(PackedMatrix, RefusesWhatDoesNotFitTogether) {
  SerialExecutor serial;
  const std::vector<std::byte> bytes(100000);
  const auto pack = [&](std::vector<WeightView> views) {
    return PackedMatrix::Pack(views, serial).status();
  };
  EXPECT_EQ(pack({}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      pack({{WeightType::kQ4_0, bytes.data(), 2, 64}, {WeightType::kQ4_1, bytes.data(), 2, 64}})
          .message(),
      "tensors stacked into one matrix differ: Q4_0 with 64 columns and Q4_1 with 64");
  EXPECT_FALSE(
      pack({{WeightType::kQ4_0, bytes.data(), 2, 64}, {WeightType::kQ4_0, bytes.data(), 2, 32}})
          .ok());
  EXPECT_EQ(pack({{WeightType::kQ6_K, bytes.data(), 2, 288}}).message(),
            "a row of 288 columns is no multiple of 256, the block of Q6_K");
  EXPECT_FALSE(pack({{WeightType::kF32, bytes.data(), -1, 4}}).ok());
  EXPECT_FALSE(pack({{WeightType::kF32, bytes.data(), 4, 0}}).ok());
  EXPECT_FALSE(pack({{WeightType::kF32, bytes.data(), int64_t{1} << 40, 4}}).ok());
  EXPECT_FALSE(
      pack({{WeightType::kF32, bytes.data(), 4, std::numeric_limits<int64_t>::max()}}).ok());
  EXPECT_TRUE(pack({{WeightType::kF32, bytes.data(), 4, 7}}).ok());
}

TEST(PackedMatrix, TakesAboutTheRoomOfTheFile) {
  Rng rng(4);
  for (const WeightType type : {WeightType::kF16, WeightType::kQ8_0, WeightType::kQ4_0,
                                WeightType::kQ4_1, WeightType::kQ4_K}) {
    const Problem p = MakeProblem(rng, type, 512, 512);
    EXPECT_LE(static_cast<double>(p.packed.bytes()), 1.04 * static_cast<double>(p.bytes.size()))
        << GetWeightType(type).name;
  }
  EXPECT_EQ(PackedMatrix().rows(), 0);
  EXPECT_EQ(PackedMatrix().bytes(), 0u);
}

}  // namespace
}  // namespace kvasir
