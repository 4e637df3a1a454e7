// The forward pass against the oracle: Hugging Face transformers in f32 over the same file
// (tests/golden/README.md).

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "golden_files.h"
#include "golden_runner.h"
#include "kernels/isa.h"

namespace kvasir {
namespace {

using golden::GoldenText;

constexpr float kTolerance = 2e-3F;  // of one logit, reference precision
constexpr size_t kShort = 700;       // tokens; longer texts are for builds without sanitizers

class GoldenLogits : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = golden::FindDemoModel();
    if (!path) GTEST_SKIP() << golden::kNoModel;
    model_ = &golden::LoadOnce(*path);
  }
  const Model* model_ = nullptr;
};

// Largest |difference| of one position's best logits and of the logarithm of the sum over the
// vocabulary. Fails if a token outside the oracle's best reaches further than the tolerance allows.
float Difference(const GoldenText& text, size_t i, std::span<const float> got) {
  float worst = static_cast<float>(
      std::fabs(golden::LogSumExp(got) - static_cast<double>(text.logsumexp[i])));
  std::vector<bool> best(got.size());
  for (size_t j = 0; j < text.top; ++j) {
    best[text.Ids(i)[j]] = true;
    const float off = std::fabs(got[text.Ids(i)[j]] - text.Values(i)[j]);
    worst = std::isnan(off) ? INFINITY : std::max(worst, off);
  }
  for (size_t token = 0; token < got.size(); ++token) {
    if (best[token]) continue;
    const float over = got[token] - text.Values(i)[text.top - 1];
    worst = std::isnan(over) ? INFINITY : std::max(worst, over);
  }
  return worst;
}

TEST_F(GoldenLogits, ReferencePrecisionEqualsTheOracle) {
  int skipped = 0;
  for (const GoldenText& text : golden::ReadGoldenTexts("tests/golden/logits.bin")) {
    if (text.tokens.size() > kShort && !golden::SlowTestsWanted()) {
      ++skipped;
      continue;
    }
    golden::Runner runner(*model_, Precision::kReference, KvType::kF32, 1,
                          static_cast<int>(text.tokens.size()));
    float worst = 0;
    size_t seen = 0;
    runner.Prefill(0, text.tokens, text.positions, [&](size_t i, std::span<const float> got) {
      const float off = Difference(text, i, got);
      EXPECT_LE(off, kTolerance) << text.name << " position " << text.positions[i];
      worst = std::max(worst, off);
      ++seen;
    });
    EXPECT_EQ(seen, text.positions.size());
    std::printf("reference, f32 cache, %-9s %5zu tokens, %3zu positions: largest difference %.6f\n",
                text.name.c_str(), text.tokens.size(), seen, static_cast<double>(worst));
    std::fflush(stdout);
  }
  if (skipped > 0)
    std::printf("%d texts of more than %zu tokens NOT RUN: sanitizer build\n", skipped, kShort);
}

// A control: a wrong network must not pass. One token changed early must move the logits far beyond
// the tolerance.
TEST_F(GoldenLogits, AChangedTokenIsSeen) {
  for (const GoldenText& text : golden::ReadGoldenTexts("tests/golden/logits.bin")) {
    if (text.name != "chat") continue;
    std::vector<int32_t> tokens = text.tokens;
    tokens[tokens.size() / 2] = tokens[tokens.size() / 2] == 100 ? 101 : 100;
    golden::Runner runner(*model_, Precision::kReference, KvType::kF32, 1,
                          static_cast<int>(tokens.size()));
    const int32_t last[] = {static_cast<int32_t>(tokens.size()) - 1};
    float off = 0;
    runner.Prefill(0, tokens, last, [&](size_t, std::span<const float> got) {
      off = Difference(text, text.positions.size() - 1, got);
    });
    EXPECT_GT(off, 20 * kTolerance);
    return;
  }
  FAIL() << "no text named chat";
}

struct Limits {
  const char* name;
  Precision precision;
  KvType kv;
  double kld;
  double top1;  // share
};

class GoldenKld : public GoldenLogits, public testing::WithParamInterface<Limits> {};

