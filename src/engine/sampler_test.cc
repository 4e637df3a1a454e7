#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/sanitizer.h"
#include "engine/logprobs.h"

namespace kvasir {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TokenId Must(Result<TokenId> token) {
  EXPECT_TRUE(token.ok()) << token.status().ToString();
  return token.ok() ? *token : -1;
}

SampleInput Input(const SamplingParams& params, const std::vector<TokenId>& tokens, int32_t prompt,
                  uint64_t seed = 1, int32_t choice = 0) {
  SampleInput input;
  input.params = &params;
  input.tokens = tokens;
  input.prompt_tokens = prompt;
  input.seed = seed;
  input.choice = choice;
  return input;
}

TEST(Sampler, GreedyTakesTheFirstOfEqualMaxima) {
  Sampler sampler(40);
  SamplingParams params;
  params.temperature = 0;
  std::vector<float> logits(40, -1.0F);
  const std::vector<TokenId> tokens = {1};
  for (const size_t at : {0, 7, 31, 32, 39}) {
    std::vector<float> row = logits;
    row[at] = 3;
    row[39] = 3;
    EXPECT_EQ(Must(sampler.Sample(row, Input(params, tokens, 1))), static_cast<TokenId>(at));
  }
}

TEST(Sampler, MasksBiasAndPenaltiesInOrder) {
  Sampler sampler(5);
  SamplingParams params;
  params.temperature = 0;
  const std::vector<float> logits = {5, 4, 3, 2, -1};
  std::vector<TokenId> tokens = {0, 1};
  params.logit_bias = {{0, -100.0F}};
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, tokens, 2))), 1);
  params.logit_bias = {{4, 100.0F}};
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, tokens, 2))), 4);
  params.allowed_tokens = {2, 3};  // a mask is not lifted by a bias
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, tokens, 2))), 2);
  params = {};
  params.temperature = 0;
  params.repetition_penalty = 2.0F;  // prompt counts: 5/2, 4/2 -> 3 is best
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, tokens, 2))), 2);
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, tokens, 2))), 2);  // nothing stays behind
  params.repetition_penalty = 1.0F;
  params.presence_penalty = 1.5F;  // generated only: 4 - 1.5 < 3 but the prompt's 0 is untouched
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, tokens, 1))), 0);
  tokens = {3, 0, 0, 1};
  params.presence_penalty = 0;
  params.frequency_penalty = 0.8F;  // 5 - 1.6, 4 - 0.8
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, tokens, 1))), 0);
  params.frequency_penalty = 1.2F;  // 2.6, 2.8, 3
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, tokens, 1))), 2);
}

TEST(Sampler, NegativeLogitsAreMultipliedByTheRepetitionPenalty) {
  Sampler sampler(3);
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 2.0F;
  const std::vector<TokenId> tokens = {0};
  EXPECT_EQ(Must(sampler.Sample(std::vector<float>{-1.0F, -1.5F, -9}, Input(params, tokens, 1))),
            1);
}

TEST(Sampler, BadWordsHitOnlyWhereTheirBeginningStands) {
  Sampler sampler(4);
  SamplingParams params;
  params.temperature = 0;
  params.bad_words = {{1, 2, 3}, {0}};
  const std::vector<float> logits = {9, 1, 2, 5};
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, {2, 1, 2}, 1))), 2);
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, {2, 1, 1}, 1))), 3);
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, {1, 2}, 2))),
            3);  // the prompt does not count
}

TEST(Sampler, MinTokensHoldsEndAndStopTokensBack) {
  Sampler sampler(4);
  SamplingParams params;
  params.temperature = 0;
  params.min_tokens = 2;
  params.end_tokens = {0};
  params.stop_tokens = {1};
  const std::vector<float> logits = {9, 8, 7, 6};
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, {3}, 1))), 2);
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, {3, 3}, 1))), 2);
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, {3, 3, 3}, 1))), 0);
  params.ignore_eos = true;
  EXPECT_EQ(Must(sampler.Sample(logits, Input(params, {3}, 1))), 0);
}

TEST(Sampler, ErrorsInsteadOfNonsense) {
  Sampler sampler(3);
  SamplingParams params;
  const std::vector<TokenId> tokens = {0, 1};
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t at = 0; at < 3; ++at) {
      std::vector<float> logits = {1, 2, 3};
      logits[at] = bad;
      const auto token = sampler.Sample(logits, Input(params, tokens, 1));
      ASSERT_FALSE(token.ok());
      EXPECT_EQ(token.status().message(), "logits are not finite at position 2");
    }
  }
  params.allowed_tokens = {1};
  params.bad_words = {{1}};
  EXPECT_FALSE(sampler.Sample(std::vector<float>{1, 2, 3}, Input(params, tokens, 1)).ok());
}

