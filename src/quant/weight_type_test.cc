#include "quant/weight_type.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <vector>

#include "base/hash.h"
#include "quant/block_codes.h"
#include "quant/float16.h"

namespace kvasir {
namespace {

constexpr WeightType kAll[] = {WeightType::kF32,  WeightType::kF16,  WeightType::kBf16,
                               WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ4_1,
                               WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kQ4_K,
                               WeightType::kQ5_K, WeightType::kQ6_K};

TEST(WeightType, NamesAndNumbers) {
  EXPECT_EQ(WeightTypesServedList(),
            "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K");
  for (const WeightType type : kAll) {
    EXPECT_EQ(GetWeightType(type).name, GgmlTypeName(static_cast<uint32_t>(type)));
  }
  EXPECT_EQ(GgmlTypeName(16), "IQ2_XXS");
  EXPECT_EQ(GgmlTypeName(29), "IQ1_M");
  EXPECT_EQ(GgmlTypeName(30), "BF16");
  EXPECT_EQ(GgmlTypeName(34), "TQ1_0");
  EXPECT_EQ(GgmlTypeName(39), "MXFP4");
  EXPECT_EQ(GgmlTypeName(41), "Q1_0");
  EXPECT_EQ(GgmlTypeName(42), "");
  EXPECT_EQ(GgmlTypeName(0xFFFFFFFFu), "");
  EXPECT_EQ(FindWeightType(16), nullptr);
  EXPECT_EQ(FindWeightType(0xFFFFFFFFu), nullptr);
}

TEST(WeightType, RowBytes) {
  EXPECT_EQ(WeightRowBytes(WeightType::kQ4_1, 576), 360u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ6_K, 512), 420u);
  EXPECT_EQ(WeightRowBytes(WeightType::kF16, 7), 14u);
  EXPECT_EQ(WeightRowBytes(WeightType::kF16, 0), 0u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ4_1, 577), std::nullopt);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ6_K, 288), std::nullopt);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ8_0, -32), std::nullopt);
  // 2^63 - 32 columns fit as Q8_0 bytes in 64 bits; as F32 the product would wrap.
  EXPECT_EQ(WeightRowBytes(WeightType::kF32, std::numeric_limits<int64_t>::max()), std::nullopt);
  EXPECT_TRUE(WeightRowBytes(WeightType::kQ8_0, std::numeric_limits<int64_t>::max() - 31));
}

uint32_t ReadU32(const std::vector<char>& bytes, size_t at) {
  uint32_t v = 0;
  std::memcpy(&v, bytes.data() + at, 4);
  return v;
}

TEST(WeightType, DequantizesAsTheGgufPackageDoes) {
  std::ifstream file("src/quant/testdata/dequant.bin", std::ios::binary);
  ASSERT_TRUE(file) << "run from the repository's root";
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::set<uint32_t> seen;
  size_t at = 0;
  while (at < bytes.size()) {
    ASSERT_LE(at + 12, bytes.size());
    const uint32_t number = ReadU32(bytes, at);
    const uint32_t columns = ReadU32(bytes, at + 4);
    const uint32_t size = ReadU32(bytes, at + 8);
    at += 12;
    const WeightTypeInfo* info = FindWeightType(number);
    ASSERT_NE(info, nullptr) << number;
    SCOPED_TRACE(info->name);
    seen.insert(number);
    ASSERT_EQ(WeightRowBytes(info->type, columns), size);
    ASSERT_LE(at + size + 4 * size_t{columns}, bytes.size());
    std::vector<float> got(columns);
    DequantizeRow(info->type, reinterpret_cast<const std::byte*>(bytes.data() + at), got);
    at += size;
    for (uint32_t i = 0; i < columns; ++i) {
      const float want = std::bit_cast<float>(ReadU32(bytes, at + 4 * size_t{i}));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want))
            << "element " << i << ": " << got[i] << " instead of " << want;
      }
    }
    at += 4 * size_t{columns};
  }
  EXPECT_EQ(seen.size(), std::size(kAll));
}

// The formulas of block_codes.h, element by element, from the codes alone.
TEST(WeightType, CodesStayInTheirRangeAndGiveTheValues) {
  Rng rng(11);
  for (const WeightType type : kAll) {
    if (IsFloatType(type)) continue;
    const WeightTypeInfo& info = GetWeightType(type);
    SCOPED_TRACE(info.name);
    const CodeRules rules = GetCodeRules(type);
    std::vector<std::byte> block(static_cast<size_t>(info.block_bytes));
    for (int round = 0; round < 200; ++round) {
      for (std::byte& b : block) b = static_cast<std::byte>(rng.Next());
      BlockCodes codes;
      DecodeBlock(type, block.data(), codes);
      std::vector<float> values(static_cast<size_t>(info.block_elements));
      DequantizeRow(type, block.data(), values);
      const double d = F16ToF32(codes.d);
      const double m = F16ToF32(codes.m);
      if (!std::isfinite(d) || !std::isfinite(m)) continue;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_LT(codes.codes[i], 1 << rules.bits);
        double want = d * (codes.codes[i] - rules.zero);
        if (type == WeightType::kQ6_K) want *= static_cast<int8_t>(codes.scales[i / 16]);
        if (type == WeightType::kQ4_K || type == WeightType::kQ5_K) {
          want = want * codes.scales[i / 32] - m * codes.mins[i / 32];
        } else if (rules.has_min) {
          want += m;
        }
        ASSERT_NEAR(values[i], want, 1e-6 * (std::abs(d) * 1e4 + std::abs(m) * 64)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