TEST_P(GoldenKld, StaysWithinItsLimits) {
  if (!golden::SlowTestsWanted())
    GTEST_SKIP() << "SKIPPED: 4,096 tokens are too slow with sanitizers (KVASIR_SLOW_TESTS=1)";
  double sum = 0;
  double most = 0;
  size_t positions = 0;
  size_t agree = 0;
  for (const GoldenText& text : golden::ReadGoldenTexts("tests/golden/kld.bin")) {
    golden::Runner runner(*model_, GetParam().precision, GetParam().kv, 1,
                          static_cast<int>(text.tokens.size()));
    runner.Prefill(0, text.tokens, text.positions, [&](size_t i, std::span<const float> got) {
      const double kld = golden::EstimateKld(text.Ids(i), text.Values(i),
                                             static_cast<double>(text.logsumexp[i]), got);
      ASSERT_TRUE(std::isfinite(kld)) << text.name << " position " << text.positions[i];
      sum += kld;
      most = std::max(most, kld);
      agree += golden::ArgMax(got) == text.Ids(i)[0] ? 1 : 0;
      ++positions;
    });
  }
  ASSERT_EQ(positions, 2048U);
  const double mean = sum / static_cast<double>(positions);
  const double top1 = static_cast<double>(agree) / static_cast<double>(positions);
  std::printf("%s (%s): mean KLD %.8f, largest %.6f, top-1 %.2f %% of %zu\n", GetParam().name,
              std::string(IsaName(CurrentIsa())).c_str(), mean, most, 100 * top1, positions);
  EXPECT_GE(mean, 0);
  EXPECT_LE(mean, GetParam().kld);
  EXPECT_GE(top1, GetParam().top1);
}

// The limits of 8-bit activations are what that arithmetic costs by itself; docs/kernels.md.
INSTANTIATE_TEST_SUITE_P(
    Precisions, GoldenKld,
    testing::Values(Limits{"fast, f16 cache", Precision::kFast, KvType::kF16, 0.0035, 0.96},
                    Limits{"default, f16 cache", Precision::kDefault, KvType::kF16, 0.001, 0.98},
                    Limits{"default, i8 cache", Precision::kDefault, KvType::kI8, 0.0014, 0.975},
                    Limits{"exact, f32 cache", Precision::kExact, KvType::kF32, 0.0001, 0.998},
                    Limits{"exact, f16 cache", Precision::kExact, KvType::kF16, 0.0001, 0.998}));

// The fast paths promise the bits of the portable one, so the figures above hold for all of them.
TEST_F(GoldenLogits, EveryInstructionSetGivesTheSameBits) {
  const auto texts = golden::ReadGoldenTexts("tests/golden/logits.bin");
  const auto text = std::find_if(texts.begin(), texts.end(),
                                 [](const GoldenText& t) { return t.name == "chat"; });
  ASSERT_NE(text, texts.end());
  golden::TwoTermsOnce(*model_);  // by the fastest path: they are the same for all
  const Isa before = CurrentIsa();
  for (Precision precision : {Precision::kDefault, Precision::kExact}) {
    std::vector<float> first;
    for (Isa isa : kAllIsas) {
      if (!IsaSupported(isa)) {
        std::printf("NOT RUN: %s is not supported here\n", std::string(IsaName(isa)).c_str());
        continue;
      }
      ASSERT_TRUE(SetIsa(isa).ok());
      golden::Runner runner(*model_, precision, KvType::kF16, 1,
                            static_cast<int>(text->tokens.size()));
      std::vector<float> all;
      runner.Prefill(0, text->tokens, text->positions, [&](size_t, std::span<const float> got) {
        all.insert(all.end(), got.begin(), got.end());
      });
      if (first.empty()) first = all;
      ASSERT_EQ(all.size(), first.size());
      EXPECT_EQ(std::memcmp(all.data(), first.data(), all.size() * sizeof(float)), 0)
          << IsaName(isa);
    }
  }
  ASSERT_TRUE(SetIsa(before).ok());
}

}  // namespace
}  // namespace kvasir
