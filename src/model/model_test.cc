#include "model/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/sanitizer.h"
#include "env/machine.h"
#include "env/thread_pool.h"
#include "model/testing/temp_folder.h"
#include "model/testing/tiny_llama.h"

namespace kvasir {
namespace {

using testing::GgufWriter;
using testing::MakeTinyLlama;
using testing::TempFolder;
using testing::TinyLlama;

Result<ModelConfig> Config(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "test.gguf");
  if (!file.ok()) return file.status();
  return ReadModelConfig(*file);
}

void ExpectRefused(const GgufWriter& writer, StatusCode code,
                   std::initializer_list<const char*> words) {
  const Status status = Config(writer).status();
  ASSERT_FALSE(status.ok()) << *words.begin();
  EXPECT_EQ(status.code(), code) << status.message();
  for (const char* word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos)
        << "'" << word << "' in: " << status.message();
  }
}

// A header with the tiny model's tensors but keys of the test's choosing.
struct Keys {
  uint32_t layers = 2, hidden = 64, ff = 96, heads = 4, context = 512;
  bool sizes = true;  // head_count_kv, key_length, value_length, rope.dimension_count
};
GgufWriter WithKeys(const Keys& keys, const std::function<void(GgufWriter&)>& more = {}) {
  GgufWriter w;
  w.String("general.architecture", "llama");
  w.U32("llama.block_count", keys.layers);
  w.U32("llama.embedding_length", keys.hidden);
  w.U32("llama.context_length", keys.context);
  w.U32("llama.feed_forward_length", keys.ff);
  w.U32("llama.attention.head_count", keys.heads);
  if (keys.sizes) w.U32("llama.attention.head_count_kv", 2);
  w.F32("llama.attention.layer_norm_rms_epsilon", 1e-6F);
  if (more) more(w);
  Rng rng(1);
  const auto add = [&](const std::string& name, std::vector<int64_t> dims) {
    w.RandomTensor(name, dims, WeightType::kF32, 0.1, rng);
  };
  const int64_t kv = keys.sizes ? 32 : 64;
  add("token_embd.weight", {64, 300});
  add("output_norm.weight", {64});
  for (const char* p : {"blk.0.", "blk.1."}) {
    const std::string prefix(p);
    add(prefix + "attn_norm.weight", {64});
    add(prefix + "attn_q.weight", {64, 64});
    add(prefix + "attn_k.weight", {64, kv});
    add(prefix + "attn_v.weight", {64, kv});
    add(prefix + "attn_output.weight", {64, 64});
    add(prefix + "ffn_norm.weight", {64});
    add(prefix + "ffn_gate.weight", {64, 96});
    add(prefix + "ffn_up.weight", {64, 96});
    add(prefix + "ffn_down.weight", {96, 64});
  }
  return w;
}

TEST(ModelConfig, DefaultsComeFromTheFormat) {
  const auto config = Config(WithKeys({.sizes = false}));
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->kv_heads, 4);  // as many as heads
  EXPECT_EQ(config->k_dim, 16);
  EXPECT_EQ(config->v_dim, 16);
  EXPECT_EQ(config->rope_dims, 16);
  EXPECT_EQ(config->rope_base, 10000.0);
  EXPECT_EQ(config->vocab, 300);
  EXPECT_TRUE(config->tied_output);
  EXPECT_EQ(config->rope_scaling, RopeScaling::kNone);
  ASSERT_EQ(config->cache.size(), 2u);
  EXPECT_EQ(config->cache[1].kind, LayerCacheKind::kFull);
  EXPECT_EQ(config->cache[1].kv_heads, 4);
  EXPECT_EQ(config->cache[1].k_dim, 16);
  EXPECT_NEAR(config->RopeSteps()[1], std::pow(10000.0, -2.0 / 16), 1e-15);
  EXPECT_TRUE(config->notes.empty());
}