TEST(Sampler, ExtremeNumbersStayNumbers) {
  Sampler sampler(3);
  SamplingParams params;
  const float big = std::numeric_limits<float>::max();
  const std::vector<TokenId> tokens = {0, 1, 2, 2};
  for (const float t : {1e-30F, 1.0F, 100.0F}) {
    for (const float r : {1e-30F, 1.0F, 2.0F}) {
      for (const auto& logits :
           {std::vector<float>{big, -big, 0}, std::vector<float>{big, big, big},
            std::vector<float>{-big, -big, -big}, std::vector<float>{1e-40F, 0, -1e-40F}}) {
        params.temperature = t;
        params.repetition_penalty = r;
        params.frequency_penalty = 2;
        params.logit_bias = {{0, 100}, {1, -100}};
        for (const int32_t k : {0, 1, 2}) {
          params.top_k = k;
          for (const float p : {1.0F, 0.5F, 1e-30F}) {
            params.top_p = p;
            const TokenId token = Must(sampler.Sample(logits, Input(params, tokens, 2)));
            EXPECT_TRUE(token >= 0 && token < 3);
          }
        }
      }
    }
  }
}

// The same in the plainest way: sort everything, cut, walk. Which tokens survive must be exactly
// equal; the draw is compared where it is not within rounding of a border.
struct Plain {
  std::vector<TokenId> kept;  // best first
  std::vector<double> weights;
};
Plain PlainFilter(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const double max = static_cast<double>(logits[static_cast<size_t>(order[0])]);
  Plain plain;
  double total = 0;
  for (const TokenId token : order) {
    const double w = std::exp((static_cast<double>(logits[static_cast<size_t>(token)]) - max) /
                              static_cast<double>(p.temperature));
    if (w < static_cast<double>(p.min_p)) continue;
    if (p.top_k > 0 && plain.kept.size() == static_cast<size_t>(p.top_k)) break;
    plain.kept.push_back(token);
    plain.weights.push_back(w);
    total += w;
  }
  double sum = 0;
  for (size_t i = 0; i < plain.kept.size(); ++i) {
    sum += plain.weights[i];
    if (p.top_p < 1.0F && sum >= static_cast<double>(p.top_p) * total) {
      plain.kept.resize(i + 1);
      plain.weights.resize(i + 1);
    }
  }
  return plain;
}

TEST(Sampler, DrawsFollowThePlainFilterOnRandomRows) {
  for (uint64_t seed = 1; seed <= (kSanitized ? 10 : 60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const int32_t vocab = 2 + static_cast<int32_t>(rng.Below(900));
    std::vector<float> logits(static_cast<size_t>(vocab));
    for (float& l : logits)
      l = static_cast<float>(std::floor(rng.Uniform() * 64.0) / 8.0 - 4.0);  // many ties
    SamplingParams p;
    p.temperature = static_cast<float>(0.2 + rng.Uniform());
    if (rng.Below(2) == 0)
      p.top_k = 1 + static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab) + 3));
    if (rng.Below(2) == 0) p.top_p = static_cast<float>(0.05 + 0.9 * rng.Uniform());
    if (rng.Below(2) == 0) p.min_p = static_cast<float>(0.3 * rng.Uniform());
    const Plain plain = PlainFilter(logits, p);
    std::vector<double> hits(static_cast<size_t>(vocab), 0);
    Sampler sampler(vocab);
    constexpr int kDraws = 4000;
    for (int i = 0; i < kDraws; ++i) {
      const TokenId token =
          Must(sampler.Sample(logits, Input(p, {0}, 1, seed * 100000 + static_cast<uint64_t>(i))));
      hits[static_cast<size_t>(token)] += 1;
    }
    const double total = std::accumulate(plain.weights.begin(), plain.weights.end(), 0.0);
    double outside = kDraws;
    for (size_t i = 0; i < plain.kept.size(); ++i) {
      const double expected = kDraws * plain.weights[i] / total;
      const double got = hits[static_cast<size_t>(plain.kept[i])];
      outside -= got;
      // Six standard deviations; and a kept token with a fair share must have come up.
      EXPECT_NEAR(got, expected, 6 * std::sqrt(expected) + 6) << "token " << plain.kept[i];
    }
    EXPECT_EQ(outside, 0);
  }
}

TEST(Sampler, ADrawDependsOnSeedChoiceAndPositionOnly) {
  Sampler one(50), two(50);
  SamplingParams p;
  std::vector<float> flat(50, 0.0F);
  std::set<TokenId> by_choice, by_seed, by_position;
  std::vector<TokenId> tokens = {1, 2};
  for (int i = 0; i < 20; ++i) {
    const TokenId a = Must(one.Sample(flat, Input(p, {1, 2}, 2, 7, i)));
    (void)Must(two.Sample(
        flat, Input(p, {1}, 1, static_cast<uint64_t>(i), 3)));  // somebody else's draw between
    EXPECT_EQ(a, Must(two.Sample(flat, Input(p, {9, 2}, 2, 7, i))));
    by_choice.insert(a);
    by_seed.insert(Must(one.Sample(flat, Input(p, {1, 2}, 2, static_cast<uint64_t>(i), 0))));
    by_position.insert(Must(one.Sample(flat, Input(p, tokens, 2, 7, 0))));
    tokens.push_back(1);
  }
  EXPECT_GT(by_choice.size(), 5u);
  EXPECT_GT(by_seed.size(), 5u);
  EXPECT_GT(by_position.size(), 5u);
}

