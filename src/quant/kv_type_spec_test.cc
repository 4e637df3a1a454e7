#include "quant/kv_type_spec.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(KvTypeSpec, ExceptionsByLayer) {
  const auto spec = ParseKvTypeSpec("i4,layers=0-1:i8,-2--1:q8_0,3:i8", "--kv-type-k");
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_EQ(spec->Text(), "i4,layers=0-1:i8,-2--1:i8,3:i8");
  const auto types = spec->Layers(8, "--kv-type-k");
  ASSERT_TRUE(types.ok());
  std::string text;
  for (const KvType type : *types) text += std::string(KvTypeName(type)) + " ";
  EXPECT_EQ(text, "i8 i8 i4 i8 i4 i4 i8 i8 ");
  EXPECT_EQ(ParseKvTypeSpec(spec->Text(), "f")->Text(), spec->Text());
  EXPECT_EQ(ParseKvTypeSpec("f16", "f")->Text(), "f16");
}

TEST(KvTypeSpec, MalformedTextIsRefusedByName) {
  for (const char* text :
       {"", ",", "i4,", "i4,layers", "i4,layers=", "i4,layers=0", "i4,layers=0-:i8",
        "i4,layers=0:", "i4,layers=0:i9", "i4,layers=0:i8,", "i4,layers=a:i8", "i4,layer=0:i8",
        "i4,layers=0-1-2:i8", "i4,layers=99999999999:i8", "i4 ,layers=0:i8", "i4,layers=1e3:i8"}) {
    const auto spec = ParseKvTypeSpec(text, "--kv-type-v");
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_EQ(spec.status().field(), "--kv-type-v");
    EXPECT_NE(spec.status().message().find("--kv-type-v"), std::string::npos) << text;
  }
}

TEST(KvTypeSpec, LayersThatAreNotThere) {
  for (const char* text : {"i4,layers=8:i8", "i4,layers=-9:i8", "i4,layers=5-2:i8",
                           "i4,layers=-1-0:i8", "i4,layers=0-8:i8"}) {
    const auto types = ParseKvTypeSpec(text, "f")->Layers(8, "--kv-type-k");
    ASSERT_FALSE(types.ok()) << text;
    EXPECT_NE(types.status().message().find("8 layers"), std::string::npos);
  }
}

TEST(KvTypeSpec, ALayerOfTwoFormatsIsRefused) {
  const auto layers = [](const char* text, int count) {
    return ParseKvTypeSpec(text, "f")->Layers(count, "--kv-type");
  };
  const auto refused = layers("i8,layers=0-1:i8,1-2:i4", 8);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "--kv-type: layer 1 is to be both i8 and i4");
  EXPECT_FALSE(layers("f16,layers=-1:f32,7:bf16", 8).ok());
  EXPECT_TRUE(layers("f16,layers=-1:f32,7:bf16", 9).ok());
  EXPECT_TRUE(layers("i4,layers=0-1:i8,-2--1:i8", 3).ok());  // the same format twice
}

TEST(KvTypeSpec, PairsWithoutKernelsAreRefusedWithTheirLayer) {
  const auto k = ParseKvTypeSpec("i8,layers=2:i4", "f");
  const auto v = ParseKvTypeSpec("i8", "f");
  const auto pairs = ResolveKvTypes(*k, *v, 4);
  ASSERT_FALSE(pairs.ok());
  EXPECT_NE(pairs.status().message().find("layer 2: K in i4 with V in i8"), std::string::npos);
  EXPECT_NE(pairs.status().message().find("i8/i4"), std::string::npos);
  const auto good = ResolveKvTypes(*k, *ParseKvTypeSpec("i4", "f"), 4);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ((*good)[2], (KvPair{KvType::kI4, KvType::kI4}));
  EXPECT_EQ((*good)[3], (KvPair{KvType::kI8, KvType::kI4}));
}

}  // namespace
}  // namespace kvasir
