#include "kvcache/kv_layout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvasir {
namespace {

LayerKv Full(int heads, int k_dim, int v_dim) {
  LayerKv layer;
  layer.kv_heads = heads;
  layer.k_dim = k_dim;
  layer.v_dim = v_dim;
  return layer;
}

TEST(KvLayout, SizesOfTheDemoModel) {
  // 30 layers, 3 KV heads of 64, f16: 30 * 3 * (64 + 64) * 2 = 23,040 bytes a token.
  const std::vector<LayerKv> layers(30, Full(3, 64, 64));
  const auto layout = KvLayout::Make(layers, 16, KvType::kF16, KvType::kF16);
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ(layout->bytes_per_token(), 23040);
  EXPECT_EQ(layout->block_bytes(), 23040u * 16);
  EXPECT_EQ(layout->block_tokens(), 16);
  EXPECT_EQ(layout->layers()[1].k_offset, 2u * 3 * 64 * 2 * 16);
  EXPECT_NE(layout->Describe().find("layers 0-29: full, 3 KV heads, K 64 x f16, V 64 x f16"),
            std::string::npos)
      << layout->Describe();
}

TEST(KvLayout, RangesAreAlignedDisjointAndInside) {
  const KvType all[] = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kI8, KvType::kI4};
  for (const int block_tokens : {8, 16, 32, 64, 128, 256}) {
    for (const KvType k : all) {
      for (const KvType v : all) {
        if (!KvPairServed(k, v)) continue;
        const std::vector<LayerKv> layers = {Full(1, 3, 5), Full(7, 1, 9), Full(2, 8, 8)};
        const auto layout = KvLayout::Make(layers, block_tokens, k, v);
        ASSERT_TRUE(layout.ok());
        size_t end = 0;
        for (const LayerSlot& slot : layout->layers()) {
          EXPECT_EQ(slot.k_offset % 64, 0u);
          EXPECT_EQ(slot.v_offset % 64, 0u);
          EXPECT_GE(slot.k_offset, end);
          EXPECT_GE(slot.v_offset, slot.k_offset + slot.k_bytes);
          EXPECT_EQ(slot.k_bytes, static_cast<size_t>(slot.spec.kv_heads) *
                                      KvKeyPlane(k, block_tokens, slot.spec.k_dim).head());
          end = slot.v_offset + slot.v_bytes;
        }
        EXPECT_GE(layout->block_bytes(), end);
        EXPECT_EQ(layout->block_bytes() % 64, 0u);
        EXPECT_LE(layout->bytes_per_token() * block_tokens,
                  static_cast<double>(layout->block_bytes()));
      }
    }
  }
}

// Tokens in the same bytes against f16, in the demo model's shape and others with heads of 64.
TEST(KvLayout, SmallerFormatsHoldMoreTokens) {
  for (const int heads : {3, 8}) {
    for (const int block_tokens : {16, 32, 64, 256}) {
      const std::vector<LayerKv> layers(30, Full(heads, 64, 64));
      const auto tokens = [&](KvType k, KvType v) {
        const auto layout = KvLayout::Make(layers, block_tokens, k, v);
        EXPECT_TRUE(layout.ok());
        const size_t pool = size_t{1} << 30;
        return static_cast<double>(pool / layout->block_bytes()) * block_tokens;
      };
      const double f16 = tokens(KvType::kF16, KvType::kF16);
      EXPECT_GE(tokens(KvType::kI8, KvType::kI8), 1.9 * f16) << heads << " " << block_tokens;
      EXPECT_GE(tokens(KvType::kI4, KvType::kI4), 3.5 * f16) << heads << " " << block_tokens;
      EXPECT_GE(tokens(KvType::kI8, KvType::kI4), 2.4 * f16) << heads << " " << block_tokens;
    }
  }
}

TEST(KvLayout, LayersMayDiffer) {
  const std::vector<LayerKv> layers(3, Full(2, 64, 64));
  const std::vector<KvPair> types = {
      {KvType::kI8, KvType::kI8}, {KvType::kI4, KvType::kI4}, {KvType::kI8, KvType::kI4}};
  const auto layout = KvLayout::Make(layers, 16, types);
  ASSERT_TRUE(layout.ok());
  for (size_t i = 0; i < types.size(); ++i) {
    const LayerSlot& slot = layout->layers()[i];
    EXPECT_EQ(slot.k_type, types[i].k);
    EXPECT_EQ(slot.v_type, types[i].v);
    EXPECT_EQ(slot.k_bytes, 2 * KvKeyPlane(types[i].k, 16, 64).head());
    EXPECT_EQ(slot.v_bytes, 2 * KvValuePlane(types[i].v, 16, 64).head());
  }
}

TEST(KvLayout, RefusesWithANameWhatHasNoKernels) {
  const std::vector<LayerKv> good = {Full(1, 8, 8)};
  const auto refused = [](const Result<KvLayout>& layout, StatusCode code,
                          const std::string& word) {
    ASSERT_FALSE(layout.ok());
    EXPECT_EQ(layout.status().code(), code);
    EXPECT_NE(layout.status().message().find(word), std::string::npos)
        << layout.status().ToString();
  };
  for (const int tokens : {-16, 0, 1, 4, 12, 17, 512}) {
    refused(KvLayout::Make(good, tokens, KvType::kF16, KvType::kF16), StatusCode::kInvalidArgument,
            std::to_string(tokens));
  }
  refused(KvLayout::Make(good, 16, KvType::kI8, KvType::kF16), StatusCode::kUnimplemented,
          "K in i8 with V in f16");
  refused(KvLayout::Make(good, 16, KvType::kI4, KvType::kI8), StatusCode::kUnimplemented,
          "i8/i8, i8/i4, i4/i4");
  refused(KvLayout::Make(std::vector<LayerKv>{Full(1, 1100, 8)}, 16, KvType::kI8, KvType::kI8),
          StatusCode::kUnimplemented, "1024");
  refused(KvLayout::Make({}, 16, KvType::kF16, KvType::kF16), StatusCode::kInvalidArgument,
          "layer");
  const std::pair<LayerCacheKind, const char*> kinds[] = {
      {LayerCacheKind::kWindow, "window"},
      {LayerCacheKind::kChunked, "chunked"},
      {LayerCacheKind::kLatent, "latent"},
      {LayerCacheKind::kShared, "shared"},
      {LayerCacheKind::kRecurrent, "recurrent"}};
  for (const auto& [kind, name] : kinds) {
    std::vector<LayerKv> layers = {Full(1, 8, 8), Full(1, 8, 8)};
    layers[1].kind = kind;
    const auto layout = KvLayout::Make(layers, 16, KvType::kF16, KvType::kF16);
    refused(layout, StatusCode::kUnimplemented, name);
    refused(layout, StatusCode::kUnimplemented, "layer 1");
  }
  refused(KvLayout::Make(std::vector<LayerKv>{Full(0, 8, 8)}, 16, KvType::kF16, KvType::kF16),
          StatusCode::kInvalidArgument, "kv_heads");
  refused(KvLayout::Make(std::vector<LayerKv>{Full(1, -1, 8)}, 16, KvType::kF16, KvType::kF16),
          StatusCode::kInvalidArgument, "k_dim");
  refused(KvLayout::Make(std::vector<LayerKv>{Full(1, 8, 1 << 20)}, 16, KvType::kF16, KvType::kF16),
          StatusCode::kInvalidArgument, "v_dim");
}

}  // namespace
}  // namespace kvasir
