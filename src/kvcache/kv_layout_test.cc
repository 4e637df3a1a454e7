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
  for (const int block_tokens : {8, 16, 32, 64, 128, 256}) {
    for (const KvType k : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
      for (const KvType v : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
        const std::vector<LayerKv> layers = {Full(1, 3, 5), Full(7, 1, 9), Full(2, 8, 8)};
        const auto layout = KvLayout::Make(layers, block_tokens, k, v);
        ASSERT_TRUE(layout.ok());
        size_t end = 0;
        for (const LayerSlot& slot : layout->layers()) {
          EXPECT_EQ(slot.k_offset % 64, 0u);
          EXPECT_EQ(slot.v_offset % 64, 0u);
          EXPECT_GE(slot.k_offset, end);
          EXPECT_GE(slot.v_offset, slot.k_offset + slot.k_bytes);
          EXPECT_EQ(slot.k_bytes * 8,
                    static_cast<size_t>(block_tokens * slot.spec.kv_heads * slot.spec.k_dim) *
                        KvElementBits(k));
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
  refused(KvLayout::Make(good, 16, KvType::kI8, KvType::kF16), StatusCode::kUnimplemented, "i8");
  refused(KvLayout::Make(good, 16, KvType::kF16, KvType::kFp8E4M3), StatusCode::kUnimplemented,
          "fp8_e4m3");
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
