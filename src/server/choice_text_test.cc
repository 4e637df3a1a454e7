#include "server/choice_text.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace kvasir {
namespace {

// Pushes token by token; *tokens: how many until the match (or all).
std::string Show(const std::vector<std::string>& tokens, const std::vector<std::string>& stop,
                 size_t* count, bool include = false) {
  ChoiceText text(&stop, include);
  std::string out;
  for (*count = 0; *count < tokens.size() && !text.stopped();)
    out += text.Push(tokens[(*count)++], true);
  return out + text.Finish();
}

TEST(ChoiceTextTest, StopStringsOverTokenBorders) {
  const std::vector<std::string> tokens = {"one", " tw", "o", " thr", "ee", " four"};
  size_t count = 0;
  EXPECT_EQ(Show(tokens, {"two three"}, &count), "one ");
  EXPECT_EQ(count, 5u);
  EXPECT_EQ(Show(tokens, {"o thr"}, &count), "one tw");
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(Show(tokens, {"three", "two"}, &count), "one ");
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(Show(tokens, {"ee f"}, &count), "one two thr");
  EXPECT_EQ(count, 6u);
  EXPECT_EQ(Show(tokens, {"ee f"}, &count, true), "one two three f");
  EXPECT_EQ(Show(tokens, {"nothing"}, &count), "one two three four");
}

TEST(ChoiceTextTest, HeldTextIsShownAtTheEnd) {
  const std::vector<std::string> stop = {"abc"};
  ChoiceText text(&stop, false);
  EXPECT_EQ(text.Push("xab", true), "x");
  EXPECT_TRUE(text.holding());
  EXPECT_EQ(text.Push("abd", true), "ababd");
  EXPECT_EQ(text.Push("ab", true), "");
  EXPECT_EQ(text.Finish(), "ab");
}

TEST(ChoiceTextTest, CharactersAreShownWhole) {
  const std::vector<std::string> stop;
  ChoiceText text(&stop, false);
  EXPECT_EQ(text.Push("\xF0\x9F", true), "");
  EXPECT_EQ(text.Push("\x98\x80", true), "\xF0\x9F\x98\x80");
  EXPECT_EQ(text.characters(), 1);
  EXPECT_EQ(text.Push("\xC3", true), "");
  EXPECT_EQ(text.Finish(), "\xEF\xBF\xBD");
}

TEST(ChoiceTextTest, TextOfTheFirstTokensIsNotWatched) {
  const std::vector<std::string> stop = {"ab"};
  ChoiceText text(&stop, false);
  EXPECT_EQ(text.Push("ab", false), "ab");
  EXPECT_EQ(text.Push("ab", true), "");
  EXPECT_TRUE(text.stopped());
}

// Against a model that looks at the whole text again after every token.
TEST(ChoiceTextTest, RandomTextsAgainstNaiveSearch) {
  const unsigned seed = 20261129;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto word = [&](size_t low, size_t high) {
    std::string out;
    for (size_t n = low + random() % (high - low + 1); n > 0; --n)
      out += static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stop;
    for (size_t n = random() % 4; n > 0; --n) stop.push_back(word(1, 5));
    const bool include = random() % 2 == 0;
    ChoiceText text(&stop, include);
    std::string all, shown;
    for (int token = 0; token < 12 && !text.stopped(); ++token) {
      const std::string bytes = word(0, 4);
      all += bytes;
      shown += text.Push(bytes, true);
      size_t first = std::string::npos, end = 0;
      for (const std::string& s : stop) {
        const size_t at = all.find(s);
        if (at < first) {
          first = at;
          end = include ? at + s.size() : at;
        }
      }
      ASSERT_EQ(text.stopped(), first != std::string::npos);
      if (text.stopped()) {
        ASSERT_EQ(shown, all.substr(0, end));
        break;
      }
      ASSERT_EQ(shown, all.substr(0, shown.size()));
      // Nothing shown may be part of a stop string that is still possible.
      for (const std::string& s : stop)
        for (size_t n = 1; n < s.size() && n <= all.size(); ++n)
          if (all.compare(all.size() - n, n, s, 0, n) == 0) {
            ASSERT_LE(shown.size(), all.size() - n);
          }
    }
    shown += text.Finish();
    if (!text.stopped()) {
      ASSERT_EQ(shown, all);
    }
  }
}

}  // namespace
}  // namespace kvasir
