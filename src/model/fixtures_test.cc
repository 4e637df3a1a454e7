// Whole models with known answers: the fixtures of make_fixtures.py and the trained stories260K.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "env/thread_pool.h"
#include "model/testing/fixtures.h"
#include "model/testing/forward_driver.h"
#include "model/testing/naive_llama.h"

namespace kvasir {
namespace {

using testing::Fixture;
using testing::ForwardDriver;
using testing::NaiveLlama;

std::unique_ptr<Model> Load(const std::string& path, Executor& executor) {
  auto model = Model::Load(path, executor);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? std::move(model).value() : nullptr;
}

std::vector<int32_t> RefPrompt(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(33 + (7 * i * i + 3 * i) % 94);
  return tokens;
}

// REF_expected.json holds the 32 greedy tokens and the five best log-probabilities of the first,
// computed by transformers in f32 (../shared/cases/README.md).
TEST(Fixtures, RefGivesTheExpectedTokensAndLogProbabilities) {
  const std::string path = Fixture("ref.gguf");
  const std::string expected = testing::Shared("cases/requests/REF_expected.json");
  if (path.empty() || expected.empty()) GTEST_SKIP() << testing::kNoFixtures;
  ThreadPool pool(2);
  const auto model = Load(path, pool);
  ASSERT_NE(model, nullptr);
  std::ifstream file(expected);
  const nlohmann::json rows = nlohmann::json::parse(file);
  ASSERT_FALSE(rows.empty());
  for (const auto& row : rows) {
    const int n = row["n"];
    for (const size_t chunk : {size_t{256}, size_t{64}, size_t{7}}) {
      ForwardDriver driver(*model, Precision::kReference, KvType::kF32, 16, 2, 640, pool);
      const std::vector<float> logits = driver.Prefill(0, RefPrompt(n), chunk);
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      for (const auto& pair : row["first_top5"]) {
        const double log_p = static_cast<double>(logits[pair[0].get<size_t>()]) - std::log(sum);
        EXPECT_NEAR(log_p, pair[1].get<double>(), 3e-4) << "n " << n << " token " << pair[0];
      }
      std::string text;
      for (const int32_t token : driver.Greedy(1, RefPrompt(n), 32, chunk))
        text += static_cast<char>(token);
      EXPECT_EQ(text, row["text"].get<std::string>()) << "n " << n << " chunk " << chunk;
    }
  }
}

TEST(Fixtures, CopyAndChainGiveTheirLastTokensBack) {
  if (Fixture("copy_16.gguf").empty()) GTEST_SKIP() << testing::kNoFixtures;
  ThreadPool pool(2);
  for (const auto& [name, length] :
       std::vector<std::pair<std::string, size_t>>{{"copy_16", 16},
                                                   {"copy_32", 32},
                                                   {"copy_500", 500},
                                                   {"copy_250_ctx256", 250},
                                                   {"chain_32", 32},
                                                   {"chain_500", 500}}) {
    const auto model = Load(Fixture(name + ".gguf"), pool);
    ASSERT_NE(model, nullptr) << name;
    for (const KvType kv : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
      for (const Precision precision : {Precision::kFast, Precision::kReference}) {
        const size_t room =
            std::min<size_t>(length + 40, static_cast<size_t>(model->config().context));
        Rng rng(length);
        std::vector<int32_t> prompt(length + (room > length + 20 ? 10 : 0));
        for (int32_t& token : prompt) token = static_cast<int32_t>(32 + rng.Below(95));
        const int count = static_cast<int>(room - prompt.size());
        ForwardDriver driver(*model, precision, kv, 16, 1, static_cast<int>(room), pool);
        const std::vector<int32_t> out = driver.Greedy(0, prompt, count, 37);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(out[i], prompt[prompt.size() - length + i % length])
              << name << " place " << i << " " << KvTypeName(kv);
        }
      }
    }
  }
}

TEST(Fixtures, EveryHeadSizeEqualsTheNaiveDecoder) {
  if (Fixture("Q01/ref_h40.gguf").empty()) GTEST_SKIP() << testing::kNoFixtures;
  ThreadPool pool(2);
  for (const char* name :
       {"h40", "h48", "h72", "h80", "h96", "h112", "h128", "h256", "k192_v128"}) {
    const auto model = Load(Fixture("Q01/ref_" + std::string(name) + ".gguf"), pool);
    ASSERT_NE(model, nullptr) << name;
    const std::vector<int32_t> prompt = RefPrompt(40);
    const auto expected = NaiveLlama(model->file(), model->config()).Run(prompt);
    ForwardDriver driver(*model, Precision::kReference, KvType::kF32, 16, 1, 64, pool);
    const auto got = driver.Step({{0, prompt, true}});
    double worst = 0;
    for (size_t t = 0; t < prompt.size(); ++t) {
      for (size_t i = 0; i < got[t].size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(got[t][i]) - expected[t][i]));
      }
    }
    EXPECT_LT(worst, 2e-3) << name;
  }
}

