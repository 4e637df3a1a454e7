#include "model/forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "env/thread_pool.h"
#include "kernels/isa.h"
#include "model/testing/forward_driver.h"
#include "model/testing/naive_llama.h"
#include "model/testing/temp_folder.h"
#include "model/testing/tiny_llama.h"

namespace kvasir {
namespace {

using testing::Feed;
using testing::ForwardDriver;
using testing::MakeTinyLlama;
using testing::NaiveLlama;
using testing::TempFolder;
using testing::TinyLlama;

std::unique_ptr<Model> Load(const TinyLlama& shape, const TempFolder& folder, Executor& executor) {
  MakeTinyLlama(shape).Write(folder / "m.gguf");
  auto model = Model::Load(folder / "m.gguf", executor);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? std::move(model).value() : nullptr;
}

std::vector<int32_t> RandomTokens(size_t count, int vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab)));
  return tokens;
}

// KL divergence of softmax(b) from softmax(a).
double Divergence(const std::vector<double>& a, const std::vector<float>& b) {
  double most_a = -1e300, most_b = -1e300, sum_a = 0, sum_b = 0, kl = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most_a = std::max(most_a, a[i]);
    most_b = std::max(most_b, static_cast<double>(b[i]));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    sum_a += std::exp(a[i] - most_a);
    sum_b += std::exp(static_cast<double>(b[i]) - most_b);
  }
  for (size_t i = 0; i < a.size(); ++i) {
    const double log_a = a[i] - most_a - std::log(sum_a);
    kl += std::exp(log_a) * (log_a - (static_cast<double>(b[i]) - most_b - std::log(sum_b)));
  }
  return kl;
}

TinyLlama Shape(WeightType type) {
  TinyLlama shape;
  shape.type = shape.v_type = type;
  // Rows of 256 for the K types, of 64 else.
  const bool wide = GetWeightType(type).block_elements == 256;
  if (wide)
    shape = {.layers = 2,
             .hidden = 256,
             .ff = 256,
             .heads = 8,
             .kv_heads = 2,
             .k_dim = 32,
             .v_dim = 32,
             .vocab = 300,
             .type = type,
             .v_type = type};
  return shape;
}

// How far logits are from the plain double-precision decoder's, relative to 1 + their size: the
// worst of each position, and of those the mean and the worst. With f32 activations and an f32
// cache only rounding differs: sums of 256 f32 products give about 1e-6, which a softmax over large
// and nearly equal scores may multiply by 100 at single positions of such random models.
struct Distance {
  double mean = 0;
  double worst = 0;
};
Distance Compare(const std::vector<std::vector<double>>& expected,
                 const std::vector<std::vector<float>>& got) {
  Distance distance;
  EXPECT_EQ(expected.size(), got.size());
  for (size_t t = 0; t < got.size(); ++t) {
    double worst = 0;
    for (size_t i = 0; i < got[t].size(); ++i) {
      const double error = std::abs(expected[t][i] - static_cast<double>(got[t][i]));
      worst = std::max(worst, error / (1 + std::abs(expected[t][i])));
      EXPECT_TRUE(std::isfinite(got[t][i]));
    }
    distance.mean += worst / static_cast<double>(got.size());
    distance.worst = std::max(distance.worst, worst);
  }
  return distance;
}

TEST(Forward, EqualsTheNaiveDecoderForEveryWeightType) {
  ThreadPool pool(2);
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kBf16, WeightType::kQ8_0, WeightType::kQ4_0,
        WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kQ4_K,
        WeightType::kQ5_K, WeightType::kQ6_K}) {
    TempFolder folder;
    const auto model = Load(Shape(type), folder, pool);
    ASSERT_NE(model, nullptr);
    const std::vector<int32_t> tokens = RandomTokens(21, model->config().vocab, 11);
    const auto expected = NaiveLlama(model->file(), model->config()).Run(tokens);
    ForwardDriver driver(*model, Precision::kReference, KvType::kF32, 8, 1, 64, pool);
    const auto got = driver.Step({{0, tokens, true}});
    const Distance distance = Compare(expected, got);
    EXPECT_LT(distance.mean, 4e-5) << GetWeightType(type).name;
    EXPECT_LT(distance.worst, 5e-4) << GetWeightType(type).name;
  }
}

struct Variant {
  const char* name;
  TinyLlama shape;
};

