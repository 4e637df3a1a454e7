#include "certify/cache_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/hash.h"
#include "calibrate/sequence_runner.h"
#include "certify/rounding_filter.h"
#include "certify/test_models.h"

namespace kvasir {
namespace {

TEST(CacheFormat, NamesBothWays) {
  for (const char* name : {"f32", "f16", "bf16", "i8", "i8/i4", "f16/bf16", "fp8_e4m3",
                           "i4,layers=0-1:i8,-1:i8", "i8/i4,layers=0:i8"}) {
    const auto format = ParseCacheFormat(name, "kv-type");
    ASSERT_TRUE(format.ok()) << name;
    EXPECT_EQ(CacheFormatName(*format), name);
  }
  EXPECT_EQ(CacheFormatName(*ParseCacheFormat("k8v4", "kv-type")), "i8/i4");
  EXPECT_EQ(CacheFormatName(*ParseCacheFormat("k4v4", "kv-type")), "i4");
  EXPECT_EQ(CacheFormatName(*ParseCacheFormat("q8_0", "kv-type")), "i8");
  for (const char* name : {"", "/", "i8/", "/i8", "i8/i4/i4", "i9", "I8"}) {
    EXPECT_FALSE(ParseCacheFormat(name, "kv-type").ok()) << name;
  }
}

// What a format computes, as a hash of a small model's logits. If this fails for a format whose
// bytes or arithmetic changed on purpose: raise its KvFormatVersion, so that old certificates end,
// and write down the new digest.
TEST(CacheFormat, AFormatsVersionStandsForItsBits) {
  const std::map<std::string, std::pair<int, uint64_t>> known = {
      {"f32", {1, 0x39e2fe247d8d298bu}},      {"f16", {1, 0x2a711bfabaae9148u}},
      {"bf16", {1, 0x388e5fafbb886746u}},     {"i8", {1, 0xe744b59d1c92d5fcu}},
      {"i4", {2, 0xc9a12eabdab33e0du}},       {"fp8_e4m3", {1, 0x82a25817c6f3353au}},
      {"fp8_e5m2", {1, 0x4f9ee3f8cf311e26u}},
  };
  testing::TempFolder folder;
  SerialExecutor serial;
  const auto model = testing::LoadSmallRandom(folder, serial);
  ForwardOptions forward;
  forward.precision = Precision::kExact;
  forward.max_rows = 64;
  forward.max_positions = 64;
  std::vector<int32_t> tokens;
  for (int i = 0; i < 64; ++i) tokens.push_back((i * 37 + 11) % 256);
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kI8, KvType::kI4,
                            KvType::kFp8E4M3, KvType::kFp8E5M2}) {
    const auto layout = MakeKvLayout(model->config(), CacheFormat::Of(KvTypeName(type)), 16);
    if (!layout.ok()) continue;
    auto runner = SequenceRunner::Make(*model, forward, *layout, 1, serial);
    ASSERT_TRUE(runner.ok());
    uint64_t digest = 0;
    const int32_t want[] = {0, 31, 63};
    ASSERT_TRUE((*runner)
                    ->Prefill(0, tokens, want,
                              [&](size_t, std::span<float> logits) {
                                digest = Hash64(std::as_bytes(logits), digest);
                              })
                    .ok());
    const auto expected = known.find(std::string(KvTypeName(type)));
    if (expected == known.end()) {
      ADD_FAILURE() << "{\"" << KvTypeName(type) << "\", {" << KvFormatVersion(type) << ", 0x"
                    << std::hex << digest << "u}},";
      continue;
    }
    EXPECT_EQ(KvFormatVersion(type), expected->second.first) << KvTypeName(type);
    EXPECT_EQ(digest, expected->second.second) << KvTypeName(type) << ": the bits changed";
  }
}

TEST(FormatsWorthHaving, AreServed) {
  testing::TempFolder folder;
  SerialExecutor serial;
  const auto model = testing::LoadSmallRandom(folder, serial);
  const std::vector<CacheFormat> formats = FormatsWorthHaving(model->config());
  ASSERT_FALSE(formats.empty());
  for (const CacheFormat& format : formats)
    EXPECT_TRUE(MakeKvLayout(model->config(), format, 16).ok());
  if (KvTypeServed(KvType::kI8)) {
    EXPECT_EQ(CacheFormatName(formats[0]), "i8");
  }
}

TEST(RoundingFilter, LeavesAFewEvenValuesPerHead) {
  ModelConfig config;
  config.kv_heads = 2;
  config.k_dim = 5;
  config.v_dim = 3;
  std::vector<float> k = {0, 1, 2, 3, 0.4F, -6, 6, 1, 0, -1, 99}, v = {1, 1, 1, NAN, 0, 3, 99};
  RoundingFilter filter(config, 2);
  filter.OnKv(0, k.data(), 11, v.data(), 7, 1);
  const std::vector<float> expected = {0, 1, 2, 3, 0, -6, 6, 2, -2, -2, 99};
  // Of two equally near values either will do.
  for (size_t i = 0; i < k.size(); ++i) {
    if (i == 8) {
      EXPECT_TRUE(k[i] == -2 || k[i] == 2);
    } else {
      EXPECT_EQ(k[i], expected[i]) << i;
    }
  }
  EXPECT_EQ(v[0], 1);
  EXPECT_TRUE(std::isnan(v[3]));
  EXPECT_EQ(v[6], 99) << "past the last head";
}

// The filter sees all that is written, and what it writes is what attention reads.
TEST(KvFilterHook, ReachesTheCache) {
  struct Zero final : KvFilter {
    void OnKv(int layer, float* k, size_t ldk, float* v, size_t ldv, int rows) override {
      seen[layer] += rows;
      for (int r = 0; r < rows; ++r) {
        std::fill_n(k + static_cast<size_t>(r) * ldk, 32, 0.0F);
        std::fill_n(v + static_cast<size_t>(r) * ldv, 32, 0.0F);
      }
    }
    int seen[2] = {};
  };
  testing::TempFolder folder;
  SerialExecutor serial;
  const auto model = testing::LoadSmallRandom(folder, serial);
  const auto layout = MakeKvLayout(model->config(), {}, 16);
  Zero zero;
  ForwardOptions forward;
  forward.max_rows = 8;
  forward.max_positions = 32;
  forward.kv_filter = &zero;
  auto runner = SequenceRunner::Make(*model, forward, *layout, 2, serial);
  ASSERT_TRUE(runner.ok());
  std::vector<std::vector<float>> last(2);
  for (int s = 0; s < 2; ++s) {
    const std::vector<int32_t> tokens = {s + 1, s + 2, 50, 50};
    const int32_t want = 3;
    ASSERT_TRUE((*runner)
                    ->Prefill(s, tokens, {&want, 1},
                              [&](size_t, std::span<float> logits) {
                                last[static_cast<size_t>(s)].assign(logits.begin(), logits.end());
                              })
                    .ok());
  }
  EXPECT_EQ(zero.seen[0], 8);
  EXPECT_EQ(zero.seen[1], 8);
  EXPECT_EQ(last[0], last[1]) << "with V zero nothing of earlier tokens is left";
}

}  // namespace
}  // namespace kvasir
