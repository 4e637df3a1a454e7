#include "server/json_reader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace kvasir {
namespace {

std::string Fails(const std::string& text) {
  const Result<Json> result = ParseJson(text);
  return result.ok() ? "" : result.status().message();
}

TEST(JsonReaderTest, KeepsOrderAndLastOfDuplicates) {
  const Result<Json> result = ParseJson(R"({"b":1,"a":[true,null,-2,2.5,"x"],"b":3})");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(DumpJson(*result), R"({"b":3,"a":[true,null,-2,2.5,"x"]})");
}

TEST(JsonReaderTest, RefusesWhatIsNotJson) {
  for (const std::string text : {"", "{", "[1,]", "{\"a\":1}x", "nul",
                                 "\"a\xFF"
                                 "b\"",
                                 "\"\\ud800b\"", "\"\\udc00\"", "\"a\tb\"", "01", "+1", "NaN",
                                 "{\"a\" 1}", "'a'", "\xEF\xBB", "[1 2]"})
    EXPECT_NE(Fails(text), "") << text;
  EXPECT_NE(Fails(std::string("\"a\0b\"", 5)), "");
}

TEST(JsonReaderTest, EscapedNulIsACharacter) {
  const Result<Json> result = ParseJson(R"(["a\u0000b"])");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ((*result)[0].get<std::string>(), std::string("a\0b", 3));
}

TEST(JsonReaderTest, DepthAndCountAreLimited) {
  EXPECT_EQ(Fails(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_NE(Fails(std::string(65, '[') + std::string(65, ']')).find("64"), std::string::npos);
  EXPECT_NE(Fails(std::string(1000000, '[')).find("64"), std::string::npos);
  JsonLimits limits;
  limits.values_max = 4;
  EXPECT_TRUE(ParseJson("[1,2,3]", limits).ok());
  EXPECT_FALSE(ParseJson("[1,2,3,4]", limits).ok());
}

TEST(JsonReaderTest, NumbersTooLargeNameTheirField) {
  const Result<Json> result = ParseJson(R"({"temperature": 1e999})");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().field(), "temperature");
}

TEST(JsonReaderTest, ManyMembersStayOrderedAndUnique) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i)
    text += "\"k" + std::to_string(i % 100000) + "\":" + std::to_string(i) + ",";
  text += "\"end\":0}";
  const Result<Json> result = ParseJson(text);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->size(), 100001u);
  EXPECT_EQ(result->begin().key(), "k0");
  EXPECT_EQ(result->begin().value(), 100000);
}

TEST(JsonReaderTest, DumpReplacesInvalidBytes) {
  EXPECT_EQ(DumpJson(Json("a\xFF")), "\"a\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace kvasir
