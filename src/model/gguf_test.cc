#include "model/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "model/testing/gguf_writer.h"
#include "model/testing/temp_folder.h"
#include "model/testing/tiny_llama.h"

namespace kvasir {
namespace {

using testing::GgufWriter;
using testing::MakeTinyLlama;
using testing::TempFolder;

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Result<GgufFile> Parse(const std::string& bytes) {
  return GgufFile::Parse(Bytes(bytes), "test.gguf");
}

// A refusal: one line that begins with the file's name and has all the words.
void ExpectRefused(const Status& status, std::initializer_list<const char*> words) {
  ASSERT_FALSE(status.ok()) << "loaded, but should name " << *words.begin();
  EXPECT_EQ(status.message().rfind("test.gguf: ", 0), 0u) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  for (const char* word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos)
        << "'" << word << "' in: " << status.message();
  }
}

GgufWriter AllKinds() {
  GgufWriter w;
  w.Number<uint8_t>("u8", 0, 200);
  w.Number<int8_t>("i8", 1, -100);
  w.Number<uint16_t>("u16", 2, 60000);
  w.Number<int16_t>("i16", 3, -30000);
  w.U32("u32", 4000000000u);
  w.I32("i32", -2000000000);
  w.F32("f32", 1.5F);
  w.Bool("yes", true);
  w.String("text", "hello");
  w.Number<uint64_t>("u64", 10, UINT64_MAX);
  w.Number<int64_t>("i64", 11, INT64_MIN);
  w.Number<double>("f64", 12, 1e300);
  w.Strings("strings", {"a", "", "ccc"});
  w.Numbers<int32_t>("ints", 5, {-1, 2, 3});
  w.Numbers<float>("floats", 6, {0.5F, -0.5F});
  w.Numbers<uint8_t>("bools", 7, {1, 0});
  w.Numbers<uint64_t>("wide", 10, {1, UINT64_MAX});
  w.F32("nan", std::numeric_limits<float>::quiet_NaN());
  w.Tensor("t", {4, 3}, 0, std::string(48, 'x'));
  return w;
}

TEST(Gguf, ReadsEveryKindOfValue) {
  const std::string bytes = AllKinds().Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->keys().size(), 18u);
  EXPECT_EQ(file->file_bytes(), bytes.size());
  EXPECT_EQ(file->shards(), 1);
  EXPECT_EQ(**file->Int("u8", 0, 255), 200);
  EXPECT_EQ(**file->Int("i8", -128, 127), -100);
  EXPECT_EQ(**file->Int("u16", 0, 65535), 60000);
  EXPECT_EQ(**file->Int("i16", INT16_MIN, 0), -30000);
  EXPECT_EQ(**file->Int("u32", 0, INT64_MAX), 4000000000);
  EXPECT_EQ(**file->Int("i64", INT64_MIN, 0), INT64_MIN);
  EXPECT_EQ(**file->Float("f32"), 1.5);
  EXPECT_EQ(**file->Float("f64"), 1e300);
  EXPECT_TRUE(**file->Bool("yes"));
  EXPECT_EQ(**file->String("text"), "hello");
  EXPECT_EQ((*file->Array("strings", GgufType::kString))->Strings(),
            (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_EQ((*file->Array("ints", GgufType::kI32))->Integers(), (std::vector<int64_t>{-1, 2, 3}));
  EXPECT_EQ((*file->Array("floats", GgufType::kF32))->Numbers(), (std::vector<double>{0.5, -0.5}));
  EXPECT_EQ((*file->Array("bools", GgufType::kBool))->Integers(), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ((*file->Array("wide", GgufType::kU64))->Integers(),
            (std::vector<int64_t>{1, INT64_MAX}));
  ASSERT_NE(file->FindTensor("t"), nullptr);
  EXPECT_EQ(file->FindTensor("t")->columns(), 4);
  EXPECT_EQ(file->FindTensor("t")->rows(), 3);
  EXPECT_EQ(file->FindTensor("t")->bytes, 48u);
  EXPECT_EQ(static_cast<char>(file->FindTensor("t")->data[47]), 'x');
  EXPECT_EQ(file->FindTensor("u"), nullptr);
}

TEST(Gguf, LookUpsSayWhatIsWrongAndAbsentIsNoError) {
  const std::string bytes = AllKinds().Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(file->Int("absent", 0, 1)->has_value());
  EXPECT_FALSE(file->Array("absent", GgufType::kI32)->has_value());
  ExpectRefused(file->Int("u64", 0, INT64_MAX).status(),
                {"offset", "'u64'", "18446744073709551615"});
  ExpectRefused(file->Int("u8", 0, 100).status(), {"'u8'", "200", "limit 0 to 100"});
  ExpectRefused(file->Int("text", 0, 1).status(), {"'text'", "string", "integer"});
  ExpectRefused(file->Float("u8").status(), {"'u8'", "uint8", "float"});
  ExpectRefused(file->Float("nan").status(), {"'nan'", "finite"});
  ExpectRefused(file->Bool("u8").status(), {"'u8'", "bool"});
  ExpectRefused(file->String("u8").status(), {"'u8'", "string"});
  ExpectRefused(file->Array("ints", GgufType::kString).status(),
                {"'ints'", "array of int32", "array of string"});
  ExpectRefused(file->Array("u8", GgufType::kI32).status(), {"'u8'"});
}

TEST(Gguf, TakesVersion2AndAnyAlignment) {
  for (const uint32_t version : {2u, 3u}) {
    for (const uint64_t alignment : {8u, 32u, 64u, 4096u, 65536u}) {
      GgufWriter w = MakeTinyLlama({});
      w.version = version;
      w.alignment = alignment;
      const std::string bytes = w.Bytes();
      const auto file = Parse(bytes);
      ASSERT_TRUE(file.ok()) << file.status().ToString();
      EXPECT_EQ(file->version(), version);
      for (const GgufTensor& tensor : file->tensors()) EXPECT_EQ(tensor.offset % alignment, 0u);
    }
  }
}

TEST(Gguf, EveryCutIsRefusedWithBothSizes) {
  const std::string whole = MakeTinyLlama({.layers = 1,
                                           .hidden = 8,
                                           .ff = 8,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .k_dim = 8,
                                           .v_dim = 8,
                                           .vocab = 258})
                                .Bytes();
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    // A copy of its own: ASan sees any read past the cut.
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const Status status = GgufFile::Parse(std::as_bytes(std::span(cut)), "test.gguf").status();
    ASSERT_FALSE(status.ok()) << size;
    ExpectRefused(status, {"offset", "field", "expected size", "actual size"});
    if (HasFailure()) FAIL() << "cut at " << size;
  }
}

// Any byte may be anything: the reader answers yes or no and touches nothing it should not (ASan,
// UBSan).
TEST(Gguf, RandomDamageNeverCrashes) {
  const std::string whole = MakeTinyLlama({.layers = 1,
                                           .hidden = 8,
                                           .ff = 8,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .k_dim = 8,
                                           .v_dim = 8,
                                           .vocab = 258})
                                .Bytes();
  const uint64_t seed = 99;
  Rng rng(seed);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = whole;
    const uint64_t head = rng.Below(3) == 0 ? 24 : whole.size();
    for (uint64_t n = 1 + rng.Below(4); n > 0; --n) {
      damaged[rng.Below(head)] = static_cast<char>(rng.Below(3) == 0 ? 0xFF : rng.Next());
    }
    const auto file = Parse(damaged);
    refused += file.ok() ? 0 : 1;
    for (const GgufTensor& tensor : file.ok() ? file->tensors() : std::vector<GgufTensor>()) {
      ASSERT_LE(tensor.offset + tensor.bytes, damaged.size())
          << "seed " << seed << " round " << round;
    }
  }
  EXPECT_GT(refused, 400);
}

TEST(Gguf, MessagesStayOneHarmlessLine) {
  GgufWriter w;
  w.Key("bad\n\x1B[31m" + std::string(500, 'y'), 77, "");
  ExpectRefused(Parse(w.Bytes() + std::string(64, '\0')).status(), {"\\x0A\\x1B[31myyy", "..."});
}

TEST(Gguf, RefusesByField) {
  {
    GgufWriter w;
    w.Number<uint8_t>("b", 7, 2);
    ExpectRefused(Parse(w.Bytes() + std::string(64, '\0')).status(), {"'b'", "bool 2"});
  }
  {
    GgufWriter w;
    w.Tensor("odd", {33}, static_cast<uint32_t>(WeightType::kQ8_0), std::string(68, 'x'));
    ExpectRefused(Parse(w.Bytes()).status(), {"'odd'", "33", "Q8_0"});
  }
  {
    GgufWriter w;
    w.Tensor("iq", {256}, 16, std::string(66, 'x'));
    const Status status = Parse(w.Bytes()).status();
    ExpectRefused(status, {"'iq'", "16", "IQ2_XXS", "served: F32"});
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  }
  {
    GgufWriter w;
    w.Tensor(std::string(300, 'n'), {1}, 0, "xxxx");
    ExpectRefused(Parse(w.Bytes()).status(), {"tensor 0", "300", "limit 255"});
  }
  {
    GgufWriter w;
    w.I32("split.count", 3);
    ExpectRefused(Parse(w.Bytes()).status(), {"split.count", "shard"});
  }
}

// -------------------------------------------------------------------------------------------
// shards

GgufWriter Shard(int number, int count, int tensors_in_all) {
  GgufWriter w;
  w.Number<uint16_t>("split.no", 2, static_cast<uint16_t>(number - 1));
  w.Number<uint16_t>("split.count", 2, static_cast<uint16_t>(count));
  w.I32("split.tensors.count", tensors_in_all);
  if (number == 1) w.String("general.architecture", "llama");
  const std::string name = "t" + std::to_string(number);
  w.Tensor(name, {4}, 0, std::string(16, static_cast<char>('0' + number)));
  return w;
}

class GgufShards : public ::testing::Test {
 protected:
  std::string Path(int number) const {
    return folder_ / ("m-0000" + std::to_string(number) + "-of-00003.gguf");
  }
  void SetUp() override {
    for (int i = 1; i <= 3; ++i) Shard(i, 3, 3).Write(Path(i));
  }
  TempFolder folder_;
};

TEST_F(GgufShards, OpenAsOneFileFromAnyName) {
  for (int given = 1; given <= 3; ++given) {
    const auto file = GgufFile::Open(Path(given));
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_EQ(file->shards(), 3);
    EXPECT_EQ(file->tensors().size(), 3u);
    EXPECT_EQ(**file->String("general.architecture"), "llama");
    for (int i = 1; i <= 3; ++i) {
      const GgufTensor* tensor = file->FindTensor("t" + std::to_string(i));
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->shard, i - 1);
      EXPECT_EQ(static_cast<char>(tensor->data[15]), static_cast<char>('0' + i));
      file->Forget(*tensor);
      EXPECT_EQ(static_cast<char>(tensor->data[15]), static_cast<char>('0' + i));
    }
  }
}

