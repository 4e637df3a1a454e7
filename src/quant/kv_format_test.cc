#include "quant/kv_format.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

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
  const KvType all[] = {KvType::kF32, KvType::kF16,     KvType::kBf16,   KvType::kI8,
                        KvType::kI4,  KvType::kFp8E4M3, KvType::kFp8E5M2};
  for (const KvType k : all) {
    const bool listed = ("," + KvTypesServedList() + ",").find(KvTypeName(k)) != std::string::npos;
    EXPECT_EQ(KvTypeServed(k), listed) << KvTypeName(k);
    for (const KvType v : all) {
      const bool integers = KvTypeIsInteger(k) && KvTypeIsInteger(v);
      const bool floats = !KvTypeIsInteger(k) && !KvTypeIsInteger(v);
      const bool other_way = k == KvType::kI4 && v == KvType::kI8;
      EXPECT_EQ(KvPairServed(k, v),
                KvTypeServed(k) && KvTypeServed(v) && ((integers && !other_way) || floats))
          << KvTypeName(k) << " " << KvTypeName(v);
    }
  }
  EXPECT_EQ(KvElementBytes(KvType::kF32), 4u);
  EXPECT_EQ(KvElementBytes(KvType::kBf16), 2u);
}

// Heads of 64: what a block of 16 tokens takes, and that no more tokens fit than the arithmetic
// says.
TEST(KvFormat, PlanesAreTheStatedBytes) {
  EXPECT_EQ(KvKeyPlane(KvType::kF16, 16, 64).head(), 16u * 128);
  EXPECT_EQ(KvKeyPlane(KvType::kI8, 16, 64).head(), 16u * 66);
  EXPECT_EQ(KvValuePlane(KvType::kI8, 16, 64).head(), 16u * 66);
  EXPECT_EQ(KvKeyPlane(KvType::kI4, 16, 64).head(), 16u * 36);
  EXPECT_EQ(KvValuePlane(KvType::kI4, 16, 64).head(), 16u * 36);
  EXPECT_EQ(KvKeyPlane(KvType::kI4, 16, 80).head(), 16u * (40 + 6));
  EXPECT_EQ(KvValuePlane(KvType::kI4, 16, 25).head(), 16u * (13 + 2));
  EXPECT_EQ(KvKeyPlane(KvType::kFp8E4M3, 16, 64).head(), 16u * 66);
  EXPECT_EQ(KvKeyPlane(KvType::kFp8E5M2, 16, 64).head(), 16u * 64);
}

// Every code of i8 and i4 has a place of its own inside the plane, and a byte belongs to one token.
TEST(KvFormat, CodesAreAPermutation) {
  for (const KvType type : {KvType::kI8, KvType::kI4}) {
    for (const int block : {8, 16, 64}) {
      for (const int dim : {1, 4, 31, 33, 64, 80}) {
        std::set<std::pair<size_t, bool>> keys, values;
        std::map<size_t, int> key_token, value_token;
        for (int t = 0; t < block; ++t) {
          for (int c = 0; c < dim; ++c) {
            const KvCodePlace k = KvKeyCode(type, block, dim, t, c);
            const KvCodePlace v = KvValueCode(type, dim, t, c);
            keys.insert({k.byte, k.high});
            values.insert({v.byte, v.high});
            EXPECT_EQ(key_token.emplace(k.byte, t).first->second, t);
            EXPECT_EQ(value_token.emplace(v.byte, t).first->second, t);
            EXPECT_LT(k.byte, KvKeyPlane(type, block, dim).codes);
            EXPECT_LT(v.byte, KvValuePlane(type, block, dim).codes);
          }
        }
        EXPECT_EQ(keys.size(), static_cast<size_t>(block * dim));
        EXPECT_EQ(values.size(), static_cast<size_t>(block * dim));
      }
    }
  }
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