const std::vector<Variant>& Variants() {
  static const std::vector<Variant> kVariants = {
      {"tied", {.tied = true}},
      {"biases", {.biases = true}},
      {"mixed types", {.type = WeightType::kQ8_0, .v_type = WeightType::kQ4_0}},
      {"one KV head", {.kv_heads = 1}},
      {"as many KV heads as heads", {.kv_heads = 4}},
      {"K wider than V", {.k_dim = 24, .v_dim = 8}},
      {"odd sizes",
       {.hidden = 40, .ff = 52, .heads = 5, .kv_heads = 5, .k_dim = 10, .v_dim = 10, .vocab = 259}},
  };
  return kVariants;
}

TEST(Forward, EqualsTheNaiveDecoderForEveryShape) {
  SerialExecutor serial;
  for (const Variant& variant : Variants()) {
    TempFolder folder;
    const auto model = Load(variant.shape, folder, serial);
    ASSERT_NE(model, nullptr) << variant.name;
    const std::vector<int32_t> tokens = RandomTokens(33, model->config().vocab, 12);
    const auto expected = NaiveLlama(model->file(), model->config()).Run(tokens);
    ForwardDriver driver(*model, Precision::kReference, KvType::kF32, 16, 1, 64, serial);
    // Half as a chunk, the rest token by token.
    auto got = driver.Step({{0, {tokens.begin(), tokens.begin() + 17}, true}});
    for (size_t t = 17; t < tokens.size(); ++t)
      got.push_back(driver.Step({{0, {tokens[t]}}}).front());
    const Distance distance = Compare(expected, got);
    EXPECT_LT(distance.mean, 4e-5) << variant.name;
    EXPECT_LT(distance.worst, 5e-4) << variant.name;
  }
}

TEST(Forward, FasterPrecisionsStayCloseAndOrdered) {
  ThreadPool pool(2);
  TempFolder folder;
  const auto model = Load(Shape(WeightType::kQ8_0), folder, pool);
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> tokens = RandomTokens(64, model->config().vocab, 13);
  const auto expected = NaiveLlama(model->file(), model->config()).Run(tokens);
  const auto mean = [&](Precision precision) {
    ForwardDriver driver(*model, precision, KvType::kF32, 16, 1, 64, pool);
    const auto got = driver.Step({{0, tokens, true}});
    double sum = 0;
    for (size_t t = 0; t < tokens.size(); ++t) sum += Divergence(expected[t], got[t]);
    return sum / static_cast<double>(tokens.size());
  };
  const double exact = mean(Precision::kExact);
  const double plain = mean(Precision::kDefault);
  EXPECT_LT(mean(Precision::kReference), 1e-8);
  EXPECT_LT(exact, 1e-4);
  EXPECT_LT(plain, 3e-2);  // random weights: no trained network is as sensitive
  EXPECT_LT(mean(Precision::kFast), 3e-2);
  EXPECT_LT(exact, plain);
}

// Promise 3: the logits of a row are the same bits whatever else is in the call, however the prompt
// was cut, wherever its blocks lie and with any number of threads.
TEST(Forward, SameBitsInAnyCutAndCompany) {
  ThreadPool four(4);
  SerialExecutor serial;
  const uint64_t seed = 20260101;
  for (const Precision precision :
       {Precision::kFast, Precision::kDefault, Precision::kExact, Precision::kReference}) {
    for (const KvType kv : {KvType::kF16, KvType::kF32}) {
      TinyLlama shape = Shape(WeightType::kQ4_0);
      shape.v_type = WeightType::kQ8_0;
      TempFolder folder;
      const auto model = Load(shape, folder, four);
      ASSERT_NE(model, nullptr);
      constexpr size_t kTokens = 180;
      const std::vector<int32_t> tokens = RandomTokens(kTokens, shape.vocab, seed);
      ForwardDriver whole(*model, precision, kv, 16, 1, 256, serial);
      const auto expected = whole.Step({{0, tokens, true}});
      Rng rng(seed);
      for (int round = 0; round < 4; ++round) {
        const int block = 8 << round;
        ForwardDriver mixed(*model, precision, kv, block, 5, 256,
                            round % 2 == 0 ? static_cast<Executor&>(four) : serial);
        size_t at = 0;
        while (at < kTokens) {
          const size_t n =
              std::min<size_t>(1 + rng.Below(rng.Below(3) == 0 ? 60 : 5), kTokens - at);
          std::vector<Feed> feeds;
          for (int s = 1; s < 5;
               ++s) {  // neighbours of random length, some before and some after ours
            if (s == 3)
              feeds.push_back({0,
                               {tokens.begin() + static_cast<int64_t>(at),
                                tokens.begin() + static_cast<int64_t>(at + n)},
                               true});
            if (rng.Below(2) == 0)
              feeds.push_back({s, RandomTokens(1 + rng.Below(2), shape.vocab, rng.Next())});
          }
          const auto got = mixed.Step(feeds);
          size_t first = 0;
          for (const Feed& feed : feeds) {
            if (feed.sequence == 0) break;
            ++first;
          }
          for (size_t i = 0; i < n; ++i) {
            ASSERT_EQ(std::memcmp(got[first + i].data(), expected[at + i].data(),
                                  expected[at].size() * sizeof(float)),
                      0)
                << "position " << at + i << " round " << round << " precision "
                << static_cast<int>(precision) << " seed " << seed;
          }
          at += n;
        }
      }
    }
  }
}

