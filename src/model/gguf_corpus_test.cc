// The fuzz corpus in src/model/corpus/gguf: small files that keep the fuzzer's way into every part
// of the reader short. With KVASIR_WRITE_CORPUS=1 this test writes it; without, it checks that the
// files are still what the names say.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "model/model.h"
#include "model/testing/gguf_writer.h"
#include "model/testing/tiny_llama.h"

namespace kvasir {
namespace {

using testing::GgufWriter;
using testing::MakeTinyLlama;

constexpr const char* kFolder = "src/model/corpus/gguf/";

GgufWriter SmallLlama(bool tokenizer) {
  GgufWriter w;
  Rng rng(3);
  w.String("general.architecture", "llama");
  for (const auto& [key, value] : std::map<std::string, uint32_t>{{"block_count", 1},
                                                                  {"context_length", 64},
                                                                  {"embedding_length", 4},
                                                                  {"feed_forward_length", 4},
                                                                  {"attention.head_count", 2},
                                                                  {"attention.head_count_kv", 1},
                                                                  {"rope.dimension_count", 2}}) {
    w.U32("llama." + key, value);
  }
  w.String("llama.rope.scaling.type", "llama3");
  w.F32("llama.rope.scaling.factor", 8.0F);
  w.U32("llama.rope.scaling.original_context_length", 32);
  w.Numbers<int32_t>("some.numbers", 5, {1, -2});
  w.Bool("some.flag", true);
  if (tokenizer) w.Strings("tokenizer.ggml.tokens", {"a", "b", ""});
  for (const auto& [name, dims] :
       std::map<std::string, std::vector<int64_t>>{{"token_embd.weight", {4, 3}},
                                                   {"output_norm.weight", {4}},
                                                   {"blk.0.attn_norm.weight", {4}},
                                                   {"blk.0.attn_q.weight", {4, 4}},
                                                   {"blk.0.attn_k.weight", {4, 2}},
                                                   {"blk.0.attn_v.weight", {4, 2}},
                                                   {"blk.0.attn_output.weight", {4, 4}},
                                                   {"blk.0.ffn_norm.weight", {4}},
                                                   {"blk.0.ffn_gate.weight", {4, 4}},
                                                   {"blk.0.ffn_up.weight", {4, 4}},
                                                   {"blk.0.ffn_down.weight", {4, 4}},
                                                   {"rope_freqs.weight", {1}}}) {
    if (name == "rope_freqs.weight" && tokenizer) continue;
    w.RandomTensor(name, dims, WeightType::kBf16, 1.0, rng);
  }
  return w;
}

// Name, bytes, whether the file loads and whether its config does.
struct Seed {
  std::string name;
  std::string bytes;
  bool parses;
  bool served;
};

std::vector<Seed> Seeds() {
  std::vector<Seed> seeds;
  seeds.push_back({"llama", SmallLlama(true).Bytes(), true, true});
  GgufWriter v2 = SmallLlama(true);
  v2.version = 2;
  v2.alignment = 8;
  seeds.push_back({"llama_v2_align8", v2.Bytes(), true, true});
  GgufWriter other;
  other.String("general.architecture", "mamba");
  other.Number<uint64_t>("wide", 10, UINT64_MAX);
  other.Number<double>("f64", 12, 0.5);
  other.Tensor("q", {32, 2}, static_cast<uint32_t>(WeightType::kQ4_0), std::string(36, 'q'));
  seeds.push_back({"other_architecture", other.Bytes(), true, false});
  GgufWriter shard;
  shard.Number<uint16_t>("split.count", 2, 2);
  seeds.push_back({"one_shard", shard.Bytes(), false, false});
  seeds.push_back({"empty", GgufWriter().Bytes(), true, false});
  seeds.push_back({"cut", seeds[0].bytes.substr(0, 300), false, false});
  return seeds;
}

TEST(GgufCorpus, SeedsAreWhatTheirNamesSay) {
  const bool write = std::getenv("KVASIR_WRITE_CORPUS") != nullptr;
  if (write) std::filesystem::create_directories(kFolder);
  for (const Seed& seed : Seeds()) {
    const std::string path = kFolder + seed.name + ".gguf";
    if (write) std::ofstream(path, std::ios::binary) << seed.bytes;
    std::ifstream file(path, std::ios::binary);
    const std::string stored((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(stored, seed.bytes) << path;
    EXPECT_LT(stored.size(), 4096u) << path;
    const auto parsed = GgufFile::Parse(std::as_bytes(std::span(stored)), seed.name);
    EXPECT_EQ(parsed.ok(), seed.parses) << seed.name << ": " << parsed.status().ToString();
    if (!parsed.ok()) continue;
    const auto config = ReadModelConfig(*parsed);
    EXPECT_EQ(config.ok(), seed.served) << seed.name << ": " << config.status().ToString();
  }
}

}  // namespace
}  // namespace kvasir
