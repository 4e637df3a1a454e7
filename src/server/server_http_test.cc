// The front under bad weather: broken HTTP, giants, slow and vanishing clients, keys, draining.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/test_http.h"

namespace kvasir {
namespace {

constexpr const char* kText = "/v1/completions";

// The whole of an answer as bytes, until the server closes.
std::string ReadAll(TestClient* client) {
  std::string all;
  for (std::string part = client->ReadSome(); !part.empty(); part = client->ReadSome()) all += part;
  return all;
}

double Metric(const TestServer& server, const std::string& line_start) {
  const std::string text = server.metrics.Serialize(&server.worker);
  const size_t at = text.find("\n" + line_start);
  if (at == std::string::npos) return -1;
  const size_t space = text.find(' ', at + line_start.size());
  return std::stod(text.substr(space));
}

TEST(ServerHttpTest, PathsAndMethods) {
  const TestServer server;
  TestClient client = server.Connect();
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_EQ(client.Get("/version").json()["version"], "0.1.0");
  EXPECT_EQ(client.Get("/nowhere").status, 404);
  EXPECT_EQ(client.Get("/v1/models/other").status, 404);
  const TestReply wrong = client.Get(kText);
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("Allow"), "POST, OPTIONS");
  EXPECT_EQ(wrong.json()["error"]["code"], "method_not_allowed");
  const TestReply page = client.Get("/?x=1");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.body.find("<h1>Kvasir</h1>"), std::string::npos);
  client.Write("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.Read(true).status, 200);
  client.Write("OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.Read().status, 204);
  EXPECT_EQ(client.Get("/metrics").status, 200);
}

TEST(ServerHttpTest, TypesOfBodies) {
  const TestServer server;
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded", ""}) {
    TestClient client = server.Connect();
    client.Write(std::string("POST /v1/completions HTTP/1.1\r\nHost: x\r\n") +
                 (*type != 0 ? std::string("Content-Type: ") + type + "\r\n" : "") +
                 "Content-Length: 2\r\n\r\n{}");
    const TestReply reply = client.Read();
    EXPECT_EQ(reply.status, 415) << type;
    EXPECT_TRUE(reply.json()["error"]["message"].is_string());
  }
  TestClient client = server.Connect();
  const std::string body = R"({"prompt":"ab","max_tokens":1})";
  client.Write(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\ncontent-type: Application/JSON; "
      "charset=utf-8\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5\r\n" +
      body.substr(0, 5) + "\r\n");
  char size[8];
  std::snprintf(size, sizeof size, "%zx\r\n", body.size() - 5);
  client.Write(size + body.substr(5) + "\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
  client.Write(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Write(body);
  EXPECT_EQ(client.Read().status, 200);
}

TEST(ServerHttpTest, PipelinedRequestsAndOldClients) {
  const TestServer server;
  TestClient client = server.Connect();
  const std::string get = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string body = R"({"prompt":"ab","max_tokens":1})";
  const std::string post =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  client.Write(get + post + post + get);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(client.Read().status, 200) << i;
  TestClient old = server.Connect();
  old.Write(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: "
      "44\r\n\r\n"
      R"({"prompt":"ab","max_tokens":2,"stream":true})");
  const std::string all = ReadAll(&old);
  EXPECT_EQ(all.find("chunked"), std::string::npos);
  EXPECT_NE(all.find("data: [DONE]\n\n"), std::string::npos) << all;
}

TEST(ServerHttpTest, TooLargeIsRefusedEarly) {
  ServerOptions options;
  options.body_bytes_max = 1 << 20;
  const TestServer server({}, options);
  TestClient giant = server.Connect();
  // Only the head is sent: the answer must not wait for the body.
  giant.Write(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 20000000\r\n\r\n");
  const TestReply reply = giant.Read();
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(reply.body.find("1048576"), std::string::npos);
  // Sent in one go all the same, the answer is not lost.
  TestClient pushy = server.Connect();
  pushy.Write(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 8000000\r\n\r\n" +
      std::string(8000000, 'x'));
  EXPECT_EQ(pushy.Read().status, 413);
  TestClient chunked = server.Connect();
  chunked.Write(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n200000\r\n" +
      std::string(0x200000, 'x') + "\r\n");
  EXPECT_EQ(chunked.Read().status, 413);
  TestClient header = server.Connect();
  header.Write("GET /health HTTP/1.1\r\nX: " + std::string(100000, 'x') + "\r\n\r\n");
  EXPECT_EQ(header.Read().status, 431);
  EXPECT_EQ(server.Get("/health").status, 200);
}

TEST(ServerHttpTest, BrokenHttpAndRandomBytes) {
  const TestServer server;
  for (const char* bytes :
       {"nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\r\n\r\n", "\r\n\r\n\r\n\r\nx\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET / HTTP/1.1\r\nbad header\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: "
        "chunked\r\n\r\n"}) {
    TestClient client = server.Connect();
    client.Write(bytes);
    EXPECT_EQ(client.Read().status / 100, 4) << bytes;
  }
  const unsigned seed = 7;
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    TestClient client = server.Connect();
    std::string bytes = random() % 2 == 0 ? "POST /v1/completions HTTP/1.1\r\n" : "";
    for (size_t n = random() % 300; n > 0; --n) bytes += static_cast<char>(random());
    client.Write(bytes);
    client.Close();
  }
  EXPECT_EQ(server.Get("/health").status, 200);
  EXPECT_TRUE(Eventually([&] { return server.server->connections() == 0; }));
}

TEST(ServerHttpTest, SlowHeadersAndBodiesRunOutOfTime) {
  ServerOptions options;
  options.header_timeout_s = 0.2;
  options.body_timeout_s = 0.2;
  options.idle_timeout_s = 0.2;
  const TestServer server({}, options);
  TestClient head = server.Connect();
  head.Write("GET /health HT");
  EXPECT_EQ(head.Read().status, 408);
  TestClient body = server.Connect();
  body.Write(
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: "
      "9\r\n\r\n{");
  EXPECT_EQ(body.Read().status, 408);
  TestClient idle = server.Connect();
  EXPECT_EQ(idle.ReadSome(), "");
}

TEST(ServerHttpTest, VanishedClientsAreCancelled) {
  FakeWorkerOptions worker;
  worker.step_us = 2000;
  worker.context = 1 << 20;
  const TestServer server(worker);
  const auto send = [](TestClient* client, const std::string& more) {
    const std::string body =
        R"({"prompt":"abcabc","ignore_eos":true,"max_tokens":500000)" + more + "}";
    client->Write(
        "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<TestClient>(server.server->port()));
    send(clients.back().get(), i % 3 == 0   ? ""
                               : i % 3 == 1 ? R"(,"stream":true)"
                                            : R"(,"stream":true,"n":3)");
  }
  ASSERT_TRUE(Eventually([&] { return server.worker.stats().running == 20; }));
  for (auto& client : clients) client->Close();
  EXPECT_TRUE(Eventually([&] { return server.worker.stats().running == 0; }));
  EXPECT_EQ(server.worker.cancelled, 20u);
  EXPECT_TRUE(Eventually([&] { return server.server->connections() == 0; }));
  EXPECT_EQ(Metric(server, "vllm:request_success_total{finished_reason=\"abort\""), 20);
  EXPECT_EQ(Metric(server, "vllm:num_requests_running"), 0);
}

TEST(ServerHttpTest, ASlowReaderIsCutOffAndStallsNobody) {
  FakeWorkerOptions worker;
  worker.context = 1 << 30;
  ServerOptions options;
  options.output_bytes_max = 64 << 10;
  const TestServer server(worker, options);
  TestClient slow = server.Connect();
  const std::string body =
      R"({"prompt":"abcabc","ignore_eos":true,"max_tokens":100000000,"stream":true,"logprobs":5})";
  slow.Write("POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(Eventually([&] { return server.worker.submitted == 1; }));
  EXPECT_EQ(server.Post(kText, R"({"prompt":"ab","max_tokens":2})").status, 200);
  EXPECT_TRUE(Eventually([&] { return server.worker.stats().running == 0; }));
  EXPECT_EQ(server.worker.cancelled, 1u);
}

TEST(ServerHttpTest, ManyConnectionsAtOnce) {
  ServerOptions options;
  options.connections_max = 40;
  options.io_threads = 2;
  options.prepare_threads = 2;
  const TestServer server({}, options);
  // More idle ones than allowed: those make room.
  std::vector<std::unique_ptr<TestClient>> idle;
  for (int i = 0; i < 60; ++i) idle.push_back(std::make_unique<TestClient>(server.server->port()));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 16; ++i)
    threads.emplace_back([&server, &right, i] {
      TestClient client = server.Connect();
      for (int k = 0; k < 5; ++k) {
        const std::string text(1, static_cast<char>('a' + i));
        const Json body = {
            {"prompt", std::string(32, text[0])}, {"max_tokens", 4}, {"stream", k % 2 == 1}};
        const TestReply reply = client.Post(kText, DumpJson(body));
        if (reply.status != 200) continue;
        if (k % 2 == 1 || reply.json()["choices"][0]["text"] == std::string(4, text[0])) ++right;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 80);
}

TEST(ServerHttpTest, TooManyBusyConnections) {
  ServerOptions options;
  options.connections_max = 1;
  TestServer server({}, options);
  server.worker.Hold(true);
  TestClient busy = server.Connect();
  const std::string body = R"({"prompt":"ab","max_tokens":2})";
  busy.Write("POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(Eventually([&] { return server.worker.stats().waiting == 1; }));
  EXPECT_EQ(server.Get("/health").status, 503);
  server.worker.Hold(false);
  EXPECT_EQ(busy.Read().status, 200);
  EXPECT_EQ(server.Get("/health").status, 200);
}

TEST(ServerHttpTest, ApiKeys) {
  ServerOptions options;
  options.api_keys = {"first", "second"};
  const TestServer server({}, options);
  TestClient client = server.Connect();
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_EQ(client.Get("/metrics").status, 200);
  EXPECT_EQ(client.Get("/v1/models").status, 401);
  EXPECT_EQ(client.Get("/v1/models", "Authorization: Bearer first\r\n").status, 200);
  EXPECT_EQ(client.Get("/v1/models", "Authorization: bearer second\r\n").status, 200);
  for (const char* wrong :
       {"Bearer firs", "Bearer firstt", "Bearer ", "Basic first", "first", "Bearer secon2"})
    EXPECT_EQ(client.Get("/v1/models", std::string("Authorization: ") + wrong + "\r\n").status, 401)
        << wrong;
  const TestReply reply = server.Post(kText, "{}");
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.json()["error"]["type"], "authentication_error");
}

TEST(ServerHttpTest, FullQueueAndDraining) {
  FakeWorkerOptions worker;
  worker.max_queue = 1;
  ServerOptions options;
  options.max_queue = 1;
  TestServer server(worker, options);
  server.worker.Hold(true);
  TestClient first = server.Connect();
  const std::string body = R"({"prompt":"ab","max_tokens":2})";
  first.Write(
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(Eventually([&] { return server.worker.stats().waiting == 1; }));
  EXPECT_EQ(server.Get("/health").status, 503);
  const TestReply full = server.Post(kText, body);
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.headers.at("Retry-After"), "1");
  server.server->BeginDrain();
  EXPECT_EQ(server.Get("/health").status, 503);
  EXPECT_EQ(server.Post(kText, body).status, 503);
  server.worker.Hold(false);
  EXPECT_EQ(first.Read().status, 200);
  server.server->Stop(5);
  EXPECT_EQ(server.server->connections(), 0);
}

TEST(ServerHttpTest, StoppingCancelsWhatRuns) {
  FakeWorkerOptions worker;
  worker.context = 1 << 30;
  worker.step_us = 1000;
  TestServer server(worker);
  TestClient client = server.Connect();
  const std::string body =
      R"({"prompt":"ab","max_tokens":9999999,"ignore_eos":true,"stream":true})";
  client.Write(
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_NE(client.ReadSome(), "");
  server.server->Stop(0.05);
  EXPECT_TRUE(Eventually([&] { return server.worker.stats().running == 0; }));
}

TEST(ServerHttpTest, HealthAnswersWhileAGiantIsPrepared) {
  const TestServer server;
  std::thread giant([&] {
    std::string body =
        R"({"messages":[{"role":"user","content":")" + std::string(4 << 20, 'a') + "\"}]}";
    EXPECT_EQ(server.Post("/v1/chat/completions", body).status, 400);
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(server.Get("/health").status, 200);
  giant.join();
}

TEST(ServerHttpTest, OptionsAreChecked) {
  ServerOptions options;
  EXPECT_TRUE(options.Validate().ok());
  options.host = "0.0.0.0";
  EXPECT_EQ(options.Validate().field(), "host");
  options.allow_unauthenticated = true;
  EXPECT_TRUE(options.Validate().ok());
  options.port = 70000;
  EXPECT_EQ(options.Validate().field(), "port");
  options.port = 0;
  options.api_keys = {""};
  EXPECT_EQ(options.Validate().field(), "api-key");
}

TEST(ServerHttpTest, APortInUseIsAnError) {
  const TestServer server;
  ServerOptions options;
  options.port = server.server->port();
  ServedModel model;
  model.name = "m";
  FakeWorker worker;
  model.worker = &worker;
  model.tokenizer = server.tokenizer.get();
  ServerMetrics metrics("m");
  const auto second = Server::Start(options, model, &metrics);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvasir
