// The API over real sockets, with a worker that copies: what every answer must look like, streamed
// and plain.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "server/test_http.h"

namespace kvasir {
namespace {

const std::string kFamily = "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466";

// A script for the last 32 places: what the worker then answers, ended by the end token.
Json Script(const std::vector<TokenId>& answer) {
  std::vector<TokenId> prompt = answer;
  prompt.push_back(kTestEnd);
  prompt.resize(32, 'x');
  return prompt;
}
std::vector<TokenId> Bytes(const std::string& text) {
  std::vector<TokenId> out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

struct Joined {
  std::string text;
  std::string finish;
  Json tokens = Json::array();  // of logprobs
  Json usage;
  int usages = 0;
  bool done = false;
  std::vector<std::string> pieces;
};

Joined Join(const TestReply& reply, bool chat, int index = 0) {
  Joined out;
  EXPECT_EQ(reply.status, 200) << reply.body;
  for (const Json& event : Events(reply.body, &out.done)) {
    EXPECT_TRUE(event.is_object());
    if (event.contains("usage")) {
      out.usage = event["usage"];
      ++out.usages;
      EXPECT_TRUE(event["choices"].empty());
    }
    for (const Json& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      EXPECT_EQ(out.finish, "") << "an event after the last";
      std::string piece;
      if (chat) {
        piece = choice["delta"].value("content", "");
        if (choice["logprobs"].is_object())
          for (const Json& entry : choice["logprobs"]["content"]) out.tokens.push_back(entry);
      } else {
        piece = choice["text"].get<std::string>();
        if (choice["logprobs"].is_object())
          for (const Json& entry : choice["logprobs"]["tokens"]) out.tokens.push_back(entry);
      }
      out.text += piece;
      out.pieces.push_back(piece);
      if (choice["finish_reason"].is_string()) out.finish = choice["finish_reason"];
    }
  }
  return out;
}

class ServerApiTest : public ::testing::Test {
 protected:
  Json Plain(const std::string& path, const Json& body) {
    const TestReply reply = server_.Post(path, DumpJson(body));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json();
  }
  Joined Streamed(const std::string& path, Json body, int index = 0) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    return Join(server_.Post(path, DumpJson(body)), path == kChat, index);
  }
  // 400, and the error names the field.
  void Refused(const std::string& path, const std::string& body, const std::string& field) {
    const TestReply reply = server_.Post(path, body);
    EXPECT_EQ(reply.status, 400) << body << reply.body;
    const Json error = reply.json()["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], field) << body << DumpJson(error);
    EXPECT_NE(error["message"].get<std::string>().find(field.substr(0, field.find('['))),
              std::string::npos)
        << error;
  }
  static constexpr const char* kChat = "/v1/chat/completions";
  static constexpr const char* kText = "/v1/completions";
  TestServer server_;
};

TEST_F(ServerApiTest, StopTextOverTokens) {
  const std::vector<std::tuple<std::vector<std::string>, std::string, int>> cases = {
      {{"two three"}, "one ", 5},
      {{"o thr"}, "one tw", 4},
      {{"three", "two"}, "one ", 3},
      {{"ee f"}, "one two thr", 6}};
  for (const auto& [stop, text, tokens] : cases) {
    Json body = {{"model", "m"},
                 {"prompt", Script({257, 259, 'o', 261, 262, 266})},
                 {"max_tokens", 40},
                 {"stop", stop}};
    const Json plain = Plain(kText, body);
    EXPECT_EQ(plain["choices"][0]["text"], text);
    EXPECT_EQ(plain["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(plain["usage"]["completion_tokens"], tokens);
    const Joined streamed = Streamed(kText, body);
    EXPECT_EQ(streamed.text, text);
    EXPECT_EQ(streamed.finish, "stop");
    EXPECT_EQ(streamed.usage["completion_tokens"], tokens);
    body["include_stop_str_in_output"] = true;
    EXPECT_NE(Plain(kText, body)["choices"][0]["text"], text);
  }
  EXPECT_TRUE(Eventually([&] { return server_.worker.stats().running == 0; }));
}

TEST_F(ServerApiTest, UsageInStreamsOnlyWhenAskedFor) {
  const std::string base = R"({"prompt":[97,98,99],"max_tokens":3,"stream":true)";
  for (const char* more :
       {"}", R"(,"stream_options":{}})", R"(,"stream_options":{"include_usage":false}})"})
    EXPECT_EQ(Join(server_.Post(kText, base + more), false).usages, 0);
  const Joined with =
      Join(server_.Post(kText, base + R"(,"stream_options":{"include_usage":true}})"), false);
  EXPECT_EQ(with.usages, 1);
  EXPECT_TRUE(with.done);
  EXPECT_EQ(with.usage["prompt_tokens"], 3);
  EXPECT_EQ(with.usage["completion_tokens"], 3);
  EXPECT_EQ(with.usage["total_tokens"], 6);
  EXPECT_EQ(with.usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_TRUE(with.usage["kvasir"]["cached"].contains("hot"));
  Refused(kText, R"({"prompt":"a","stream_options":{}})", "stream_options");
}

TEST_F(ServerApiTest, CharactersOverTokensAndBrokenBytes) {
  const std::string text = kFamily + "\u00E9";
  std::vector<TokenId> script = Bytes(text + "\x80" + "ok");
  for (int max = 1; max <= 31; ++max) {
    const Json body = {{"prompt", Script(script)}, {"max_tokens", max}};
    const Json plain = Plain(kText, body);
    const Joined streamed = Streamed(kText, body);
    EXPECT_EQ(streamed.text, plain["choices"][0]["text"].get<std::string>()) << max;
    EXPECT_EQ(streamed.usage["completion_tokens"], plain["usage"]["completion_tokens"]);
    for (const std::string& piece : streamed.pieces)
      EXPECT_EQ(FindInvalidUtf8(piece), std::string::npos);
    if (max == 31) {
      EXPECT_EQ(streamed.text, text + "\uFFFD" + "ok");
    }
  }
}

TEST_F(ServerApiTest, ChatAnswersAndLogprobs) {
  Json body = {
      {"messages", {{{"role", "user"}, {"content", "0123456789x" + kFamily + "\u00E9ok"}}}},
      {"max_tokens", 40},
      {"logprobs", true},
      {"top_logprobs", 2}};
  // The template's tail is 13 tokens, so the answer begins 19 before the end of the message.
  const Json plain = Plain(kChat, body);
  const Json& choice = plain["choices"][0];
  EXPECT_EQ(plain["object"], "chat.completion");
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["finish_reason"], "stop");
  std::string joined;
  for (const Json& entry : choice["logprobs"]["content"]) {
    EXPECT_TRUE(entry["logprob"].is_number());
    EXPECT_EQ(entry["top_logprobs"].size(), 2u);
    for (const Json& byte : entry["bytes"]) joined += static_cast<char>(byte.get<int>());
  }
  // The answer may begin inside a character: compare its whole part.
  const std::string text = choice["message"]["content"];
  EXPECT_EQ(joined.substr(joined.size() - 4), "\u00E9ok");
  EXPECT_EQ(choice["logprobs"]["content"].size(),
            plain["usage"]["completion_tokens"].get<size_t>());
  const Joined streamed = Streamed(kChat, body);
  EXPECT_EQ(streamed.text, text);
  EXPECT_EQ(streamed.tokens, choice["logprobs"]["content"]);
  EXPECT_EQ(streamed.usage["completion_tokens"], plain["usage"]["completion_tokens"]);
  body.erase("top_logprobs");
  const Json without = Plain(kChat, body);
  for (const Json& entry : without["choices"][0]["logprobs"]["content"])
    EXPECT_TRUE(entry["top_logprobs"].empty());
}

TEST_F(ServerApiTest, EchoWithLogprobs) {
  const Json body = {
      {"prompt", Script(Bytes("abcdef"))}, {"max_tokens", 4}, {"logprobs", 1}, {"echo", true}};
  const Json choice = Plain(kText, body)["choices"][0];
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 36u);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["text_offset"][35].get<size_t>() + 1,
            choice["text"].get<std::string>().size());
  const Joined streamed = Streamed(kText, body);
  EXPECT_EQ(streamed.text, choice["text"].get<std::string>());
  EXPECT_EQ(streamed.tokens, logprobs["tokens"]);
  const Json none =
      Plain(kText, {{"prompt", "abc"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(none["choices"][0]["text"], "abc");
  EXPECT_EQ(none["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(Plain(kText, {{"prompt", "abc"}, {"max_tokens", 0}})["choices"][0]["text"], "");
}

TEST(ServerLogprobsTest, MinusInfinityIsNeverWritten) {
  FakeWorkerOptions options;
  options.infinite_logprobs = true;
  const TestServer server(options);
  const TestReply reply = server.Post(
      "/v1/completions",
      R"({"prompt":"abc","max_tokens":2,"logprobs":3,"prompt_logprobs":2,"echo":true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_NE(reply.body.find("-9999.0"), std::string::npos);
  EXPECT_EQ(reply.body.find("inf"), std::string::npos);
  EXPECT_EQ(reply.json()["choices"][0]["prompt_logprobs"].size(), 3u);
}

TEST_F(ServerApiTest, SeveralPromptsAndChoices) {
  const Json body = {
      {"prompt", {Script(Bytes("abc")), Script(Bytes("mn"))}}, {"n", 2}, {"max_tokens", 9}};
  const Json plain = Plain(kText, body);
  const std::vector<std::string> texts = {"abc", "bcd", "mn", "no"};
  ASSERT_EQ(plain["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(plain["choices"][i]["index"], i);
    EXPECT_EQ(plain["choices"][i]["text"], texts[static_cast<size_t>(i)]);
    EXPECT_EQ(Streamed(kText, body, i).text, texts[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(plain["usage"]["prompt_tokens"], 64);
  EXPECT_EQ(plain["usage"]["completion_tokens"], 4 + 4 + 3 + 3);
}

TEST(ServerContextTest, APoolThatIsSmallerThanTheModelIsNamed) {
  FakeWorkerOptions options;
  options.context = 256;
  for (const int32_t model_len : {0, 256, 8192}) {
    const TestServer server(options, {}, false, model_len);
    // Counted, asked for, and too long to be counted.
    for (const std::string& body : {DumpJson({{"prompt", std::vector<int>(300, 'a')}}),
                                    std::string(R"({"prompt":"ab","max_tokens":400})"),
                                    R"({"prompt":")" + std::string(1 << 20, 'a') + "\"}"}) {
      const TestReply reply = server.Post("/v1/completions", body);
      EXPECT_EQ(reply.status, 400);
      EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded");
      const std::string message = reply.json()["error"]["message"];
      const bool pool = message.starts_with(
          "This server's KV pool holds 256 tokens (--kv-mem), fewer than this model's context of "
          "8192. However, ");
      const bool model =
          message.starts_with("This model's maximum context length is 256 tokens. However, ");
      EXPECT_EQ(pool, model_len == 8192) << message;
      EXPECT_EQ(model, model_len != 8192) << message;
    }
  }
}

TEST(ServerContextTest, TheEdgeOfTheContext) {
  FakeWorkerOptions options;
  options.context = 256;
  const TestServer server(options);
  const auto ask = [&](size_t tokens, const std::string& more) {
    return server.Post("/v1/completions",
                       DumpJson({{"prompt", std::vector<int>(tokens, 'a')}}).insert(1, more));
  };
  EXPECT_EQ(ask(254, "").json()["choices"][0]["text"], "aa");
  EXPECT_EQ(ask(254, "").json()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(ask(255, "").json()["usage"]["completion_tokens"], 1);
  for (const size_t tokens : {256, 257, 400})
    for (const char* more : {"", R"("max_tokens":0,)", R"("max_tokens":1,)"}) {
      const TestReply reply = ask(tokens, more);
      EXPECT_EQ(reply.status, 400);
      const std::string message = reply.json()["error"]["message"];
      EXPECT_NE(message.find("256"), std::string::npos);
      EXPECT_NE(message.find(std::to_string(tokens)), std::string::npos) << message;
      EXPECT_EQ(reply.json()["error"]["param"], "prompt");
      EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded");
    }
  const TestReply over = ask(255, R"("max_tokens":10,)");
  EXPECT_EQ(over.status, 400);
  EXPECT_EQ(over.json()["error"]["param"], "max_tokens");
  EXPECT_NE(over.body.find("255"), std::string::npos);
  EXPECT_EQ(
      ask(400, R"("truncate_prompt_tokens":9,"max_tokens":1,)").json()["usage"]["prompt_tokens"],
      9);
  const TestReply chat = server.Post(
      "/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":256})");
  EXPECT_EQ(chat.status, 400);
  // So long that it is not even tokenised.
  const TestReply giant =
      server.Post("/v1/completions", R"({"prompt":")" + std::string(1 << 20, 'a') + "\"}");
  EXPECT_EQ(giant.status, 400);
  EXPECT_NE(giant.body.find("at least"), std::string::npos);
}

TEST_F(ServerApiTest, EmptyPrompts) {
  for (const char* prompt :
       {R"("")", "[]", "[[]]", R"(["", "a"])", R"([1, "a"])", "[[1], []]", "null", "5"})
    Refused(kText, std::string(R"({"prompt":)") + prompt + "}", "prompt");
  Refused(kText, "{}", "prompt");
  EXPECT_EQ(Plain(kText, {{"prompt", {{1, 2}, {3}}}, {"max_tokens", 1}})["choices"].size(), 2u);
  const TestServer with_bos({}, {}, true);
  const TestReply reply = with_bos.Post(kText, R"({"prompt":"","max_tokens":1})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["usage"]["prompt_tokens"], 1);
}

TEST_F(ServerApiTest, MalformedBodiesAndUnusualMessages) {
  const std::vector<std::string> bad = {
      "",
      "{",
      R"([{"model":"m"}])",
      R"({"messages":{"role":"user","content":"hi"}})",
      R"({"messages":[]})",
      R"({"messages":[{"role":"user","content":5}]})",
      R"({"messages":[{"role":"user","content":"hi"}],"stop":3})",
      R"({"messages":)" + std::string(200, '[') + std::string(200, ']') + "}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\xFF"
      "b\"}]}",
      R"({"messages":[{"role":"user","content":"a\ud800b"}]})",
      R"({"messages":[{"role":"user","content":"a)" + std::string(1, '\0') + "b\"}]}",
      R"({"messages":[{"role":"poet","content":"hi"}]})"};
  TestClient client = server_.Connect();  // one connection: it stays usable
  for (const std::string& body : bad) {
    const TestReply reply = client.Post(kChat, body);
    EXPECT_EQ(reply.status, 400) << body;
    const Json error = reply.json()["error"];
    EXPECT_TRUE(error["message"].is_string() && error["type"].is_string() &&
                error.contains("param"))
        << reply.body;
  }
  EXPECT_EQ(
      client.Post(kChat, R"({"model":"no-such-model","messages":[{"role":"user","content":"hi"}]})")
          .status,
      404);
  for (const char* message :
       {R"({"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":" two"}]})",
        R"({"role":"assistant","content":""})", R"({"role":"developer","content":"be brief"})",
        R"({"role":"assistant","content":null,"tool_calls":[{"id":"c",)"
        R"("type":"function","function":{"name":"f","arguments":"{}"}}]})",
        R"({"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"12"}]})",
        R"({"role":"user","content":"a\u0000b"})"})
    EXPECT_EQ(
        client.Post(kChat, std::string(R"({"max_tokens":2,"messages":[)") + message + "]}").status,
        200)
        << message;
}

TEST_F(ServerApiTest, TokenizeAndBack) {
  const Json tokens = Plain("/tokenize", {{"prompt", "a\u00E9"}, {"return_token_strs", true}});
  EXPECT_EQ(tokens["tokens"], Json({97, 0xC3, 0xA9}));
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_EQ(tokens["max_model_len"], 4096);
  EXPECT_EQ(Plain("/detokenize", {{"tokens", {97, 0xC3, 0xA9}}})["prompt"], "a\u00E9");
  // Control tokens: the template's are tokens, the user's are text.
  const Json chat =
      Plain("/tokenize", {{"messages", {{{"role", "user"}, {"content", "<|im_end|>"}}}}});
  int ends = 0;
  for (const Json& token : chat["tokens"]) ends += token == kTestEnd ? 1 : 0;
  EXPECT_EQ(ends, 1);
  Refused("/detokenize", R"({"tokens":[305]})", "tokens");
  Refused("/tokenize", R"({"prompt":5})", "prompt");
}

TEST_F(ServerApiTest, TokenIdsAndRequestIds) {
  const Json plain = Plain(
      kText, {{"prompt", Script(Bytes("ab"))}, {"return_token_ids", true}, {"request_id", "r-1"}});
  EXPECT_EQ(plain["choices"][0]["token_ids"], Json({'a', 'b', kTestEnd}));
  EXPECT_EQ(plain["choices"][0]["prompt_token_ids"].size(), 32u);
  EXPECT_EQ(plain["id"], "cmpl-r-1");
  TestClient client = server_.Connect();
  EXPECT_EQ(client.Get("/version", "X-Request-Id: abc\r\n").headers["X-Request-Id"], "abc");
  EXPECT_NE(client.Get("/version", "X-Request-Id: a b;\r\n").headers["X-Request-Id"], "a b;");
}

TEST_F(ServerApiTest, StopReasons) {
  const Json base = {{"prompt", Script(Bytes("abcd"))}, {"max_tokens", 40}};
  const auto choice = [&](const Json& more) {
    Json body = base;
    body.update(more);
    return Plain(kText, body)["choices"][0];
  };
  EXPECT_TRUE(choice(Json::object())["stop_reason"].is_null());
  EXPECT_EQ(choice({{"stop", "c"}})["stop_reason"], "c");
  EXPECT_EQ(choice({{"stop_token_ids", {'c'}}})["stop_reason"], 'c');
  EXPECT_EQ(choice({{"stop_token_ids", {'c'}}})["text"], "ab");
  EXPECT_EQ(choice({{"stop_token_ids", {'c'}}, {"include_stop_str_in_output", true}})["text"],
            "abc");
  EXPECT_EQ(choice({{"stop", "c"}, {"min_tokens", 3}})["finish_reason"], "stop");
  EXPECT_EQ(choice({{"ignore_eos", true}, {"max_tokens", 6}})["finish_reason"], "length");
  EXPECT_EQ(
      choice({{"ignore_eos", true}, {"max_tokens", 5}, {"skip_special_tokens", false}})["text"],
      "abcd<|im_end|>");
}

TEST(ServerErrorTest, EngineErrors) {
  FakeWorkerOptions options;
  options.fail_after = 2;
  const TestServer server(options);
  const std::string body = R"({"prompt":"abc","max_tokens":9)";
  EXPECT_EQ(server.Post("/v1/completions", body + "}").status, 500);
  const TestReply streamed = server.Post("/v1/completions", body + R"(,"stream":true})");
  EXPECT_EQ(streamed.status, 200);
  bool done = false;
  const std::vector<Json> events = Events(streamed.body, &done);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()["error"]["type"], "server_error");
  EXPECT_TRUE(done);
  EXPECT_NE(
      server.metrics.Serialize(nullptr).find("{finished_reason=\"error\",model_name=\"m\"} 2"),
      std::string::npos);
}

TEST_F(ServerApiTest, MoreFields) {
  const Json continued = Plain(
      "/tokenize",
      {{"messages",
        {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", "so far"}}}},
       {"continue_final_message", true}});
  EXPECT_EQ(continued["tokens"].back(), 'r');
  const Json model = server_.Get("/v1/models").json()["data"][0];
  EXPECT_EQ(model["id"], "m");
  EXPECT_EQ(server_.Get("/v1/models/m").json(), model);
}

// The bodies that come with the project's cases, where they are at hand.
TEST_F(ServerApiTest, SharedCases) {
  const std::string folder = "../shared/cases/requests/";
  std::ifstream index(folder + "index.json");
  if (!index) GTEST_SKIP() << "no ../shared/cases/requests: the shared cases are not run";
  std::stringstream list;
  list << index.rdbuf();
  const Json cases = ParseJson(list.str()).value();
  int run = 0;
  for (const Json& entry : cases) {
    const std::string file = entry["file"];
    const std::string fixture = entry["fixture"];
    if (fixture != "copy_32" || file[0] != 'A' || file == "A06_2.json") continue;
    std::ifstream in(folder + file);
    std::stringstream text;
    text << in.rdbuf();
    Json body = ParseJson(text.str()).value();
    body["model"] = "m";
    const TestReply reply = server_.Post(entry["endpoint"], DumpJson(body));
    const Json& expect = entry["expect"];
    if (expect["status"] != 200) continue;
    EXPECT_EQ(reply.status, 200) << file << reply.body;
    ++run;
    // A06_4 counts on the fixtures' tokens of several bytes.
    if (!expect.contains("text") || file == "A06_4.json") continue;
    const bool chat = entry["endpoint"] == kChat;
    const Json choice = body.value("stream", false) ? Json() : reply.json()["choices"][0];
    const std::string plain = choice.is_null() ? Join(reply, chat).text
                              : chat           ? choice["message"]["content"].get<std::string>()
                                               : choice["text"].get<std::string>();
    EXPECT_EQ(plain, expect["text"].get<std::string>()) << file;
    EXPECT_EQ(Streamed(entry["endpoint"], body).text, plain) << file;
  }
  EXPECT_GE(run, 10);
}

}  // namespace
}  // namespace kvasir
