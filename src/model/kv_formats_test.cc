// Whole models over every pair of cache formats (cases Q01 and Q03): log-probabilities near those
// of an f16 cache, no decay with length, and the same bits in chunks as token by token.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "base/hash.h"
#include "env/thread_pool.h"
#include "model/testing/fixtures.h"
#include "model/testing/forward_driver.h"

namespace kvasir {
namespace {

using testing::Fixture;
using testing::ForwardDriver;

// budget: mean difference of log-probabilities against f16 on the fixture `ref`, whose random
// attention is sharp: for the trend, not for the level of real models (quant.md).
struct Format {
  KvPair pair;
  double budget;
};
constexpr Format kFormats[] = {{{KvType::kI8, KvType::kI8}, 0.045},
                               {{KvType::kI8, KvType::kI4}, 0.3},
                               {{KvType::kI4, KvType::kI4}, 0.7},
                               {{KvType::kFp8E4M3, KvType::kFp8E4M3}, 0.3},
                               {{KvType::kFp8E5M2, KvType::kFp8E5M2}, 0.7}};

std::string Name(KvPair pair) {
  return std::string(KvTypeName(pair.k)) + "/" + std::string(KvTypeName(pair.v));
}

std::unique_ptr<Model> Load(const std::string& path, Executor& executor) {
  auto model = Model::Load(path, executor);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? std::move(model).value() : nullptr;
}

std::vector<int32_t> Prompt(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(33 + (7 * i * i + 3 * i) % 94);
  return tokens;
}

double LogProbability(const std::vector<float>& logits, int32_t token) {
  double most = logits[0];
  for (const float x : logits) most = std::max(most, static_cast<double>(x));
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - most);
  return logits[static_cast<size_t>(token)] - most - std::log(sum);
}

// |log p| differences of `tokens` after `prompt` between two caches, fed the same.
std::vector<double> Differences(const Model& model, KvPair pair, const std::vector<int32_t>& prompt,
                                const std::vector<int32_t>& tokens, Executor& executor) {
  const auto room = static_cast<int>(prompt.size() + tokens.size());
  ForwardDriver one(model, Precision::kReference, KvType::kF16, 16, 1, room, executor);
  ForwardDriver two(model, Precision::kReference, pair, 16, 1, room, executor);
  std::vector<double> out;
  std::vector<float> a = one.Prefill(0, prompt, 64);
  std::vector<float> b = two.Prefill(0, prompt, 64);
  for (const int32_t token : tokens) {
    out.push_back(std::fabs(LogProbability(a, token) - LogProbability(b, token)));
    if (out.size() == tokens.size()) break;
    a = one.Step({{0, {token}}}).front();
    b = two.Step({{0, {token}}}).front();
  }
  return out;
}

double Mean(const std::vector<double>& x, size_t first, size_t last) {
  double sum = 0;
  for (size_t i = first; i < last; ++i) sum += x[i];
  return sum / static_cast<double>(last - first);
}

// Q01: heads of sizes that no block of 32 divides, and K wider than V: 200 tokens.
TEST(KvFormats, EveryHeadSizeStaysNearF16) {
  if (Fixture("Q01/ref_h40.gguf").empty()) GTEST_SKIP() << testing::kNoFixtures;
  ThreadPool pool(2);
  for (const char* name :
       {"h40", "h48", "h72", "h80", "h96", "h112", "h128", "h256", "k192_v128"}) {
    const auto model = Load(Fixture("Q01/ref_" + std::string(name) + ".gguf"), pool);
    ASSERT_NE(model, nullptr) << name;
    const std::vector<int32_t> prompt = Prompt(40);
    ForwardDriver f16(*model, Precision::kReference, KvType::kF16, 16, 1, 240, pool);
    const std::vector<int32_t> tokens = f16.Greedy(0, prompt, 200);
    for (const auto& [pair, budget] : kFormats) {
      const double mean = Mean(Differences(*model, pair, prompt, tokens, pool), 0, 200);
      std::printf("%-10s %-18s mean |difference| %.5f\n", name, Name(pair).c_str(), mean);
      EXPECT_LT(mean, budget) << name << " " << Name(pair);
    }
  }
}

// Q03: the difference does not grow with the length of what was generated.
TEST(KvFormats, QualityDoesNotDecayWithLength) {
  if (Fixture("ref.gguf").empty()) GTEST_SKIP() << testing::kNoFixtures;
  ThreadPool pool(2);
  const auto model = Load(Fixture("ref.gguf"), pool);
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> prompt = Prompt(64);
  ForwardDriver f16(*model, Precision::kReference, KvType::kF16, 16, 1, 576, pool);
  const std::vector<int32_t> tokens = f16.Greedy(0, prompt, 512);
  for (const auto& [pair, budget] : kFormats) {
    const std::vector<double> off = Differences(*model, pair, prompt, tokens, pool);
    const double first = Mean(off, 0, 32);
    const double middle = Mean(off, 32, 128);
    const double last = Mean(off, 128, 512);
    std::printf("%-18s tokens 1-32 %.5f, 33-128 %.5f, 129-512 %.5f\n", Name(pair).c_str(), first,
                middle, last);
    EXPECT_LE(last, 2 * first) << Name(pair);
    EXPECT_LT(Mean(off, 0, off.size()), budget) << Name(pair);
  }
}

// Q03: what stood hundreds of tokens ago is found again.
TEST(KvFormats, CopiesFromFarBack) {
  if (Fixture("copy_500.gguf").empty()) GTEST_SKIP() << testing::kNoFixtures;
  ThreadPool pool(2);
  for (const auto& [name, length] : {std::pair{"copy_32", 32}, {"copy_500", 500}}) {
    const auto model = Load(Fixture(std::string(name) + ".gguf"), pool);
    ASSERT_NE(model, nullptr);
    for (const auto& [pair, budget] : kFormats) {
      Rng rng(static_cast<uint64_t>(length));
      std::vector<int32_t> prompt(static_cast<size_t>(length) + 10);
      for (int32_t& token : prompt) token = static_cast<int32_t>(32 + rng.Below(95));
      ForwardDriver driver(*model, Precision::kReference, pair, 16, 1, length + 40, pool);
      const std::vector<int32_t> out = driver.Greedy(0, prompt, 30, 37);
      int right = 0;
      for (size_t i = 0; i < out.size(); ++i) right += out[i] == prompt[10 + i] ? 1 : 0;
      EXPECT_EQ(right, 30) << name << " " << Name(pair);
    }
  }
}

// Promise 2: a token's logits are the same bits whether it came in a chunk or alone.
TEST(KvFormats, ChunksGiveTheBitsOfSingleTokens) {
  const std::string path = testing::Shared("models/stories260K.gguf");
  if (path.empty()) GTEST_SKIP() << testing::kNoFixtures;
  ThreadPool pool(3);
  const auto model = Load(path, pool);
  ASSERT_NE(model, nullptr);
  Rng rng(5);
  std::vector<int32_t> tokens(330);
  for (int32_t& token : tokens) token = static_cast<int32_t>(3 + rng.Below(400));
  for (const auto& [pair, budget] : kFormats) {
    ForwardDriver alone(*model, Precision::kDefault, pair, 16, 1, 330, pool);
    ForwardDriver chunks(*model, Precision::kDefault, pair, 32, 1, 330, pool);
    std::vector<std::vector<float>> got;
    for (size_t at = 0; at < tokens.size();) {
      const size_t n = std::min(tokens.size() - at, size_t{1} + rng.Below(90));
      const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(at);
      auto rows = chunks.Step({{0, {begin, begin + static_cast<std::ptrdiff_t>(n)}, true}});
      for (auto& row : rows) got.push_back(std::move(row));
      at += n;
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> want = alone.Step({{0, {tokens[i]}}}).front();
      ASSERT_EQ(std::memcmp(want.data(), got[i].data(), want.size() * sizeof(float)), 0)
          << Name(pair) << " token " << i;
    }
  }
}

}  // namespace
}  // namespace kvasir
