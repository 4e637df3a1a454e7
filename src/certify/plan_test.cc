#include "certify/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/hash.h"

namespace kvasir {
namespace {

TEST(Plan, PartsFitTheirTextsAndHaveNamesOfTheirOwn) {
  for (const int32_t max_len : {128, 160, 512, 1000, 2048, 8192, 131072}) {
    for (const bool quick : {false, true}) {
      const CertifyPlan plan = MakePlan(max_len, quick, 1);
      EXPECT_EQ(plan.text_tokens[0], max_len);
      EXPECT_TRUE(std::is_sorted(plan.text_tokens.rbegin(), plan.text_tokens.rend()));
      EXPECT_GE(plan.prompts, 100);
      EXPECT_LE(plan.prompt_tokens + plan.greedy_tokens, max_len);
      std::set<std::string> names;
      std::set<int> prefilled, prompts;
      size_t decodes = 0;
      for (const Part& part : plan.parts) {
        EXPECT_TRUE(names.insert(part.name).second) << part.name;
        EXPECT_LE(part.positions, max_len) << part.name;
        EXPECT_GT(part.cost, 0);
        if (part.kind == PartKind::kPrefill) prefilled.insert(part.texts[0]);
        if (part.kind == PartKind::kGreedy) prompts.insert(part.texts.begin(), part.texts.end());
        if (part.kind == PartKind::kDecode) ++decodes;
      }
      EXPECT_EQ(prefilled.size(), plan.text_tokens.size());
      EXPECT_EQ(prompts.size(), static_cast<size_t>(plan.prompts));
      EXPECT_GE(decodes, 1U);
      EXPECT_TRUE(names.contains("repeat-16-0"));
    }
  }
}

TEST(Plan, AQuickOneIsMuchLess) {
  const auto cost = [](const CertifyPlan& plan) {
    double sum = 0;
    for (const Part& part : plan.parts) sum += part.cost;
    return sum;
  };
  EXPECT_LT(10 * cost(MakePlan(1024, true, 1)), cost(MakePlan(8192, false, 1)));
}

// Every token of the file is read once, in order, until the texts are full.
TEST(CutTexts, GoesThroughTheFileOnce) {
  Rng rng(11);
  for (int round = 0; round < 200; ++round) {
    const auto max_len = static_cast<int32_t>(128 + rng.Below(3000));
    const CertifyPlan plan = MakePlan(max_len, round % 2 == 0, 1);
    std::vector<int32_t> tokens(kTextTokens + rng.Below(20000));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
    const int32_t bos = round % 3 == 0 ? -1 : 999999;
    const auto cut = CutTexts(plan, tokens, bos);
    ASSERT_TRUE(cut.ok());
    ASSERT_FALSE(cut->texts.empty());
    size_t before = SIZE_MAX;
    std::set<int32_t> seen;
    size_t read = 0;
    for (const auto& text : cut->texts) {
      EXPECT_LE(text.size(), before);
      before = text.size();
      const size_t head = bos >= 0 ? 1 : 0;
      if (head == 1) {
        EXPECT_EQ(text[0], bos);
      }
      for (size_t i = head; i < text.size(); ++i) {
        EXPECT_EQ(text[i], text[head] + static_cast<int32_t>(i - head));
        seen.insert(text[i]);
      }
      read += text.size() - head;
    }
    EXPECT_EQ(seen.size(), read) << "no token twice";
    for (const auto& prompt : cut->prompts) {
      EXPECT_EQ(prompt.size(), static_cast<size_t>(plan.prompt_tokens));
    }
    EXPECT_EQ(cut->prompts.size(), static_cast<size_t>(plan.prompts));
    // What was cut gives parts that fit it.
    std::vector<int32_t> lengths;
    for (const auto& text : cut->texts) lengths.push_back(static_cast<int32_t>(text.size()));
    for (const Part& part : PartsFor(lengths, plan, round % 2 == 0, 1)) {
      if (part.kind == PartKind::kGreedy) continue;
      EXPECT_LE(part.positions, lengths[0]) << part.name;
      for (const int text : part.texts) EXPECT_LT(text, static_cast<int>(lengths.size()));
    }
  }
}

TEST(CutTexts, TooLittleIsRefused) {
  const CertifyPlan plan = MakePlan(512, true, 1);
  const std::vector<int32_t> tokens(kTextTokens - 1, 3);
  const Status status = CutTexts(plan, tokens, -1).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("256"), std::string::npos);
}

}  // namespace
}  // namespace kvasir
