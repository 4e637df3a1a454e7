#include "server/api_call.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/chat_messages.h"

namespace kvasir {
namespace {

Result<ApiCall> Parse(const std::string& body, bool chat = false) {
  KVASIR_ASSIGN_OR_RETURN(const Json json, ParseJson(body));
  CallLimits limits;
  limits.vocab = 305;
  return ParseCall(json, chat, limits);
}

std::string FieldOf(const std::string& members, bool chat = false) {
  const std::string base =
      chat ? R"("messages":[{"role":"user","content":"hi"}])" : R"("prompt":[97,98,99])";
  const Result<ApiCall> call =
      Parse("{" + base + (members.empty() ? "" : ",") + members + "}", chat);
  if (call.ok()) return "accepted";
  EXPECT_NE(call.status().message(), "");
  EXPECT_EQ(call.status().code(), StatusCode::kInvalidArgument);
  return call.status().field();
}

TEST(ApiCallTest, DefaultsAreVllms) {
  const Result<ApiCall> call = Parse(R"({"prompt":"x"})");
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->sampling.temperature, 1.0F);
  EXPECT_EQ(call->sampling.top_p, 1.0F);
  EXPECT_EQ(call->sampling.logprobs, -1);
  EXPECT_EQ(call->n, 1);
  EXPECT_FALSE(call->stream);
  EXPECT_FALSE(call->max_tokens.has_value());
  EXPECT_TRUE(call->skip_special_tokens);
}

TEST(ApiCallTest, ValuesArrive) {
  const Result<ApiCall> call =
      Parse(R"({"prompt":[[1,2],[3]],"temperature":0.5,"top_k":7,"top_p":0.9,"min_p":0.1,
    "seed":-1,"stop":"x","logit_bias":{"5":-100,"304":1.5},"max_tokens":9,
    "min_tokens":2,"logprobs":3,"echo":true,"stop_token_ids":[1,304],"stream":true,
    "stream_options":{"include_usage":true},"priority":-3,"n":2})");
  ASSERT_TRUE(call.ok()) << call.status().message();
  ASSERT_EQ(call->prompts.size(), 2u);
  EXPECT_EQ(call->prompts[0].tokens, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(call->sampling.top_k, 7);
  EXPECT_EQ(call->sampling.seed, ~uint64_t{0});
  EXPECT_EQ(call->stop, std::vector<std::string>{"x"});
  EXPECT_EQ(call->sampling.logit_bias.size(), 2u);
  EXPECT_EQ(call->sampling.prompt_logprobs, 3);
  EXPECT_FALSE(call->want_prompt_logprobs);
  EXPECT_TRUE(call->include_usage);
  EXPECT_EQ(call->priority, -3);
}

TEST(ApiCallTest, WrongValuesNameTheirField) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"logit_bias", R"("logit_bias":{"305":5})"},
      {"logit_bias", R"("logit_bias":{"-1":5})"},
      {"logit_bias", R"("logit_bias":{"abc":5})"},
      {"logit_bias", R"("logit_bias":{"2147483648":5})"},
      {"logit_bias", R"("logit_bias":{"1":101})"},
      {"logit_bias", R"("logit_bias":{" 1":1})"},
      {"logit_bias", R"("logit_bias":[1])"},
      {"stop_token_ids", R"("stop_token_ids":[305])"},
      {"stop_token_ids", R"("stop_token_ids":7)"},
      {"max_tokens", R"("max_tokens":-1)"},
      {"max_tokens", R"("max_tokens":1.5)"},
      {"max_tokens", R"("max_tokens":"5")"},
      {"max_tokens", R"("max_tokens":true)"},
      {"max_tokens", R"("max_tokens":99999999999)"},
      {"n", R"("n":0)"},
      {"n", R"("n":-1)"},
      {"n", R"("n":129)"},
      {"top_k", R"("top_k":-5)"},
      {"temperature", R"("temperature":-1)"},
      {"temperature", R"("temperature":1e999)"},
      {"temperature", R"("temperature":"hot")"},
      {"top_p", R"("top_p":0)"},
      {"top_p", R"("top_p":1.5)"},
      {"top_p", R"("top_p":1e-60)"},
      {"min_p", R"("min_p":-0.1)"},
      {"repetition_penalty", R"("repetition_penalty":0)"},
      {"presence_penalty", R"("presence_penalty":3)"},
      {"frequency_penalty", R"("frequency_penalty":-3)"},
      {"min_tokens", R"("min_tokens":-1)"},
      {"min_tokens", R"("min_tokens":9,"max_tokens":4)"},
      {"prompt_logprobs", R"("prompt_logprobs":-1)"},
      {"logprobs", R"("logprobs":21)"},
      {"logprobs", R"("logprobs":true)"},
      {"stop", R"("stop":3)"},
      {"stop", R"("stop":["a",1])"},
      {"stop", R"("stop":"")"},
      {"stop", R"("stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])"},
      {"stream", R"("stream":1)"},
      {"stream_options", R"("stream_options":{})"},
      {"stream_options", R"("stream":true,"stream_options":3)"},
      {"best_of", R"("best_of":2)"},
      {"suffix", R"("suffix":"x")"},
      {"response_format", R"("response_format":{"type":"json_object"})"},
      {"guided_json", R"("guided_json":{})"},
      {"allowed_token_ids", R"("allowed_token_ids":[])"},
      {"bad_words", R"("bad_words":"x")"},
      {"truncate_prompt_tokens", R"("truncate_prompt_tokens":0)"},
      {"seed", R"("seed":1.5)"},
      {"request_id", R"("request_id":"a b")"},
      {"user", R"("user":5)"},
      {"kv_transfer_params", R"("kv_transfer_params":5)"},
      {"prompt_logprobs", R"("prompt_logprobs":1,"stream":true)"},
      {"model", R"("model":5)"},
      {"priority", R"("priority":3000000000)"}};
  for (const auto& [field, members] : bad) EXPECT_EQ(FieldOf(members), field) << members;
}

