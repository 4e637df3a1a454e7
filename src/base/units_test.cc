#include "base/units.h"

#include <gtest/gtest.h>

#include "base/hash.h"

namespace kvasir {
namespace {

TEST(ParseSize, TakesWhatPeopleWrite) {
  const struct {
    const char* text;
    uint64_t bytes;
  } kCases[] = {
      {"0", 0},
      {"65536", 65536},
      {"512MiB", 512ull << 20},
      {"4GiB", 4ull << 30},
      {"1.5G", 3ull << 29},
      {"2k", 2048},
      {"2KB", 2048},
      {"3 tib", 3ull << 40},
      {"7B", 7},
      {"0.5K", 512},
      {"4194304T", 1ull << 62},
  };
  for (const auto& c : kCases) {
    const auto size = ParseSize(c.text, "kv-mem");
    ASSERT_TRUE(size.ok()) << c.text << ": " << size.status().ToString();
    EXPECT_EQ(*size, c.bytes) << c.text;
  }
}

TEST(ParseSize, RefusesTheRestAndNamesTheOption) {
  for (const char* text : {"", "-1", "+1", "G", "MiB", "1X", "1GiBB", "1e3G", "nan", "inf", "1.2.3",
                           "0x10", "4194305T", "99999999999999999999999999", " 1"}) {
    const auto size = ParseSize(text, "kv-mem");
    ASSERT_FALSE(size.ok()) << "'" << text << "' gave " << *size;
    EXPECT_EQ(size.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(size.status().field(), "kv-mem");
    EXPECT_NE(size.status().message().find("kv-mem"), std::string::npos);
    EXPECT_EQ(size.status().message().find('\n'), std::string::npos);
  }
}

TEST(FormatSize, ChoosesTheUnit) {
  EXPECT_EQ(FormatSize(0), "0 B");
  EXPECT_EQ(FormatSize(1023), "1023 B");
  EXPECT_EQ(FormatSize(1024), "1.00 KiB");
  EXPECT_EQ(FormatSize(3ull << 29), "1.50 GiB");
  EXPECT_EQ(FormatSize(100ull << 20), "100.0 MiB");
  EXPECT_EQ(FormatSize(UINT64_MAX), "16.0 EiB");
}

TEST(FormatSize, ParsesBackToWithinItsDigits) {
  const uint64_t seed = 20261129;
  Rng rng(seed);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t bytes =
        rng.Next() >> (14 + rng.Below(48));  // up to 2^50: ParseSize knows units to T
    const auto back = ParseSize(FormatSize(bytes), "x");
    ASSERT_TRUE(back.ok()) << FormatSize(bytes) << " seed " << seed;
    EXPECT_NEAR(static_cast<double>(*back), static_cast<double>(bytes),
                0.006 * static_cast<double>(bytes) + 0.5)
        << FormatSize(bytes) << " seed " << seed;
  }
}

}  // namespace
}  // namespace kvasir