TEST(ModelConfig, RopeScalingKinds) {
  const auto steps = [](const std::function<void(GgufWriter&)>& more) {
    const auto config = Config(WithKeys({}, more));
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    return config.ok() ? config->RopeSteps() : std::vector<double>(8);
  };
  const std::vector<double> plain = steps({});
  const auto linear = steps([](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "linear");
    w.F32("llama.rope.scaling.factor", 4.0F);
  });
  const auto old_linear = steps([](GgufWriter& w) { w.F32("llama.rope.scale_linear", 4.0F); });
  const auto none = steps([](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "none");
    w.F32("llama.rope.scaling.factor", 4.0F);
  });
  std::vector<float> divisors = {1, 1, 1.5, 2, 8, 8, 8, 8};
  const auto tensor = steps([&](GgufWriter& w) {
    std::string data;
    for (const float d : divisors) GgufWriter::Put(data, d);
    w.Tensor("rope_freqs.weight", {8}, 0, data);
  });
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_DOUBLE_EQ(linear[i], plain[i] / 4);
    EXPECT_DOUBLE_EQ(old_linear[i], plain[i] / 4);
    EXPECT_DOUBLE_EQ(none[i], plain[i]);
    EXPECT_DOUBLE_EQ(tensor[i], plain[i] / static_cast<double>(divisors[i]));
  }
}

// The numbers Hugging Face transformers computes for base 10,000, 16 dimensions, factor 8, low 1,
// high 4, original length 64 (modeling_rope_utils._compute_llama3_parameters, run once).
TEST(ModelConfig, Llama3ScalingFromKeys) {
  const auto config = Config(WithKeys({}, [](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "llama3");
    w.F32("llama.rope.scaling.factor", 8.0F);
    w.F32("llama.rope.scaling.low_freq_factor", 1.0F);
    w.F32("llama.rope.scaling.high_freq_factor", 4.0F);
    w.U32("llama.rope.scaling.original_context_length", 64);
  }));
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->rope_scaling, RopeScaling::kLlama3);
  const std::vector<double> steps = config->RopeSteps();
  // clang-format off
  const double expected[] = {1, 0.244384587, 0.0130422562, 0.00395284733, 0.00124999997, 0.000395284733, 0.000125000006, 3.95284733e-05};
  // clang-format on
  ASSERT_EQ(steps.size(), std::size(expected));
  for (size_t i = 0; i < steps.size(); ++i)
    EXPECT_NEAR(steps[i], expected[i], 1e-6 * expected[i]) << i;
}

TEST(ModelConfig, PerLayerArraysMustAgree) {
  const auto with = [](std::vector<int32_t> kv) {
    return WithKeys({.sizes = false},
                    [&](GgufWriter& w) { w.Numbers("llama.attention.head_count_kv", 5, kv); });
  };
  // The tensors are those of four KV heads.
  const auto config = Config(with({4, 4}));
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->kv_heads, 4);
  ExpectRefused(with({4, 2}), StatusCode::kUnimplemented, {"head_count_kv", "differ"});
  ExpectRefused(with({4}), StatusCode::kDataLoss, {"head_count_kv", "2 layers"});
  ExpectRefused(with({4, 0}), StatusCode::kDataLoss, {"head_count_kv", "limit 1"});
}

TEST(ModelConfig, RefusesNumbersByNameAndLimit) {
  ExpectRefused(WithKeys({.layers = 2000}), StatusCode::kDataLoss,
                {"block_count", "2000", "limit 1 to 1024"});
  ExpectRefused(WithKeys({.hidden = 0}), StatusCode::kDataLoss, {"embedding_length", "limit"});
  ExpectRefused(WithKeys({.ff = 0xFFFFFFFF}), StatusCode::kDataLoss,
                {"feed_forward_length", "4294967295"});
  ExpectRefused(WithKeys({.context = 0}), StatusCode::kDataLoss, {"context_length"});
  ExpectRefused(WithKeys({.heads = 3}), StatusCode::kDataLoss, {"key_length", "head_count 3"});
  const auto plus = [](const std::function<void(GgufWriter&)>& more) { return WithKeys({}, more); };
  ExpectRefused(plus([](auto& w) { w.U32("llama.rope.dimension_count", 15); }),
                StatusCode::kDataLoss, {"rope.dimension_count", "15", "even"});
  ExpectRefused(plus([](auto& w) { w.U32("llama.rope.dimension_count", 18); }),
                StatusCode::kDataLoss, {"rope.dimension_count", "18", "at most"});
  ExpectRefused(plus([](auto& w) { w.F32("llama.rope.freq_base", -1.0F); }), StatusCode::kDataLoss,
                {"freq_base"});
  ExpectRefused(plus([](auto& w) { w.F32("llama.rope.freq_base", NAN); }), StatusCode::kDataLoss,
                {"freq_base"});
  ExpectRefused(plus([](auto& w) { w.U32("llama.rope.freq_base", 10000); }), StatusCode::kDataLoss,
                {"freq_base", "uint32"});
  ExpectRefused(plus([](auto& w) { w.F32("llama.rope.scaling.factor", 0.0F); }),
                StatusCode::kDataLoss, {"scaling.factor"});
  ExpectRefused(plus([](auto& w) { w.U32("llama.attention.value_length", 5000); }),
                StatusCode::kDataLoss, {"value_length"});
  ExpectRefused(plus([](auto& w) {
                  w.Strings("tokenizer.ggml.tokens", {"a", "b"});
                }),
                StatusCode::kDataLoss, {"token_embd.weight", "64 x 300", "64 x 2"});
}

