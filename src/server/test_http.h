// For tests: a blocking HTTP client and a server on a free port around a FakeWorker. What includes
// Boost stands in test_http.cc, so that it is compiled once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/json_reader.h"
#include "server/server.h"
#include "server/test_fake_worker.h"
#include "server/test_tokenizer.h"

namespace kvasir {

// The value in text; a discarded value if it is no JSON.
Json TestJson(const std::string& text);

struct TestReply {
  int status = 0;  // 0: the server closed without an answer
  std::string body;
  std::map<std::string, std::string> headers;
  Json json() const { return TestJson(body); }
};

// One connection to a port of this machine.
class TestClient {
 public:
  explicit TestClient(int32_t port);
  ~TestClient();
  TestClient(TestClient&&) noexcept;
  TestClient& operator=(TestClient&&) = delete;

  // False if the server has closed.
  bool Write(const std::string& bytes);
  TestReply Read(bool head_only = false);
  TestReply Post(const std::string& path, const std::string& body, const std::string& more = "");
  TestReply Get(const std::string& path, const std::string& more = "");
  // Some bytes as they come; empty: closed.
  std::string ReadSome();
  void Close();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// The data of the events of a stream, without [DONE]; *done says whether that came last.
std::vector<Json> Events(const std::string& body, bool* done);

// True as soon as it holds; gives up after a long time, so that only a broken server waits it out.
bool Eventually(const std::function<bool()>& holds);

struct TestServer {
  explicit TestServer(FakeWorkerOptions worker_options = {}, ServerOptions options = {},
                      bool add_bos = false, int32_t wanted_model_len = 0);
  ~TestServer();
  TestClient Connect() const;
  TestReply Post(const std::string& path, const std::string& body) const;
  TestReply Get(const std::string& path) const;

  FakeWorker worker;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
  ServerMetrics metrics;
  std::unique_ptr<Server> server;
};

}  // namespace kvasir
