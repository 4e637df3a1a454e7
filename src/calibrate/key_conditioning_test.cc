#include "calibrate/key_conditioning.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/hash.h"
#include "calibrate/calibration.h"
#include "calibrate/tiny_model_test.h"
#include "env/thread_pool.h"

namespace kvasir {
namespace {

using internal::FitKeys;
using internal::KeyMoments;

// Two query heads for each of two KV heads of 6 channels, of which 4 turn.
ModelConfig Shape() {
  ModelConfig config;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.k_dim = 6;
  config.rope_dims = 4;
  config.context = 50;
  return config;
}

// The closed form against turning every sample through every position.
TEST(KeyConditioning, EqualsTurningEverySample) {
  const ModelConfig config = Shape();
  const std::vector<double> steps = config.RopeSteps();
  ASSERT_EQ(steps.size(), 2U);
  constexpr int kRows = 40, kWidth = 12;
  constexpr size_t kStride = 64;
  Rng rng(5);
  std::vector<float> q(kRows * kStride), k(kRows * kStride);
  for (float& x : q) x = static_cast<float>(rng.Uniform() * 2 - 0.7);
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] = static_cast<float>((rng.Uniform() - 0.3) * (1 + static_cast<double>(i % 5)));
  }
  KeyMoments moments(config);
  moments.OnQueryKey(1, q.data(), k.data(), kStride, kRows / 2);
  moments.OnQueryKey(1, q.data() + kRows / 2 * kStride, k.data() + kRows / 2 * kStride, kStride,
                     kRows / 2);
  const KeyConditioning keys = FitKeys(config, moments);

  // x of `channel` at position p.
  const auto turned = [&](const float* head, size_t channel, int p) {
    const auto x = static_cast<double>(head[channel]);
    if (channel >= 4) return x;
    const double angle = steps[channel / 2] * p;
    const auto y = static_cast<double>(head[channel ^ 1U]);
    return channel % 2 == 0 ? x * std::cos(angle) - y * std::sin(angle)
                            : x * std::cos(angle) + y * std::sin(angle);
  };
  std::vector<double> ratio(kWidth);
  for (size_t i = 0; i < kWidth; ++i) {
    const size_t head = i / 6, channel = i % 6;
    double sum = 0, square = 0, query = 0;
    for (size_t r = 0; r < kRows; ++r) {
      for (int p = 0; p < config.context; ++p) {
        const double x = turned(k.data() + r * kStride + head * 6, channel, p);
        sum += x;
        square += x * x;
        for (size_t g = 0; g < 2; ++g) {
          const double y = turned(q.data() + r * kStride + (head * 2 + g) * 6, channel, p);
          query += y * y;
        }
      }
    }
    const double n = double{kRows} * config.context;
    const double centre = sum / n;
    EXPECT_NEAR(keys.centre[1][i], centre, 1e-5) << i;
    ratio[i] = std::sqrt(std::sqrt(square / n - centre * centre) / std::sqrt(query / n));
  }
  for (size_t head = 0; head < 2; ++head) {
    double logs = 0;
    for (size_t c = 0; c < 6; ++c) logs += std::log(ratio[head * 6 + c]);
    for (size_t c = 0; c < 6; ++c) {
      EXPECT_NEAR(keys.balance[1][head * 6 + c], ratio[head * 6 + c] / std::exp(logs / 6), 1e-4);
    }
  }
}

TEST(KeyConditioning, DeadAndWildChannelsStayUsable) {
  const ModelConfig config = Shape();
  KeyMoments moments(config);
  std::vector<float> q(64, 0.0F), k(64, 0.0F);
  for (int r = 0; r < 3; ++r) {
    for (size_t i = 0; i < 24; ++i) q[i] = i % 6 == 0 ? 0.0F : 1.0F;
    for (size_t i = 0; i < 12; ++i) k[i] = i % 6 == 5 ? 1e18F * static_cast<float>(r) : 0.0F;
    moments.OnQueryKey(0, q.data(), k.data(), 64, 1);
  }
  const KeyConditioning keys = FitKeys(config, moments);
  for (const auto& layer : keys.balance) {
    for (const float b : layer) {
      EXPECT_TRUE(std::isfinite(b));
      EXPECT_GE(b, 1 / kBalanceReach);
      EXPECT_LE(b, kBalanceReach);
    }
  }
}

class KeySection : public ::testing::Test {
 protected:
  KeySection() : model_(testing::LoadTinyLlama(folder_, 11, pool_)) {
    setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
  }
  ~KeySection() override { unsetenv("XDG_CACHE_HOME"); }
  testing::TempFolder folder_;
  ThreadPool pool_{2};
  std::unique_ptr<Model> model_;
};

TEST_F(KeySection, SurvivesTheSidecarToTheBit) {
  std::vector<std::string> notes;
  const std::string path = folder_ / "x.gguf";
  Sidecar sidecar(path, model_->fingerprint());
  const auto both = LoadCalibration(*model_, {true, true}, &sidecar, pool_, {}, &notes);
  ASSERT_TRUE(both.ok()) << both.status().ToString();
  ASSERT_EQ(both->keys.centre.size(), 2U);
  Sidecar again(path, model_->fingerprint());
  int computed = 0;
  const auto known = LoadCalibration(
      *model_, {true, true}, &again, pool_, [&](double) { ++computed; }, &notes);
  EXPECT_EQ(computed, 0);
  EXPECT_EQ(known->keys.centre, both->keys.centre);
  EXPECT_EQ(known->keys.balance, both->keys.balance);
  EXPECT_EQ(known->two_terms.blocks, both->two_terms.blocks);
  // Alone it comes out as together with the other part.
  Sidecar other(folder_ / "y.gguf", model_->fingerprint());
  const auto alone = LoadCalibration(*model_, {false, true}, &other, pool_, {}, &notes);
  EXPECT_EQ(alone->keys.centre, both->keys.centre);
  EXPECT_TRUE(alone->two_terms.blocks.empty());
  EXPECT_TRUE(notes.empty());
}

TEST_F(KeySection, WhatDoesNotFitIsRefused) {
  std::vector<std::string> notes;
  Sidecar sidecar(folder_ / "x.gguf", model_->fingerprint());
  const auto keys = LoadCalibration(*model_, {false, true}, &sidecar, pool_, {}, &notes)->keys;
  const nlohmann::json good = internal::KeyConditioningToJson(keys);
  nlohmann::json bad[7];
  for (nlohmann::json& json : bad) json = good;
  bad[0] = 4;
  bad[1]["positions"] = 1;
  bad[2]["centre"].erase(0);
  bad[3]["centre"][0].erase(0);
  bad[4]["balance"][1][2] = 0;
  bad[5]["balance"][1][2] = 1e300;
  bad[6]["centre"][1][2] = "x";
  for (const nlohmann::json& json : bad) {
    EXPECT_EQ(internal::KeyConditioningFromJson(json, *model_).status().code(),
              StatusCode::kDataLoss);
  }
  EXPECT_TRUE(internal::KeyConditioningFromJson(good, *model_).ok());
}

}  // namespace
}  // namespace kvasir
