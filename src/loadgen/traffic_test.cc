#include "loadgen/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

Traffic Make(const TrafficOptions& options, uint64_t seed = 1, bool text = false) {
  Target target;
  target.text = text;
  LoadShape shape;
  shape.seed = seed;
  shape.vocab = 1000;
  return Traffic(options, target, shape);
}

TEST(ParseLengthRange, GoodAndBad) {
  const Result<LengthRange> one = ParseLengthRange("256", "input-len");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->low, 256);
  EXPECT_EQ(one->high, 256);
  const Result<LengthRange> two = ParseLengthRange("64:512", "input-len");
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->low, 64);
  EXPECT_EQ(two->high, 512);
  for (const char* bad : {"", "0", "-1", "5:4", "1:", ":4", "1:2:3", "1.5", "x", "10000001", "1e3",
                          "99999999999999999999"}) {
    const Result<LengthRange> range = ParseLengthRange(bad, "output-len");
    ASSERT_FALSE(range.ok()) << bad;
    EXPECT_EQ(range.status().field(), "output-len");
  }
}

TEST(ParseLengthTrace, ReadsColumnsByName) {
  const Result<std::vector<TraceLengths>> rows = ParseLengthTrace(
      "TIMESTAMP,GeneratedTokens,ContextTokens\r\n"
      "2023-11-16 18:15:46.6805900,44,374\r\n"
      "2023-11-16 18:15:50.9951690,0,396\n"
      "\n"
      "2023-11-16 18:15:51.0000000,3, 1",
      0.5);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), 2U);  // the one of no output is left out
  EXPECT_EQ((*rows)[0].prompt, 187);
  EXPECT_EQ((*rows)[0].output, 22);
  EXPECT_EQ((*rows)[1].prompt, 1);  // 0.5 and 1.5 rounded, at least 1
  EXPECT_EQ((*rows)[1].output, 2);
}

TEST(ParseLengthTrace, RefusesWhatItCannotRead) {
  const auto message = [](const char* text) {
    return ParseLengthTrace(text, 1).status().message();
  };
  EXPECT_NE(message("").find("ContextTokens"), std::string::npos);
  EXPECT_NE(message("a,b\n1,2\n").find("GeneratedTokens"), std::string::npos);
  EXPECT_NE(message("ContextTokens,GeneratedTokens\n1,2\n1\n").find("line 3"), std::string::npos);
  EXPECT_NE(message("ContextTokens,GeneratedTokens\n1,x\n").find("line 2"), std::string::npos);
  EXPECT_NE(message("ContextTokens,GeneratedTokens\n1,-2\n").find("line 2"), std::string::npos);
  EXPECT_NE(message("ContextTokens,GeneratedTokens\n").find("no row"), std::string::npos);
}

TEST(Traffic, SameSeedSameRequests) {
  TrafficOptions options;
  options.input = {10, 50};
  options.output = {3, 9};
  options.prefix_tokens = 20;
  options.hot_share = 0.5;
  const Traffic one = Make(options), again = Make(options), other = Make(options, 2);
  bool differs = false;
  for (int64_t i = 0; i < 50; ++i) {
    const CompletionJob job = one.First(i), same = again.First(i);
    EXPECT_EQ(job.prompt, same.prompt);
    EXPECT_EQ(job.output_tokens, same.output_tokens);
    EXPECT_EQ(job.hot, same.hot);
    differs |= job.prompt != other.First(i).prompt;
    EXPECT_TRUE(std::all_of(job.prompt.begin(), job.prompt.end(),
                            [](int32_t id) { return id >= 300 && id < 1000; }));
  }
  EXPECT_TRUE(differs);
  // A run that goes on has the requests that the first would have had.
  options.first_request = 30;
  const Traffic rest = Make(options);
  EXPECT_EQ(rest.First(0).prompt, one.First(30).prompt);
  EXPECT_EQ(rest.First(7).hot, one.First(37).hot);
}

TEST(Traffic, LengthsCoverTheirRangeEvenly) {
  TrafficOptions options;
  options.input = {10, 19};
  options.output = {5, 6};
  const Traffic traffic = Make(options);
  std::vector<int> seen(10);
  for (int64_t i = 0; i < 2000; ++i) {
    const CompletionJob job = traffic.First(i);
    ASSERT_GE(job.prompt.size(), 10U);
    ASSERT_LT(job.prompt.size(), 20U);
    ASSERT_TRUE(job.output_tokens == 5 || job.output_tokens == 6);
    ++seen[job.prompt.size() - 10];
  }
  for (const int count : seen) EXPECT_NEAR(count, 200, 70);  // 5 standard deviations
}

