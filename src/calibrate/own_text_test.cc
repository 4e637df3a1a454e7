#include "calibrate/own_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/hash.h"
#include "calibrate/tiny_model_test.h"
#include "env/thread_pool.h"
#include "kernels/isa.h"

namespace kvasir {
namespace {

TEST(DrawToken, FollowsTheDistribution) {
  const std::vector<float> logits = {0.0F, std::log(3.0F), -INFINITY, std::log(6.0F), -40.0F};
  std::vector<int> seen(logits.size());
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    ++seen[static_cast<size_t>(DrawToken(logits, CounterUniform(3, 0, static_cast<uint64_t>(i))))];
  }
  EXPECT_NEAR(seen[0] / double{kDraws}, 0.1, 0.01);
  EXPECT_NEAR(seen[1] / double{kDraws}, 0.3, 0.015);
  EXPECT_NEAR(seen[3] / double{kDraws}, 0.6, 0.015);
  EXPECT_EQ(seen[2] + seen[4], 0);
}

TEST(DrawToken, OddLogits) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> some = {kNan, INFINITY, 2.0F, kNan};
  for (const double u : {0.0, 0.5, 0.999999}) EXPECT_EQ(DrawToken(some, u), 2);
  EXPECT_EQ(DrawToken(std::vector<float>{kNan, kNan}, 0.5), 0);
  EXPECT_EQ(DrawToken(std::vector<float>{1.0F}, 0.99), 0);
}

class OwnText : public ::testing::Test {
 protected:
  OwnText() : model_(testing::LoadTinyLlama(folder_, 11, pool_)) {}
  testing::TempFolder folder_;
  ThreadPool pool_{3};
  std::unique_ptr<Model> model_;
};

TEST_F(OwnText, IsAConstantOfModelAndSeed) {
  OwnTextOptions options;
  options.sequences = 5;
  options.tokens = 40;
  const auto text = WriteOwnText(*model_, options, pool_);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  ASSERT_EQ(text->size(), 5U);
  for (const auto& sequence : *text) {
    ASSERT_EQ(sequence.size(), 40U);
    for (const int32_t token : sequence) ASSERT_LT(token, model_->config().vocab);
  }
  EXPECT_NE((*text)[0], (*text)[1]);
  SerialExecutor serial;
  const Isa before = CurrentIsa();
  for (const Isa isa : kAllIsas) {
    if (!IsaSupported(isa)) continue;
    ASSERT_TRUE(SetIsa(isa).ok());
    EXPECT_EQ(WriteOwnText(*model_, options, serial).value(), *text) << IsaName(isa);
  }
  ASSERT_TRUE(SetIsa(before).ok());
  // A sequence does not depend on how many there are.
  options.sequences = 2;
  const auto fewer = WriteOwnText(*model_, options, pool_).value();
  EXPECT_EQ(fewer[0], (*text)[0]);
  EXPECT_EQ(fewer[1], (*text)[1]);
  options.seed = 2;
  EXPECT_NE(WriteOwnText(*model_, options, pool_).value()[0], (*text)[0]);
}

TEST_F(OwnText, RefusesMoreThanTheContext) {
  OwnTextOptions options;
  options.tokens = model_->config().context + 1;
  const Status status = WriteOwnText(*model_, options, pool_).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(std::to_string(model_->config().context)), std::string::npos);
}

struct Counting final : InputObserver {
  void OnInput(int layer, InputSite site, const float* x, size_t ldx, int rows,
               int columns) override {
    calls[InputIndex(static_cast<size_t>(layer), site)] += rows;
    EXPECT_GE(ldx, static_cast<size_t>(columns));
    for (int c = 0; c < columns; ++c) EXPECT_TRUE(std::isfinite(x[c]));
  }
  int calls[InputCount(2)] = {};
};

TEST_F(OwnText, TheObserverSeesEveryTokenAtEverySite) {
  ASSERT_EQ(model_->config().layers, 2);
  Counting counting;
  OwnTextOptions options;
  options.sequences = 3;
  options.tokens = 10;
  options.observer = &counting;
  ASSERT_TRUE(WriteOwnText(*model_, options, pool_).ok());
  for (const int rows : counting.calls) EXPECT_EQ(rows, 30);
}

}  // namespace
}  // namespace kvasir