// With KVASIR_ISA these tests run on that set and no other (tests/with_isa.sh).
TEST(InstructionSet, IsTheOneAskedFor) {
  ASSERT_TRUE(CheckIsaEnvironment().ok()) << CheckIsaEnvironment().message();
  const char* wanted = std::getenv("KVASIR_ISA");
  const bool asked = wanted != nullptr && *wanted != '\0';
  EXPECT_EQ(IsaName(CurrentIsa()), asked ? wanted : IsaName(BestIsa()));
}

// Five parallel regions for a layer of one row (QKV, attention, its output, gate-up, down), so
// threads meet that often and no more; the head adds one.
TEST(Forward, FewBarriersALayer) {
  class Counting final : public Executor {
   public:
    int workers() const override { return 2; }
    void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override {
      ++calls;
      for (size_t part = 0; part < parts; ++part) body(part, static_cast<int>(part % 2));
    }
    int calls = 0;
  };
  Counting counting;
  TempFolder folder;
  TinyLlama shape = Shape(WeightType::kQ4_0);
  shape.layers = 3;
  shape.hidden = 576;  // large enough that everything is worth sharing out
  shape.ff = 1536;
  shape.heads = 9;
  shape.kv_heads = 3;
  shape.k_dim = shape.v_dim = 64;
  const auto model = Load(shape, folder, counting);
  ASSERT_NE(model, nullptr);
  ForwardDriver driver(*model, Precision::kDefault, KvType::kF16, 16, 1, 64, counting);
  driver.Step({{0, RandomTokens(9, shape.vocab, 3), true}});
  counting.calls = 0;
  driver.Step({{0, RandomTokens(1, shape.vocab, 4), true}});
  const int layers = static_cast<int>(model->layers.size());
  std::printf("%d parallel regions for %d layers\n", counting.calls, layers);
  EXPECT_GE(counting.calls, 4 * layers);
  EXPECT_LE(counting.calls, 5 * layers + 2);
}

TEST(Forward, RefusesTokensAndPositionsOutOfRange) {
  SerialExecutor serial;
  TempFolder folder;
  const auto model = Load({}, folder, serial);
  ASSERT_NE(model, nullptr);
  EXPECT_FALSE(ForwardPass::Make(*model, {Precision::kFast, 0, 10, {}, nullptr}, serial).ok());
  EXPECT_FALSE(ForwardPass::Make(*model, {Precision::kFast, 1, 0, {}, nullptr}, serial).ok());
  ForwardDriver driver(*model, Precision::kFast, KvType::kF16, 16, 1, 32, serial);
  const auto run = [&](int32_t token, int32_t position) {
    const AttentionSpanOfSequence span{driver.cache().table(0), position, 1, 0};
    const ForwardInput input{{&token, 1}, {&position, 1}, {&span, 1}, driver.cache().layers(), {}};
    return driver.pass().Run(input, [](int, int, float*) { FAIL() << "no logits were asked for"; });
  };
  EXPECT_TRUE(run(0, 0).ok());
  EXPECT_EQ(run(-1, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(300, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(0, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(0, 32).code(), StatusCode::kInvalidArgument);
  const ForwardInput nothing{{}, {}, {}, driver.cache().layers(), {}};
  EXPECT_TRUE(driver.pass().Run(nothing, [](int, int, float*) {}).ok());
  EXPECT_GT(driver.pass().scratch_bytes(), 1000u);
}

}  // namespace
}  // namespace kvasir
