// For the tests of this folder: a scripted HTTP server, and answers for it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvasir {

// A small HTTP server on a free port of 127.0.0.1 that answers as scripted.
class FakeServer {
 public:
  // What is written back for a request, byte for byte, before the connection is closed.
  using Answer = std::function<std::string(const std::string& head, const std::string& body)>;
  explicit FakeServer(Answer answer);
  ~FakeServer();
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int connections() const { return connections_; }
  int open_max() const { return open_max_; }  // most at once

 private:
  void Accept();
  void Serve(int fd);

  Answer answer_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0}, open_{0}, open_max_{0};
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  std::thread accepter_;
};

// A whole answer with a body of known length. `headers`: more of them, each with its "\r\n".
std::string Plain(int status, const std::string& body, const std::string& headers = "");
// 200, streamed: one chunk and one server-sent event each. Not `whole`: without the last chunk.
std::string Chunked(const std::vector<std::string>& events, bool whole = true);
// Streams as many tokens as asked for, with ids 300, 301, ... if they are wanted; half of the
// prompt counts as cached. Knows GET /v1/models (one, "fake") and GET /metrics.
std::string GoodAnswer(const std::string& head, const std::string& body);

}  // namespace kvasir