TEST(Traffic, HotShareAndOneOffs) {
  TrafficOptions options;
  options.input = {8, 8};
  options.prefix_tokens = 32;
  options.hot_share = 0.25;
  const Traffic traffic = Make(options);
  PromptUnits prefix;
  int hot = 0;
  for (int64_t i = 0; i < 2000; ++i) {
    const CompletionJob job = traffic.First(i);
    ASSERT_EQ(job.prompt.size(), 40U);
    const PromptUnits head(job.prompt.begin(), job.prompt.begin() + 32);
    if (!job.hot) {
      EXPECT_NE(head, prefix);
      continue;
    }
    ++hot;
    if (prefix.empty()) prefix = head;
    EXPECT_EQ(head, prefix);
  }
  EXPECT_NEAR(hot, 500, 100);
  options.hot_share = 1;
  EXPECT_TRUE(Make(options).First(3).hot);
  options.hot_share = 0;
  EXPECT_FALSE(Make(options).First(3).hot);
}

TEST(Traffic, SharedTokensArePartOfTheInput) {
  TrafficOptions options;
  options.input = {30, 30};
  options.shared_tokens = 20;
  const Traffic traffic = Make(options);
  const PromptUnits a = traffic.First(0).prompt, b = traffic.First(1).prompt;
  ASSERT_EQ(a.size(), 30U);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 20, b.begin()));
  EXPECT_NE(a, b);
}

TEST(Traffic, TraceRowsAreDrawn) {
  TrafficOptions options;
  options.trace = {{5, 1}, {7, 2}, {9, 3}};
  const Traffic traffic = Make(options);
  std::vector<int> seen(3);
  for (int64_t i = 0; i < 300; ++i) {
    const CompletionJob job = traffic.First(i);
    ASSERT_EQ(static_cast<int32_t>(job.prompt.size()), 3 + 2 * job.output_tokens);
    ++seen[static_cast<size_t>(job.output_tokens - 1)];
  }
  for (const int count : seen) EXPECT_NEAR(count, 100, 45);
}

TEST(Traffic, ASecondTurnContainsTheAnswerOfTheFirst) {
  TrafficOptions options;
  options.input = {4, 4};
  options.turns = 2;
  const Traffic traffic = Make(options);
  const CompletionJob first = traffic.First(5);
  EXPECT_TRUE(first.keep_answer);
  Outcome answer;
  answer.answer = {901, 902, 903};
  const CompletionJob second = traffic.Next(5, 1, first, answer);
  ASSERT_EQ(second.prompt.size(), 4U + 3 + 4);
  EXPECT_TRUE(std::equal(first.prompt.begin(), first.prompt.end(), second.prompt.begin()));
  EXPECT_TRUE(std::equal(answer.answer.begin(), answer.answer.end(), second.prompt.begin() + 4));
  EXPECT_FALSE(second.keep_answer);
  EXPECT_FALSE(std::equal(first.prompt.begin(), first.prompt.end(), second.prompt.begin() + 7));
  // Where the ids are not told, as many others stand for them.
  answer.answer.clear();
  answer.token_ns = {1, 2};
  EXPECT_EQ(traffic.Next(5, 1, first, answer).prompt.size(), 4U + 2 + 4);
}

TEST(Traffic, TextTurnsContainTheAnswersWords) {
  TrafficOptions options;
  options.input = {3, 3};
  options.turns = 2;
  const Traffic traffic = Make(options, 1, true);
  const CompletionJob first = traffic.First(0);
  Outcome answer;
  answer.answer_text = " yes: no";
  const std::string text = CompletionText(traffic.Next(0, 1, first, answer));
  EXPECT_TRUE(text.starts_with(CompletionText(first) + " yes: no ")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 2 + 2 + 3);
}

TEST(TrafficOptions, NamesTheFlag) {
  const auto field = [](auto change) {
    TrafficOptions options;
    change(&options);
    return options.Validate().field();
  };
  EXPECT_EQ(field([](TrafficOptions*) {}), "");
  EXPECT_EQ(field([](TrafficOptions* o) { o->input = {0, 4}; }), "input-len");
  EXPECT_EQ(field([](TrafficOptions* o) { o->output = {4, 3}; }), "output-len");
  EXPECT_EQ(field([](TrafficOptions* o) { o->shared_tokens = 300; }), "shared-len");
  EXPECT_EQ(field([](TrafficOptions* o) { o->prefix_tokens = -1; }), "shared-prefix");
  EXPECT_EQ(field([](TrafficOptions* o) { o->hot_share = 0.5; }), "hot-share");
  EXPECT_EQ(field([](TrafficOptions* o) { o->prefix_tokens = 9, o->hot_share = 2; }), "hot-share");
  EXPECT_EQ(field([](TrafficOptions* o) { o->turns = 0; }), "turns");
  EXPECT_EQ(field([](TrafficOptions* o) { o->think_s = -1; }), "think");
  EXPECT_EQ(field([](TrafficOptions* o) { o->first_request = -1; }), "first-request");
}

}  // namespace
}  // namespace kvasir
