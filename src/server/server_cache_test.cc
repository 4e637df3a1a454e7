// /v1/kvcache*, the cache's fields of a request and what usage and Retry-After say of it, with a
// worker that records what it is told.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "server/test_http.h"

namespace kvasir {
namespace {

constexpr const char* kText = "/v1/completions";

TestReply PostAs(const TestServer& server, const std::string& key, const std::string& path,
                 const std::string& body) {
  return server.Connect().Post(path, body, "Authorization: Bearer " + key + "\r\n");
}
TestReply GetAs(const TestServer& server, const std::string& key, const std::string& path) {
  return server.Connect().Get(path, "Authorization: Bearer " + key + "\r\n");
}

TEST(ServerCacheTest, ARequestsWishesReachTheEngine) {
  TestServer server;
  const std::string hint =
      R"("kv_hint":{"retain":"low","ttl_s":3,"session":"s","last_use":true},"cache_salt":"pepper",)"
      R"("cache_prompt":false,"priority":-7)";
  EXPECT_EQ(server.Post(kText, R"({"prompt":["ab","c"],"max_tokens":1,)" + hint + "}").status, 200);
  EXPECT_EQ(server
                .Post("/v1/chat/completions",
                      R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,)" + hint + "}")
                .status,
            200);
  EXPECT_EQ(server.Post(kText, R"({"prompt":"ab","max_tokens":1})").status, 200);
  const std::vector<Request> seen = server.worker.requests();
  ASSERT_EQ(seen.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen[i].priority, -7);
    EXPECT_EQ(seen[i].cache.salt, "pepper");
    EXPECT_EQ(seen[i].cache.retain, Retain::kLow);
    EXPECT_EQ(seen[i].cache.ttl_s, 3);
    EXPECT_EQ(seen[i].cache.session, "s");
    EXPECT_TRUE(seen[i].cache.last_use);
    EXPECT_FALSE(seen[i].cache.read);
  }
  EXPECT_EQ(seen[3].priority, 0);
  EXPECT_EQ(seen[3].cache.salt, "");
  EXPECT_EQ(seen[3].cache.tenant, "");
  EXPECT_EQ(seen[3].cache.retain, Retain::kNormal);
  EXPECT_TRUE(seen[3].cache.read);
}

Json UsageOf(int32_t cached, MissReason reason, const std::string& prompt) {
  FakeWorkerOptions options;
  options.cached_tokens = cached;
  options.miss_reason = reason;
  const TestServer server(options);
  return server.Post(kText, R"({"max_tokens":1,"prompt":)" + prompt + "}").json()["usage"];
}

TEST(ServerCacheTest, UsageSaysWhatWasFoundAndWhyNotAll) {
  Json usage = UsageOf(3, MissReason::kEvicted, R"("abcdef")");
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 3);
  EXPECT_EQ(usage["kvasir"]["cached"], Json({{"hot", 3}, {"ram", 0}, {"disk", 0}, {"peer", 0}}));
  EXPECT_EQ(usage["kvasir"]["miss_reason"], "evicted");
  EXPECT_EQ(UsageOf(5, MissReason::kPartialBlock, R"("abcdef")")["kvasir"]["miss_reason"],
            "partial_block");
  EXPECT_TRUE(UsageOf(6, MissReason::kCold, R"("abcdef")")["kvasir"]["miss_reason"].is_null());
  // That somebody else has the text is nobody's business, whatever the engine says.
  EXPECT_EQ(UsageOf(0, MissReason::kSalt, R"("abcdef")")["kvasir"]["miss_reason"], "cold");
  // Two prompts: the sum of both.
  usage = UsageOf(2, MissReason::kExpired, R"(["abc","ab"])");
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(usage["kvasir"]["miss_reason"], "expired");
  // Nothing is looked up where nothing is computed.
  const TestServer idle;
  const Json none = idle.Post(kText, R"({"prompt":"ab","max_tokens":0})").json()["usage"];
  EXPECT_TRUE(none["kvasir"]["miss_reason"].is_null());
}