// Case T04: files that differ in one thing have different fingerprints; a renamed copy has the
// same.
TEST(Fixtures, FingerprintsTellChangedModelsApart) {
  if (Fixture("T04/m1/model.gguf").empty()) GTEST_SKIP() << testing::kNoFixtures;
  SerialExecutor serial;
  std::vector<uint64_t> prints;
  for (const char* name : {"ref.gguf", "T04/m1/model.gguf", "T04/m2/model.gguf",
                           "T04/rope/model.gguf", "T04/tokenizer/model.gguf"}) {
    const auto model = Load(Fixture(name), serial);
    ASSERT_NE(model, nullptr);
    prints.push_back(model->fingerprint());
  }
  EXPECT_EQ(prints[0], prints[1]);
  for (size_t a = 1; a < prints.size(); ++a) {
    for (size_t b = a + 1; b < prints.size(); ++b) EXPECT_NE(prints[a], prints[b]) << a << " " << b;
  }
}

// stories260K.gguf after token 1 (BOS): 96 greedy tokens and the log-probabilities at position 64,
// computed by transformers 5.19 from this very file in f32 ("Once upon a time, there was a little
// girl named Lily. ..."); the smallest margin between the two best logits is 0.053.
constexpr int32_t kStory[] = {1,   403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395,
                              317, 426, 338, 401, 396, 267, 337, 410, 408, 419, 292, 411, 322, 265,
                              282, 295, 433, 426, 385, 328, 432, 358, 394, 261, 370, 432, 352, 266,
                              268, 388, 426, 338, 391, 266, 267, 337, 335, 312, 432, 398, 312, 286,
                              267, 414, 270, 333, 415, 426, 13,  438, 310, 439, 419, 357, 336, 432,
                              313, 438, 310, 432, 278, 316, 439, 419, 298, 414, 267, 265, 282, 295,
                              433, 426, 436, 317, 286, 296, 418, 269, 279, 292, 416, 439, 413};
constexpr std::pair<int, double> kStoryTop5[] = {
    {439, -1.76234}, {391, -2.00076}, {261, -2.40237}, {286, -2.41454}, {279, -2.47977}};

TEST(Fixtures, Stories260KTellsTheExpectedStory) {
  const std::string path = testing::Shared("models/stories260K.gguf");
  if (path.empty()) GTEST_SKIP() << "SKIPPED: ../shared/models/stories260K.gguf is absent";
  ThreadPool pool(2);
  const auto model = Load(path, pool);
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> expected(std::begin(kStory) + 1, std::end(kStory));
  const auto count = static_cast<int>(expected.size());
  for (const Precision precision :
       {Precision::kReference, Precision::kExact, Precision::kDefault}) {
    ForwardDriver driver(*model, precision, KvType::kF32, 16, 2, 256, pool);
    EXPECT_EQ(driver.Greedy(0, {1}, count), expected) << static_cast<int>(precision);
  }
  ForwardDriver driver(*model, Precision::kReference, KvType::kF32, 8, 1, 256, pool);
  const std::vector<float> logits =
      driver.Prefill(0, {std::begin(kStory), std::begin(kStory) + 65}, 9);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (const auto& [token, log_p] : kStoryTop5) {
    EXPECT_NEAR(static_cast<double>(logits[static_cast<size_t>(token)]) - std::log(sum), log_p,
                2e-4);
  }
}

}  // namespace
}  // namespace kvasir