TEST(ModelConfig, RefusesWhatIsNotServedByName) {
  const auto plus = [](const std::function<void(GgufWriter&)>& more) { return WithKeys({}, more); };
  constexpr auto kNo = StatusCode::kUnimplemented;
  ExpectRefused(plus([](auto& w) { w.U32("llama.expert_count", 8); }), kNo,
                {"expert_count", "experts"});
  ExpectRefused(plus([](auto& w) { w.String("llama.rope.scaling.type", "yarn"); }), kNo,
                {"yarn", "none, linear, llama3"});
  ExpectRefused(plus([](auto& w) { w.F32("llama.logit_scale", 2.0F); }), kNo, {"logit_scale"});
  ExpectRefused(plus([](auto& w) { w.Bool("llama.attention.causal", false); }), kNo, {"causal"});
  ExpectRefused(plus([](auto& w) { w.U32("llama.attention.sliding_window", 128); }), kNo,
                {"sliding"});
  ExpectRefused(plus([](auto& w) { w.String("general.type", "adapter"); }), kNo,
                {"general.type", "adapter"});
  EXPECT_TRUE(Config(plus([](auto& w) { w.U32("llama.expert_count", 0); })).ok());
  EXPECT_TRUE(Config(plus([](auto& w) { w.U32("llama.attention.sliding_window", 512); })).ok());
  GgufWriter w;
  w.String("general.architecture", "mamba");
  ExpectRefused(w, kNo, {"general.architecture", "'mamba'", "served: llama"});
  ExpectRefused(GgufWriter(), StatusCode::kDataLoss, {"general.architecture", "missing"});
}

TEST(ModelConfig, TensorsAreCheckedByName) {
  GgufWriter missing = MakeTinyLlama({});
  ASSERT_TRUE(missing.RemoveTensor("blk.1.ffn_up.weight"));
  ExpectRefused(missing, StatusCode::kDataLoss, {"blk.1.ffn_up.weight", "missing", "64 x 96"});
  GgufWriter extra = MakeTinyLlama({});
  extra.Tensor("v.patch_embd.weight", {2}, 0, "12345678");
  extra.Tensor("blk.7.attn_q.weight", {2}, 0, "12345678");  // beyond the layers
  const auto config = Config(extra);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->notes.size(), 2u);
  EXPECT_NE(config->notes[0].find("v.patch_embd.weight"), std::string::npos);
  GgufWriter changes = MakeTinyLlama({});
  changes.Tensor("blk.1.attn_q_norm.weight", {2}, 0, "12345678");
  ExpectRefused(changes, StatusCode::kUnimplemented, {"blk.1.attn_q_norm.weight"});
  GgufWriter bias = MakeTinyLlama({});
  bias.Tensor("blk.0.attn_q.bias", {2}, 0, "12345678");
  ExpectRefused(bias, StatusCode::kDataLoss, {"blk.0.attn_q.bias", "shape 2", "64"});
}

// -------------------------------------------------------------------------------------------
// loading

TEST(Model, LoadsWithProgressAndLeavesNoSecondCopy) {
  ThreadPool pool(2);
  TempFolder folder;
  // 24 MiB of weights.
  MakeTinyLlama({.layers = 4,
                 .hidden = 512,
                 .ff = 2048,
                 .heads = 8,
                 .kv_heads = 4,
                 .k_dim = 64,
                 .v_dim = 64,
                 .vocab = 2000,
                 .type = WeightType::kQ8_0,
                 .v_type = WeightType::kQ8_0})
      .Write(folder / "m.gguf");
  const auto file_bytes = std::filesystem::file_size(folder / "m.gguf");
  std::vector<double> fractions;
  const uint64_t before = ResidentBytes();
  const auto model =
      Model::Load(folder / "m.gguf", pool, [&](double f) { fractions.push_back(f); });
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  ASSERT_FALSE(fractions.empty());
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_GT(fractions.front(), 0.0);
  EXPECT_EQ(fractions.back(), 1.0);
  EXPECT_GT((*model)->weight_bytes(), file_bytes * 9 / 10);
  EXPECT_LT((*model)->weight_bytes(), file_bytes * 13 / 10);
  if (!kSanitized) {
    EXPECT_LT(ResidentBytes() - before, (*model)->weight_bytes() + file_bytes / 4);
  }
}