TEST(ServerCacheTest, StateShowsBooksCountsAndPins) {
  FakeWorkerOptions worker;
  worker.context = 800;  // 50 blocks: pins may not have more of 100 than half
  TestServer server(worker);
  CacheReply reply;
  reply.books = {100, 40, 5, 10, 20, 25, 0};
  reply.counts.queries = 1000;
  reply.counts.hits = 750;
  reply.counts.misses[static_cast<size_t>(MissReason::kCold)] = 100;
  reply.counts.misses[static_cast<size_t>(MissReason::kSalt)] = 50;
  reply.counts.misses[static_cast<size_t>(MissReason::kEvicted)] = 100;
  reply.counts.evictions[static_cast<size_t>(EvictReason::kCapacity)] = 9;
  reply.counts.pinned_by_name = 4;
  reply.slots_allocated = 400;
  reply.slots_used = 396;
  reply.hottest.push_back({64, 12, 2, {'h', 'o', 't'}});
  reply.pins.push_back({7, 64, 4, 9'500'000'000, "mine"});
  reply.owners.push_back({"key-1", 25});
  reply.owners.push_back({"idle", 0});
  reply.now_ns = 1'000'000'000;
  reply.evict = "s3fifo";
  server.worker.cache_reply = reply;
  const TestReply got = server.Get("/v1/kvcache");
  ASSERT_EQ(got.status, 200) << got.body;
  const Json state = got.json();
  EXPECT_EQ(state["evict"], "s3fifo");
  int64_t sum = 0;
  for (const char* name : {"free", "reserved", "filling", "pinned", "evictable", "inflight"})
    sum += state["blocks"][name].get<int64_t>();
  EXPECT_EQ(sum, state["blocks"]["total"]);
  EXPECT_EQ(state["slots"]["waste_ratio"], 0.01);
  EXPECT_EQ(state["tokens"]["hit"]["hot"], 750);
  EXPECT_EQ(state["tokens"]["hit_ratio"], 0.75);
  EXPECT_EQ(state["tokens"]["miss"]["cold"], 150);
  EXPECT_FALSE(state["tokens"]["miss"].contains("salt"));
  EXPECT_EQ(state["tokens"]["miss"]["evicted"], 100);
  EXPECT_EQ(state["evictions"]["capacity"], 9);
  EXPECT_EQ(state["pinning"], Json({{"budget_blocks", 50}, {"pinned_blocks", 4}}));
  EXPECT_EQ(state["pins"][0]["id"], 7);
  EXPECT_EQ(state["pins"][0]["expires_in_s"], 8.5);
  EXPECT_EQ(state["pins"][0]["session"], "mine");
  EXPECT_EQ(state["owners"], Json::array({{{"name", "key-1"}, {"blocks", 25}}}));
  EXPECT_EQ(state["hottest"][0]["tokens"], 64);
  EXPECT_EQ(state["hottest"][0]["ends_with"], "hot");
  EXPECT_EQ(server.worker.commands().at(0).kind, CacheRequest::Kind::kState);
  // Of a namespace of its own the engine gives no tokens.
  reply.hottest[0].head.clear();
  server.worker.cache_reply = reply;
  const Json other = server.Get("/v1/kvcache").json()["hottest"][0];
  EXPECT_TRUE(other["ends_with"].is_null());
  EXPECT_EQ(other["tokens"], 64);
}

TEST(ServerCacheTest, PinsLeaveRoomForTheLongestSequence) {
  FakeWorkerOptions worker;
  worker.context = 1300;  // 82 blocks
  TestServer server(worker);
  server.worker.cache_reply.books.total = 100;
  EXPECT_EQ(server.Get("/v1/kvcache").json()["pinning"]["budget_blocks"], 18);
  server.worker.cache_reply.books.total = 70;
  EXPECT_EQ(server.Get("/v1/kvcache").json()["pinning"]["budget_blocks"], 0);
}

TEST(ServerCacheTest, AFormatThatFailedItsCertificateIsShown) {
  FakeWorkerOptions worker;
  worker.kv_verdict = "failed its certificate for strict: mean KLD 0.5 > 0.001";
  TestServer server(worker);
  const Json format = server.Get("/v1/kvcache").json()["kv_format"];
  EXPECT_EQ(format,
            Json({{"k", "f16"}, {"v", "f16"}, {"verdict", worker.kv_verdict}, {"failed", true}}));
  const TestReply page = server.Get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.body.find(
                "K in f16, V in f16: failed its certificate for strict: mean KLD 0.5 &gt; 0.001"),
            std::string::npos);
}

TEST(ServerCacheTest, SeveralKeysSeeNoText) {
  ServerOptions options;
  options.api_keys = {"a", "b"};
  TestServer server({}, options);
  server.worker.cache_reply.hottest.push_back({64, 12, 2, {'h', 'o', 't'}});
  const Json state = GetAs(server, "b", "/v1/kvcache").json();
  EXPECT_EQ(state["hottest"][0]["hits"], 12);
  EXPECT_TRUE(state["hottest"][0]["ends_with"].is_null());
  EXPECT_EQ(server.worker.commands().at(0).tenant, "");
}

TEST(ServerCacheTest, EachKeyIsATenantIfAskedFor) {
  ServerOptions options;
  options.api_keys = {"first", "second"};
  options.api_key_tenants = true;
  TestServer server({}, options);
  server.worker.cache_reply.hottest.push_back({64, 12, 2, {'h'}});
  server.worker.cache_reply.pin.tokens = 2;
  const std::string body = R"({"prompt":"ab","max_tokens":1,"cache_salt":"x"})";
  EXPECT_EQ(PostAs(server, "first", kText, body).status, 200);
  EXPECT_EQ(PostAs(server, "second", kText, body).status, 200);
  const std::vector<Request> seen = server.worker.requests();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].cache.tenant, "key-1");
  EXPECT_EQ(seen[1].cache.tenant, "key-2");
  EXPECT_EQ(seen[1].cache.salt, "x");
  EXPECT_EQ(PostAs(server, "second", "/v1/kvcache/pin", R"({"prompt":"ab","ttl_s":5})").status,
            200);
  EXPECT_EQ(server.worker.commands().back().tenant, "key-2");
  // What is all tenants' is the first key's.
  EXPECT_TRUE(GetAs(server, "first", "/v1/kvcache").json().contains("hottest"));
  const Json mine = GetAs(server, "second", "/v1/kvcache").json();
  for (const char* member : {"hottest", "pins", "owners"}) EXPECT_FALSE(mine.contains(member));
  EXPECT_TRUE(mine.contains("blocks"));
  const TestReply reset = PostAs(server, "second", "/v1/kvcache/reset", "{}");
  EXPECT_EQ(reset.status, 403) << reset.body;
  EXPECT_EQ(reset.json()["error"]["code"], "operator_only");
  EXPECT_EQ(PostAs(server, "second", "/v1/kvcache/unpin", R"({"pin":1})").status, 400);
  EXPECT_EQ(PostAs(server, "second", "/v1/kvcache/unpin", R"({"session":"s"})").status, 200);
  EXPECT_EQ(PostAs(server, "first", "/v1/kvcache/reset", "{}").status, 200);
  EXPECT_EQ(PostAs(server, "first", "/v1/kvcache/unpin", R"({"pin":1})").status, 200);
}

