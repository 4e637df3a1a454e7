#include "quant/kv_format.h"

#include <gtest/gtest.h>

#include <set>

namespace kvasir {
namespace {

TEST(KvFormat, NamesRoundTrip) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kI8, KvType::kI4,
                            KvType::kFp8E4M3, KvType::kFp8E5M2}) {
    const Result<KvType> parsed = ParseKvType(KvTypeName(type), "kv-type");
    ASSERT_TRUE(parsed.ok()) << KvTypeName(type);
    EXPECT_EQ(*parsed, type);
  }
  EXPECT_EQ(ParseKvType("q8_0", "f").value(), KvType::kI8);
  EXPECT_EQ(ParseKvType("q4_0", "f").value(), KvType::kI4);
  EXPECT_EQ(ParseKvType("fp8", "f").value(), KvType::kFp8E4M3);
}

TEST(KvFormat, UnknownNamesAreRefusedWithTheList) {
  const Result<KvType> got = ParseKvType("f64", "--kv-type");
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(got.status().field(), "--kv-type");
  EXPECT_EQ(got.status().message(),
            "--kv-type: unknown KV format \"f64\"; known are f32, f16, bf16, i8 (or q8_0), "
            "i4 (or q4_0), fp8_e4m3 (or fp8), fp8_e5m2");
  EXPECT_FALSE(ParseKvType("", "f").ok());
  EXPECT_FALSE(ParseKvType("F16", "f").ok());
  const std::string message = ParseKvType("\n" + std::string(500, 'x'), "f").status().message();
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 200u);
}

TEST(KvFormat, ServedAreTheFormatsWithKernels) {
  EXPECT_EQ(KvTypesServedList(), "f32, f16, bf16");
  EXPECT_TRUE(KvTypeServed(KvType::kBf16));
  EXPECT_FALSE(KvTypeServed(KvType::kI8));
  EXPECT_EQ(KvElementBits(KvType::kF32), 32u);
  EXPECT_EQ(KvElementBits(KvType::kBf16), 16u);
  EXPECT_EQ(KvElementBits(KvType::kI4), 4u);
}

// Every (token, channel) has a place of its own inside the head, and 16 tokens of one channel are
// neighbours.
TEST(KvFormat, IndicesAreAPermutation) {
  for (const int block : {8, 16, 64}) {
    for (const int dim : {1, 64, 80}) {
      std::set<size_t> keys;
      std::set<size_t> values;
      for (int t = 0; t < block; ++t) {
        for (int c = 0; c < dim; ++c) {
          keys.insert(KvKeyIndex(block, dim, t, c));
          values.insert(KvValueIndex(dim, t, c));
        }
      }
      const auto size = static_cast<size_t>(block * dim);
      EXPECT_EQ(keys.size(), size);
      EXPECT_EQ(*keys.rbegin(), size - 1);
      EXPECT_EQ(values.size(), size);
      EXPECT_EQ(*values.rbegin(), size - 1);
      EXPECT_EQ(KvKeyIndex(block, dim, 7, 0), 7u);
    }
  }
  EXPECT_EQ(KvKeyIndex(32, 64, 17, 3), size_t{64 * 16 + 3 * 16 + 1});
}

}  // namespace
}  // namespace kvasir