TEST(Model, StacksWhatAgreesInType) {
  SerialExecutor serial;
  TempFolder folder;
  MakeTinyLlama({}).Write(folder / "same.gguf");
  MakeTinyLlama({.v_type = WeightType::kF16, .biases = true}).Write(folder / "mixed.gguf");
  const auto same = Model::Load(folder / "same.gguf", serial);
  const auto mixed = Model::Load(folder / "mixed.gguf", serial);
  ASSERT_TRUE(same.ok() && mixed.ok());
  EXPECT_EQ((*same)->layers[0].qkv.size(), 1u);
  EXPECT_EQ((*same)->layers[0].qkv[0].rows(), 64 + 32 + 32);
  EXPECT_EQ((*same)->layers[0].gate_up.size(), 1u);
  EXPECT_TRUE((*same)->layers[0].qkv_bias.empty());
  EXPECT_EQ((*mixed)->layers[0].qkv.size(), 3u);
  EXPECT_EQ((*mixed)->layers[0].gate_up.size(), 2u);
  EXPECT_EQ((*mixed)->layers[0].qkv_bias.size(), 128u);
  EXPECT_EQ((*mixed)->output_bias.size(), 300u);
}

TEST(Model, FingerprintFollowsEverythingThatMatters) {
  ThreadPool pool(3);
  SerialExecutor serial;
  TempFolder folder;
  const auto print = [&](const GgufWriter& writer, Executor& executor) {
    writer.Write(folder / "m.gguf");
    const auto model = Model::Load(folder / "m.gguf", executor);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return model.ok() ? (*model)->fingerprint() : 0;
  };
  const uint64_t base = print(MakeTinyLlama({}), serial);
  EXPECT_EQ(base, print(MakeTinyLlama({}), pool));
  // One bit of one weight, anywhere.
  std::string bytes = MakeTinyLlama({}).Bytes();
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
  std::ofstream(folder / "bit.gguf", std::ios::binary) << bytes;
  const auto bit = Model::Load(folder / "bit.gguf", serial);
  ASSERT_TRUE(bit.ok());
  EXPECT_NE((*bit)->fingerprint(), base);
  // Two tokens swapped, another epsilon, another context length (which changes nothing that is
  // computed).
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = MakeTinyLlama({}).Bytes();
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    text.replace(at, to.size(), to);
    std::ofstream(folder / "m.gguf", std::ios::binary) << text;
    const auto model = Model::Load(folder / "m.gguf", serial);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return model.ok() ? (*model)->fingerprint() : 0;
  };
  EXPECT_NE(replaced("<|extra260|>", "<|extra999|>"), base);
  const auto number = [](uint32_t type, auto value) {
    std::string text;
    GgufWriter::Put(text, type);
    GgufWriter::Put(text, value);
    return text;
  };
  EXPECT_NE(replaced("freq_base" + number(6, 10000.0F), "freq_base" + number(6, 20000.0F)), base);
  EXPECT_NE(replaced("rms_epsilon" + number(6, 1e-5F), "rms_epsilon" + number(6, 2e-5F)), base);
  EXPECT_EQ(replaced("context_length" + number(4, uint32_t{512}),
                     "context_length" + number(4, uint32_t{640})),
            base);
  EXPECT_EQ(replaced("tiny", "huge"), base);  // general.name
}

TEST(Model, FailuresNameTheFile) {
  SerialExecutor serial;
  TempFolder folder;
  EXPECT_EQ(Model::Load(folder / "none.gguf", serial).status().code(), StatusCode::kNotFound);
  std::ofstream(folder / "bad.gguf") << "GGUF";
  const Status status = Model::Load(folder / "bad.gguf", serial).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message().rfind(folder / "bad.gguf", 0), 0u) << status.message();
}

}  // namespace
}  // namespace kvasir