TEST(ServerCacheTest, WarmComputesAPromptAndPinsItIfAsked) {
  FakeWorkerOptions worker;
  worker.cached_tokens = 2;
  worker.miss_reason = MissReason::kReset;
  TestServer server(worker);
  // A whole body of the completions endpoint will do: nothing of it but the prompt counts.
  TestReply reply =
      server.Post("/v1/kvcache/warm", R"({"prompt":"abcdef","max_tokens":50,"n":3,"stream":true,)"
                                      R"("min_tokens":4,"logprobs":2,"echo":true,"stop":"c"})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  Json body = reply.json();
  EXPECT_EQ(body["object"], "kvcache.warm");
  EXPECT_EQ(body["tokens"], 6);
  EXPECT_EQ(body["cached_tokens"], 2);
  EXPECT_EQ(body["computed_tokens"], 4);
  EXPECT_EQ(body["miss_reason"], "reset");
  EXPECT_TRUE(body["seconds"].is_number());
  EXPECT_TRUE(body["pin"].is_null());
  EXPECT_TRUE(server.worker.commands().empty());
  Request seen = server.worker.requests().back();
  EXPECT_EQ(seen.sampling.max_tokens, 0);
  EXPECT_EQ(seen.sampling.min_tokens, 0);
  EXPECT_EQ(seen.n, 1);
  EXPECT_EQ(seen.cache.retain, Retain::kHigh);
  server.worker.cache_reply.pin = {3, 6, 1, 11'000'000'000, ""};
  server.worker.cache_reply.now_ns = 1'000'000'000;
  reply = server.Post("/v1/kvcache/warm",
                      R"({"messages":[{"role":"user","content":"hi"}],"ttl_s":10,"cache_salt":"x",)"
                      R"("kv_hint":{"retain":"low","session":"s"}})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  body = reply.json();
  EXPECT_EQ(body["pin"]["id"], 3);
  EXPECT_EQ(body["pin"]["expires_in_s"], 10);
  seen = server.worker.requests().back();
  EXPECT_EQ(seen.cache.retain, Retain::kLow);
  EXPECT_EQ(seen.cache.session, "s");
  const CacheRequest command = server.worker.commands().back();
  EXPECT_EQ(command.kind, CacheRequest::Kind::kPin);
  EXPECT_EQ(command.salt, "x");
  EXPECT_EQ(command.ttl_s, 10);
  EXPECT_EQ(command.tokens, seen.prompt);
  EXPECT_EQ(body["tokens"], seen.prompt.size());
}

TEST(ServerCacheTest, PinAndUnpinNameAPrefixOneWay) {
  TestServer server;
  server.worker.cache_reply.pin = {9, 4, 1, INT64_MAX, ""};
  server.worker.cache_reply.unpinned = 2;
  const auto last = [&] { return server.worker.commands().back(); };
  TestReply reply = server.Post("/v1/kvcache/pin", R"({"prompt":[97,98],"ttl_s":1.5})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["object"], "kvcache.pin");
  EXPECT_EQ(reply.json()["id"], 9);
  EXPECT_EQ(reply.json()["tokens"], 4);
  EXPECT_TRUE(reply.json()["expires_in_s"].is_null());
  EXPECT_EQ(last().tokens, (std::vector<TokenId>{97, 98}));
  EXPECT_EQ(last().ttl_s, 1.5);
  EXPECT_EQ(server.Post("/v1/kvcache/pin", R"({"session":"s","cache_salt":"y","ttl_s":9})").status,
            200);
  EXPECT_EQ(last().session, "s");
  EXPECT_EQ(last().salt, "y");
  EXPECT_TRUE(last().tokens.empty());
  reply = server.Post("/v1/kvcache/unpin", R"({"pin":9})");
  EXPECT_EQ(reply.json(), Json({{"object", "kvcache.unpin"}, {"unpinned", 2}}));
  EXPECT_EQ(last().kind, CacheRequest::Kind::kUnpin);
  EXPECT_EQ(last().pin, 9u);
  EXPECT_EQ(
      server.Post("/v1/kvcache/unpin", R"({"messages":[{"role":"user","content":"a"}]})").status,
      200);
  EXPECT_FALSE(last().tokens.empty());
  EXPECT_EQ(server.worker.submitted, 0u);
}

TEST(ServerCacheTest, WhatAPinCannotDo) {
  TestServer server;
  const std::string body = R"({"prompt":"ab","ttl_s":5})";
  server.worker.cache_reply.status =
      ResourceExhausted("the pin needs 60 blocks, 10 of 50 are pinned");
  TestReply reply = server.Post("/v1/kvcache/pin", body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["code"], "pin_budget_exceeded");
  EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
  EXPECT_NE(reply.body.find("60 blocks"), std::string::npos);
  server.worker.cache_reply.status = {};
  reply = server.Post("/v1/kvcache/pin", body);  // a pin of no tokens
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.json()["error"]["code"], "not_cached");
  server.worker.cache_reply.status = NotFound("no such session");
  EXPECT_EQ(server.Post("/v1/kvcache/pin", R"({"session":"s","ttl_s":5})").status, 404);
  server.worker.cache_reply.status = Unavailable("the server is stopping");
  for (const char* path : {"/v1/kvcache/pin", "/v1/kvcache/unpin"})
    EXPECT_EQ(server.Post(path, body).status, 503) << path;
  EXPECT_EQ(server.Post("/v1/kvcache/reset", "{}").status, 503);
  EXPECT_EQ(server.Get("/v1/kvcache").status, 503);
}

TEST(ServerCacheTest, WrongBodiesNameTheirField) {
  TestServer server;
  const std::vector<std::array<std::string, 3>> bad = {
      {"pin", R"({"prompt":"ab"})", "ttl_s"},
      {"pin", R"({"prompt":"ab","ttl_s":0})", "ttl_s"},
      {"pin", R"({"prompt":"ab","ttl_s":-1})", "ttl_s"},
      {"pin", R"({"prompt":"ab","ttl_s":"5"})", "ttl_s"},
      {"pin", R"({"prompt":"ab","ttl_s":2592001})", "ttl_s"},
      {"pin", R"({"ttl_s":5})", "prompt"},
      {"pin", R"({"prompt":"ab","session":"s","ttl_s":5})", "prompt"},
      {"pin", R"({"prompt":"a","messages":[{"role":"user","content":"a"}],"ttl_s":5})", "prompt"},
      {"pin", R"({"prompt":["a","b"],"ttl_s":5})", "prompt"},
      {"pin", R"({"session":"","ttl_s":5})", "session"},
      {"pin", R"({"session":"s","ttl_s":5,"cache_salt":5})", "cache_salt"},
      {"pin", R"({"prompt":"ab","ttl_s":5,"kv_hint":{"x":1}})", "kv_hint"},
      {"pin", "[]", ""},
      {"unpin", R"({"pin":0})", "pin"},
      {"unpin", R"({"pin":"7"})", "pin"},
      {"unpin", R"({"pin":1,"session":"s"})", "prompt"},
      {"unpin", "{}", "prompt"},
      {"warm", "{}", "prompt"},
      {"warm", R"({"session":"s"})", "prompt"},
      {"warm", R"({"prompt":""})", "prompt"},
      {"warm", R"({"prompt":[305]})", "prompt"},
      {"warm", R"({"prompt":"ab","ttl_s":0})", "ttl_s"},
      {"warm", R"({"messages":[]})", "messages"},
      {"warm", R"({"prompt":"ab","cache_salt":""})", "cache_salt"},
      {"reset", R"({"pins":1})", "pins"},
      {"reset", R"({"pin":true})", "pin"},
      {"reset", "5", ""}};
  for (const auto& [path, body, field] : bad) {
    const TestReply reply = server.Post("/v1/kvcache/" + path, body);
    EXPECT_EQ(reply.status, 400) << path << body << reply.body;
    const Json param = reply.json()["error"]["param"];
    EXPECT_EQ(param.is_null() ? "" : param.get<std::string>(), field) << path << body << reply.body;
  }
  EXPECT_EQ(server.Post("/v1/kvcache/warm", R"({"prompt":"ab","model":"other"})").status, 404);
  EXPECT_EQ(server.Post("/v1/kvcache/unpin", R"({"pin":1,"model":"other"})").status, 404);
  EXPECT_TRUE(server.worker.commands().empty());
  EXPECT_EQ(server.worker.submitted, 0u);
}

TEST(ServerCacheTest, ResetAnswersWhatTheEngineDid) {
  TestServer server;
  server.worker.cache_reply.reset = {12, 3, 4};
  const TestReply reply = server.Post("/v1/kvcache/reset", "{}");
  EXPECT_EQ(reply.json(), Json({{"object", "kvcache.reset"},
                                {"freed_blocks", 12},
                                {"in_use_blocks", 3},
                                {"pinned_blocks", 4}}));
  EXPECT_FALSE(server.worker.commands().back().drop_pins);
  server.Post("/v1/kvcache/reset", R"({"pins":true})");
  EXPECT_TRUE(server.worker.commands().back().drop_pins);
}

TEST(ServerCacheTest, PathsMethodsAndKeys) {
  ServerOptions options;
  options.api_keys = {"k"};
  TestServer server({}, options);
  EXPECT_EQ(server.Get("/v1/kvcache").status, 401);
  EXPECT_EQ(server.Post("/v1/kvcache/reset", "{}").status, 401);
  EXPECT_TRUE(server.worker.commands().empty());
  EXPECT_EQ(GetAs(server, "k", "/v1/kvcache").status, 200);
  EXPECT_EQ(PostAs(server, "k", "/v1/kvcache", "{}").status, 405);
  for (const char* path : {"warm", "pin", "unpin", "reset"})
    EXPECT_EQ(GetAs(server, "k", std::string("/v1/kvcache/") + path).status, 405) << path;
  EXPECT_EQ(GetAs(server, "k", "/v1/kvcache/nothing").status, 404);
  TestClient head = server.Connect();
  head.Write("HEAD /v1/kvcache HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n\r\n");
  EXPECT_EQ(head.Read(true).status, 200);
  server.server->BeginDrain();
  EXPECT_EQ(PostAs(server, "k", "/v1/kvcache/warm", R"({"prompt":"ab"})").status, 503);
  EXPECT_EQ(GetAs(server, "k", "/v1/kvcache").status, 200);
}

TEST(ServerCacheTest, AWarmingWhoseClientLeavesIsCancelled) {
  TestServer server;
  server.worker.Hold(true);
  TestClient client = server.Connect();
  const std::string body = R"({"prompt":"ab","ttl_s":5})";
  client.Write(
      "POST /v1/kvcache/warm HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(Eventually([&] { return server.worker.stats().waiting == 1; }));
  client.Close();
  EXPECT_TRUE(Eventually([&] { return server.worker.cancelled == 1; }));
  server.worker.Hold(false);
  EXPECT_EQ(server.Get("/health").status, 200);
  EXPECT_TRUE(server.worker.commands().empty());
}

TEST(ServerCacheTest, ARequestMayWaitForLessThanTheServerAllows) {
  ServerOptions options;
  options.queue_timeout_s = 50;
  const TestServer server({}, options);
  constexpr double kNs = 1e-9;
  const auto wait = [&](const std::string& more) {
    const auto now = [] {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(
                 std::chrono::steady_clock::now().time_since_epoch())
          .count();
    };
    const auto before = now();
    EXPECT_EQ(server.Post(kText, R"({"prompt":"ab","max_tokens":1)" + more + "}").status, 200);
    const double early = static_cast<double>(server.worker.requests().back().deadline_ns - now());
    const double late = static_cast<double>(server.worker.requests().back().deadline_ns - before);
    return std::make_pair(early * kNs, late * kNs);
  };
  for (const auto& [more, seconds] : std::vector<std::pair<std::string, double>>{
           {"", 50}, {R"(,"queue_timeout_s":12.5)", 12.5}, {R"(,"queue_timeout_s":700)", 50}}) {
    const auto [early, late] = wait(more);
    EXPECT_LE(early, seconds) << more;
    EXPECT_GE(late, seconds) << more;
  }
  for (const char* bad : {"0", "-1", "\"5\"", "true"})
    EXPECT_EQ(server.Post(kText, R"({"prompt":"ab","queue_timeout_s":)" + std::string(bad) + "}")
                  .json()["error"]["param"],
              "queue_timeout_s")
        << bad;
}

std::string RetryAfter(double seconds) {
  FakeWorkerOptions worker;
  worker.max_queue = 0;
  worker.stats.retry_after_s = seconds;
  const TestServer server(worker);
  const TestReply full = server.Post(kText, R"({"prompt":"ab","max_tokens":2})");
  EXPECT_EQ(full.status, 429);
  return full.headers.at("Retry-After");
}

TEST(ServerCacheTest, RetryAfterIsTheEnginesEstimate) {
  EXPECT_EQ(RetryAfter(0), "1");
  EXPECT_EQ(RetryAfter(0.2), "1");
  EXPECT_EQ(RetryAfter(1.01), "2");
  EXPECT_EQ(RetryAfter(17), "17");
  EXPECT_EQ(RetryAfter(-5), "1");
  EXPECT_EQ(RetryAfter(std::nan("")), "1");
  EXPECT_EQ(RetryAfter(std::numeric_limits<double>::infinity()), "3600");
  FakeWorkerOptions worker;
  worker.stats.retry_after_s = 4.5;
  const TestServer server(worker);
  server.server->BeginDrain();
  EXPECT_EQ(server.Get("/health").headers.at("Retry-After"), "5");
  EXPECT_EQ(server.Post(kText, R"({"prompt":"ab"})").headers.at("Retry-After"), "5");
}

}  // namespace
}  // namespace kvasir
