#include "calibrate/two_term_finder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/hash.h"
#include "calibrate/calibration.h"
#include "calibrate/tiny_model_test.h"
#include "env/thread_pool.h"

namespace kvasir {
namespace {

using internal::ChooseBlocks;
using internal::RoundingLoss;

TEST(RoundingLoss, EqualsWhatEightBitsLose) {
  constexpr int kRows = 5, kColumns = 70;  // the last block is short
  constexpr size_t kStride = 80;
  Rng rng(4);
  std::vector<float> x(kRows * kStride);
  for (float& value : x) value = static_cast<float>(rng.Uniform() * 4 - 2);
  RoundingLoss loss(2);
  loss.OnInput(1, InputSite::kFeedForwardIn, x.data(), kStride, kRows, kColumns);
  const auto& sums = loss.sums()[InputIndex(1, InputSite::kFeedForwardIn)];
  ASSERT_EQ(sums.size(), size_t{kColumns});
  for (size_t c = 0; c < kColumns; ++c) {
    double expected = 0;
    for (size_t r = 0; r < kRows; ++r) {
      double top = 0;
      const size_t first = c / 32 * 32;
      for (size_t i = first; i < std::min<size_t>(first + 32, kColumns); ++i) {
        top = std::max(top, std::fabs(static_cast<double>(x[r * kStride + i])));
      }
      const double step = top / 127;
      const auto value = static_cast<double>(x[r * kStride + c]);
      const double lost = value - step * std::nearbyint(value / step);
      expected += lost * lost;
    }
    EXPECT_NEAR(sums[c], expected, 1e-6 + 1e-2 * expected) << c;
  }
  EXPECT_TRUE(loss.sums()[0].empty());
}

TEST(RoundingLoss, OddValuesLoseNothing) {
  std::vector<float> x(32, 0.0F);
  RoundingLoss loss(1);
  loss.OnInput(0, InputSite::kAttentionIn, x.data(), 32, 1, 32);
  x[3] = NAN;
  x[4] = INFINITY;
  loss.OnInput(0, InputSite::kAttentionIn, x.data(), 32, 1, 32);
  for (const double sum : loss.sums()[0]) EXPECT_EQ(sum, 0);
}

TEST(ChooseBlocks, TakesTheLargestByLossTimesNorm) {
  std::vector<double> loss(32 * 10, 1.0), norm(32 * 10, 1.0);
  norm[32 * 4 + 7] = 100;  // block 4
  loss[32 * 8] = 90;       // block 8
  std::vector<uint8_t> expected(10, 0);
  expected[4] = 1;
  EXPECT_EQ(ChooseBlocks(loss, norm, 0.1), expected);
  expected[8] = 1;
  EXPECT_EQ(ChooseBlocks(loss, norm, 0.2), expected);
  expected[0] = 1;  // of equals the first
  EXPECT_EQ(ChooseBlocks(loss, norm, 0.3), expected);
  EXPECT_EQ(ChooseBlocks(loss, norm, 0.0), std::vector<uint8_t>(10, 0));
  EXPECT_EQ(ChooseBlocks(loss, norm, 1.0), std::vector<uint8_t>(10, 1));
}

class TwoTerms : public ::testing::Test {
 protected:
  TwoTerms() : model_(testing::LoadTinyLlama(folder_, 11, pool_)) {
    setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
  }
  ~TwoTerms() override { unsetenv("XDG_CACHE_HOME"); }
  testing::TempFolder folder_;
  ThreadPool pool_{2};
  std::unique_ptr<Model> model_;
};

TEST_F(TwoTerms, AreAConstantOfTheModelAndSurviveTheSidecar) {
  const auto found = FindTwoTermBlocks(*model_, pool_);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  ASSERT_EQ(found->blocks.size(), InputCount(model_->layers.size()));
  SerialExecutor serial;
  EXPECT_EQ(FindTwoTermBlocks(*model_, serial)->blocks, found->blocks);

  std::vector<std::string> notes;
  Sidecar sidecar((folder_ / "x.gguf"), model_->fingerprint());
  int computed = 0;
  const auto count = [&](double) { ++computed; };
  constexpr CalibrationWish kWish{true, false};
  EXPECT_EQ(LoadCalibration(*model_, kWish, &sidecar, pool_, count, &notes)->two_terms.blocks,
            found->blocks);
  EXPECT_GT(computed, 0);
  computed = 0;
  Sidecar again((folder_ / "x.gguf"), model_->fingerprint());
  EXPECT_EQ(LoadCalibration(*model_, kWish, &again, pool_, count, &notes)->two_terms.blocks,
            found->blocks);
  EXPECT_EQ(computed, 0) << "found again although it was stored";
  EXPECT_TRUE(notes.empty());
}

// What is done twice, counted over the matrices: within the promised share, blocks of small inputs
// rounded.
TEST_F(TwoTerms, AskForNoMoreWorkThanPromised) {
  const auto found = FindTwoTermBlocks(*model_, pool_);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  const std::array<double, kInputSites> shares = TwoTermShares(*model_);
  double all = 0, twice = 0;
  for (size_t i = 0; i < found->blocks.size(); ++i) {
    const std::vector<uint8_t>& flags = found->blocks[i];
    const auto chosen = std::accumulate(flags.begin(), flags.end(), size_t{0});
    const double share = shares[static_cast<size_t>(SiteOf(i, model_->layers.size()))];
    EXPECT_NEAR(static_cast<double>(chosen), share * static_cast<double>(flags.size()), 0.5);
    for (const PackedMatrix& matrix : ReadersOf(*model_, i)) {
      ASSERT_EQ(static_cast<size_t>(matrix.columns() + 31) / 32, flags.size());
      const auto work = static_cast<double>(matrix.rows() * matrix.columns());
      all += work;
      twice += share * work;
    }
  }
  EXPECT_LE(twice, kTwoTermWork * all * (1 + 1e-9));
  EXPECT_GT(twice, 0);
}

TEST_F(TwoTerms, ASectionThatDoesNotFitIsFoundAnew) {
  const auto found = FindTwoTermBlocks(*model_, pool_);
  const nlohmann::json good = internal::TwoTermBlocksToJson(*found, *model_);
  nlohmann::json bad[7];
  for (nlohmann::json& json : bad) json = good;
  bad[0] = nlohmann::json::array();
  bad[1]["shares"][4] = 0.5;
  bad[2]["columns_per_block"] = 16;
  bad[3]["blocks"].erase(0);
  bad[4]["blocks"][1] = 3;
  bad[5]["blocks"][2] = {100000};
  bad[6]["blocks"][2] = {-1};
  for (const nlohmann::json& json : bad) {
    const auto parsed = internal::TwoTermBlocksFromJson(json, *model_);
    EXPECT_EQ(parsed.status().code(), StatusCode::kDataLoss) << json.dump().substr(0, 80);
    Sidecar sidecar((folder_ / "y.gguf"), model_->fingerprint());
    ASSERT_TRUE(sidecar.Store("two_term_blocks", 2, json).ok());
    std::vector<std::string> notes;
    EXPECT_EQ(
        LoadCalibration(*model_, {true, false}, &sidecar, pool_, {}, &notes)->two_terms.blocks,
        found->blocks);
    EXPECT_EQ(notes.size(), 1U);
  }
  EXPECT_EQ(internal::TwoTermBlocksFromJson(good, *model_)->blocks, found->blocks);
}

}  // namespace
}  // namespace kvasir