TEST(Logprobs, AgreeWithTheDefinition) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<float> logits(1 + rng.Below(600));
    for (float& l : logits) l = static_cast<float>(std::floor(rng.Uniform() * 200) / 8 - 10);
    const TokenId chosen = static_cast<TokenId>(rng.Below(logits.size()));
    const int32_t k = static_cast<int32_t>(rng.Below(21));
    const PositionLogprobs got = ComputeLogprobs(logits, chosen, k);
    long double sum = 0;
    for (const float l : logits) sum += std::exp(static_cast<long double>(l));
    std::vector<TokenId> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const auto expected = [&](TokenId t) {
      return static_cast<double>(static_cast<long double>(logits[static_cast<size_t>(t)]) -
                                 std::log(sum));
    };
    EXPECT_EQ(got.chosen.token, chosen);
    EXPECT_NEAR(static_cast<double>(got.chosen.logprob), expected(chosen), 1e-5);
    EXPECT_EQ(order[static_cast<size_t>(got.chosen.rank - 1)], chosen);
    ASSERT_EQ(got.top.size(), std::min(logits.size(), static_cast<size_t>(k)));
    for (size_t i = 0; i < got.top.size(); ++i) {
      EXPECT_EQ(got.top[i].token, order[i]);
      EXPECT_EQ(got.top[i].rank, static_cast<int32_t>(i) + 1);
      EXPECT_NEAR(static_cast<double>(got.top[i].logprob), expected(order[i]), 1e-5);
    }
  }
}

TEST(TopK, HeapAndSelectionAgreeWithASort) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Rng rng(seed);
    std::vector<float> row(1 + rng.Below(2000));
    for (float& v : row) v = static_cast<float>(rng.Below(50));
    std::vector<ScoredToken> all, got;
    for (size_t i = 0; i < row.size(); ++i) all.push_back({row[i], static_cast<TokenId>(i)});
    std::sort(all.begin(), all.end(), BetterToken);
    for (const size_t k :
         {size_t{0}, size_t{1}, size_t{20}, size_t{256}, size_t{257}, row.size(), row.size() + 5}) {
      TopK(row, k, got);
      ASSERT_EQ(got.size(), std::min(k, row.size()));
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i].token, all[i].token) << "seed " << seed;
    }
  }
}

// Case A07: each names the field as the API calls it.
TEST(SamplingParams, RefusalsNameTheField) {
  const auto refused = [](const std::string& field, auto change) {
    SamplingParams p;
    change(p);
    const Status status = p.Validate(305);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(status.field(), field) << status.ToString();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(SamplingParams().Validate(305).ok());
  for (const float v : {-1.0F, kInf, nan})
    refused("temperature", [&](SamplingParams& p) { p.temperature = v; });
  refused("top_k", [](SamplingParams& p) { p.top_k = -5; });
  for (const float v : {0.0F, 1.5F, -0.1F, nan})
    refused("top_p", [&](SamplingParams& p) { p.top_p = v; });
  for (const float v : {-0.1F, 1.1F, nan})
    refused("min_p", [&](SamplingParams& p) { p.min_p = v; });
  for (const float v : {-2.1F, 2.1F, nan}) {
    refused("presence_penalty", [&](SamplingParams& p) { p.presence_penalty = v; });
    refused("frequency_penalty", [&](SamplingParams& p) { p.frequency_penalty = v; });
  }
  for (const float v : {0.0F, 2.1F, nan}) {
    refused("repetition_penalty", [&](SamplingParams& p) { p.repetition_penalty = v; });
  }
  for (const TokenId t : {305, -1, INT32_MAX}) {
    refused("logit_bias", [&](SamplingParams& p) { p.logit_bias = {{t, 1.0F}}; });
    refused("allowed_token_ids", [&](SamplingParams& p) { p.allowed_tokens = {t}; });
    refused("bad_words", [&](SamplingParams& p) { p.bad_words = {{1, t}}; });
    refused("stop_token_ids", [&](SamplingParams& p) { p.stop_tokens = {t}; });
  }
  refused("bad_words", [](SamplingParams& p) { p.bad_words = {{}}; });
  refused("logit_bias", [](SamplingParams& p) { p.logit_bias = {{1, 100.5F}}; });
  refused("logit_bias", [&](SamplingParams& p) { p.logit_bias = {{1, nan}}; });
  refused("max_tokens", [](SamplingParams& p) { p.max_tokens = -1; });
  refused("min_tokens", [](SamplingParams& p) { p.min_tokens = -1; });
  refused("min_tokens", [](SamplingParams& p) { p.min_tokens = 17; });
  for (const int32_t v : {-2, 21}) {
    refused("logprobs", [&](SamplingParams& p) { p.logprobs = v; });
    refused("prompt_logprobs", [&](SamplingParams& p) { p.prompt_logprobs = v; });
  }
}

}  // namespace
}  // namespace kvasir