TEST(ApiCallTest, UnknownFieldsAreIgnoredAndNullIsAbsent) {
  EXPECT_EQ(FieldOf(R"("nobody_knows_this":[1,{"a":2}])"), "accepted");
  EXPECT_EQ(
      FieldOf(
          R"("temperature":null,"stop":null,"logprobs":null,"suffix":null,"seed":null,"n":null)"),
      "accepted");
  EXPECT_EQ(FieldOf(R"("kv_hint":{"retain":"low","ttl_s":3,"session":"s","last_use":true})"),
            "accepted");
  EXPECT_EQ(FieldOf(R"("max_tokens":5.0,"top_k":-1,"kv_transfer_params":{},"cache_salt":"x")"),
            "accepted");
}

TEST(ApiCallTest, WrongWordsToTheCacheNameTheirField) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"cache_salt", R"("cache_salt":7)"},
      {"cache_salt", R"("cache_salt":"")"},
      {"cache_salt", R"("cache_salt":["x"])"},
      {"cache_salt", "\"cache_salt\":\"" + std::string(1025, 's') + "\""},
      {"cache_prompt", R"("cache_prompt":"yes")"},
      {"kv_hint", R"("kv_hint":{"retian":"low"})"},
      {"kv_hint", R"("kv_hint":{"retain":"most"})"},
      {"kv_hint", R"("kv_hint":{"ttl_s":-1})"},
      {"kv_hint", R"("kv_hint":{"ttl_s":0})"},
      {"kv_hint", R"("kv_hint":{"ttl_s":"5"})"},
      {"kv_hint", R"("kv_hint":{"session":""})"},
      {"kv_hint", R"("kv_hint":{"session":5})"},
      {"kv_hint", R"("kv_hint":{"last_use":1})"},
      {"kv_hint", R"("kv_hint":"high")"}};
  for (const auto& [field, members] : bad) EXPECT_EQ(FieldOf(members), field) << members;
}

TEST(ApiCallTest, MessagesAgreeWithWhatIsAccepted) {
  EXPECT_EQ(Parse(R"({"prompt":"x","seed":18446744073709551615})")->sampling.seed, ~uint64_t{0});
  EXPECT_EQ(Parse(R"({"prompt":"x","seed":-9223372036854775808})")->sampling.seed,
            uint64_t{1} << 63);
  for (const char* seed : {"18446744073709551616", "-9223372036854775809", "\"5\""}) {
    const Status status = Parse(R"({"prompt":"x","seed":)" + std::string(seed) + "}").status();
    EXPECT_EQ(status.field(), "seed");
    EXPECT_TRUE(status.message().starts_with(
        "seed: must be a whole number from -9223372036854775808 to 18446744073709551615, not "))
        << status.message();
  }
  EXPECT_EQ(Parse(R"({"prompt":"x","kv_hint":{"ttl_s":-1}})").status().message(),
            "kv_hint.ttl_s: must be a number above 0 to 1000000000, not -1");
  EXPECT_EQ(Parse(R"({"prompt":"x","top_p":-0.5})").status().message(),
            "top_p: must be a number above 0 to 1, not -0.5");
}