TEST_F(GgufShards, AMissingShardIsNamed) {
  std::filesystem::remove(Path(2));
  const Status status = GgufFile::Open(Path(3)).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message().rfind(Path(2), 0), 0u) << status.message();
  EXPECT_NE(status.message().find("shard 2 of 3"), std::string::npos) << status.message();
}

TEST_F(GgufShards, InconsistentShardsAreNamed) {
  const auto refusal = [&] { return GgufFile::Open(Path(1)).status().message(); };
  Shard(3, 3, 3).Write(Path(2));  // another number inside
  EXPECT_NE(refusal().find("-00002-of-00003.gguf: offset"), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("split.no"), std::string::npos) << refusal();
  Shard(2, 4, 3).Write(Path(2));  // another count inside
  EXPECT_NE(refusal().find("split.count"), std::string::npos) << refusal();
  GgufWriter twice = Shard(2, 3, 3);  // the first shard's tensor again
  twice.Tensor("t1", {4}, 0, std::string(16, 'x'));
  twice.Write(Path(2));
  EXPECT_NE(refusal().find("two shards"), std::string::npos) << refusal();
  Shard(2, 3, 3).Write(Path(2));
  Shard(1, 3, 9).Write(Path(1));  // promises nine tensors
  EXPECT_NE(refusal().find("split.tensors.count"), std::string::npos) << refusal();
  AllKinds().Write(Path(1));  // no split keys at all
  EXPECT_NE(refusal().find("split.count"), std::string::npos) << refusal();
}

TEST_F(GgufShards, AShardUnderAnotherNameIsRefusedAndALoneFileMayHaveAShardsName) {
  std::filesystem::copy_file(Path(1), folder_ / "renamed.gguf");
  const Status status = GgufFile::Open(folder_ / "renamed.gguf").status();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("split.count"), std::string::npos) << status.message();
  AllKinds().Write(folder_ / "x-00001-of-00001.gguf");
  EXPECT_TRUE(GgufFile::Open(folder_ / "x-00001-of-00001.gguf").ok());
}

TEST(GgufOpen, AbsentFoldersAndEmptyFiles) {
  TempFolder folder;
  EXPECT_EQ(GgufFile::Open(folder / "no.gguf").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(folder / "").status().code(), StatusCode::kDataLoss);
  std::ofstream(folder / "empty.gguf").flush();
  const Status empty = GgufFile::Open(folder / "empty.gguf").status();
  EXPECT_EQ(empty.code(), StatusCode::kDataLoss);
  EXPECT_NE(empty.message().find("size"), std::string::npos);
}

}  // namespace
}  // namespace kvasir