TEST(ApiCallTest, WhatTheCacheIsTold) {
  const Result<ApiCall> plain = Parse(R"({"prompt":"x"})");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->cache.salt, "");
  EXPECT_TRUE(plain->cache.read);
  EXPECT_EQ(plain->cache.retain, Retain::kNormal);
  EXPECT_EQ(plain->cache.ttl_s, 0);
  const Result<ApiCall> call =
      Parse(R"({"prompt":"x","cache_salt":"x\u0000","cache_prompt":false,)"
            R"("kv_hint":{"retain":"high","ttl_s":2.5,"session":"s","last_use":true}})");
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call->cache.salt, std::string("x\0", 2));
  EXPECT_FALSE(call->cache.read);
  EXPECT_EQ(call->cache.retain, Retain::kHigh);
  EXPECT_EQ(call->cache.ttl_s, 2.5);
  EXPECT_EQ(call->cache.session, "s");
  EXPECT_TRUE(call->cache.last_use);
  EXPECT_EQ(call->cache.tenant, "");
  EXPECT_EQ(Parse(R"({"prompt":"x","kv_hint":{"retain":"low"}})")->cache.retain, Retain::kLow);
  const std::string message =
      Parse(R"({"prompt":"x","kv_hint":{"retian":"low"}})").status().message();
  EXPECT_NE(message.find("retian"), std::string::npos) << message;
  EXPECT_NE(message.find("retain, ttl_s, session, last_use"), std::string::npos) << message;
}

TEST(ApiCallTest, PromptShapes) {
  for (const char* good :
       {R"("a")", "[1,2]", R"(["a","b"])", "[[1,2],[3]]", R"("")", R"(["","a"])"})
    EXPECT_TRUE(Parse(std::string(R"({"prompt":)") + good + "}").ok()) << good;
  for (const char* bad : {"[]", "[[]]", R"([1,"a"])", R"(["a",1])", "[[1],[]]", "null", "5", "{}",
                          "[305]", "[-1]", "[97,305]", "[1.5]", "[[1],2]", "[null]", "[true]"}) {
    const Result<ApiCall> call = Parse(std::string(R"({"prompt":)") + bad + "}");
    ASSERT_FALSE(call.ok()) << bad;
    EXPECT_EQ(call.status().field(), "prompt") << bad;
  }
  EXPECT_FALSE(Parse("{}").ok());
  EXPECT_FALSE(Parse("[]").ok());
}

TEST(ApiCallTest, ChatFields) {
  EXPECT_EQ(FieldOf(R"("logprobs":true)", true), "accepted");
  EXPECT_EQ(FieldOf(R"("logprobs":1)", true), "logprobs");
  EXPECT_EQ(FieldOf(R"("top_logprobs":2)", true), "top_logprobs");
  EXPECT_EQ(FieldOf(R"("top_logprobs":21,"logprobs":true)", true), "top_logprobs");
  EXPECT_EQ(FieldOf(R"("tool_choice":"required")", true), "tool_choice");
  EXPECT_EQ(FieldOf(R"("tools":[{"type":"function"}])", true), "tools");
  EXPECT_EQ(FieldOf(R"("add_generation_prompt":true,"continue_final_message":true)", true),
            "continue_final_message");
  EXPECT_EQ(FieldOf(R"("chat_template":"x")", true), "chat_template");
  const Result<ApiCall> call = Parse(
      R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3,"max_completion_tokens":4})",
      true);
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->max_tokens, 4);
}

TEST(ChatMessagesTest, NormalForms) {
  const auto normal = [](const char* text) {
    const Result<Json> made = NormaliseMessages(*ParseJson(text));
    return made.ok() ? DumpJson(*made) : made.status().field();
  };
  EXPECT_EQ(normal(R"([{"role":"developer","content":[{"type":"text","text":"a"},)"
                   R"({"type":"text","text":" b"}],"x":1}])"),
            R"([{"role":"system","content":"a b"}])");
  EXPECT_EQ(
      normal(R"([{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function",)"
             R"("function":{"name":"f","arguments":"{\"a\":1}"}}]}])"),
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function",)"
      R"("function":{"name":"f","arguments":{"a":1}}}]}])");
  EXPECT_EQ(
      normal(R"([{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"12"}]}])"),
      R"([{"role":"tool","content":"12","tool_call_id":"c"}])");
  EXPECT_EQ(normal("[]"), "messages");
  EXPECT_EQ(normal("{}"), "messages");
  EXPECT_EQ(normal("[5]"), "messages[0]");
  EXPECT_EQ(normal(R"([{"role":"user","content":5}])"), "messages[0].content");
  EXPECT_EQ(normal(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(normal(R"([{"role":"user","content":"a"},{"role":"poet","content":"b"}])"),
            "messages[1].role");
  EXPECT_EQ(normal(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"),
            "messages[0].content[0]");
  EXPECT_EQ(normal(R"([{"role":"user","content":"a","name":5}])"), "messages[0].name");
}

}  // namespace
}  // namespace kvasir
