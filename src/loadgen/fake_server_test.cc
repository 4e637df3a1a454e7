#include "loadgen/fake_server_test.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

}  // namespace

FakeServer::FakeServer(Answer answer) : answer_(std::move(answer)) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  KVASIR_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), length) == 0);
  KVASIR_CHECK(listen(listener_, 128) == 0);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.sin_port);
  accepter_ = std::thread([this] { Accept(); });
}

FakeServer::~FakeServer() {
  stopping_ = true;
  accepter_.join();
  for (std::thread& thread : threads_) thread.join();
  close(listener_);
}

void FakeServer::Accept() {
  while (!stopping_) {
    pollfd poller{listener_, POLLIN, 0};
    if (poll(&poller, 1, 10) <= 0) continue;
    const int fd = accept(listener_, nullptr, nullptr);
    if (fd < 0) continue;
    ++connections_;
    threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void FakeServer::Serve(int fd) {
  const int now_open = ++open_;
  for (int seen = open_max_; seen < now_open && !open_max_.compare_exchange_weak(seen, now_open);) {
  }
  std::string text;
  std::array<char, 4096> buffer{};
  size_t body_at = 0, body_size = 0;
  for (;;) {
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
    const size_t end = text.find("\r\n\r\n");
    if (end == std::string::npos) continue;
    body_at = end + 4;
    const size_t length = text.find("Content-Length: ");
    body_size = length < end ? std::stoul(text.substr(length + 16)) : 0;
    if (text.size() >= body_at + body_size) break;
  }
  const std::string reply = answer_(text.substr(0, body_at), text.substr(body_at));
  --open_;  // before the client can know that it is done and send its next request
  send(fd, reply.data(), reply.size(), MSG_NOSIGNAL);
  close(fd);
}

std::string Plain(int status, const std::string& body, const std::string& headers) {
  return "HTTP/1.1 " + std::to_string(status) +
         " x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

std::string Chunked(const std::vector<std::string>& events, bool whole) {
  std::string out =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n";
  for (const std::string& event : events) {
    const std::string data = "data: " + event + "\n\n";
    char size[32];
    std::snprintf(size, sizeof(size), "%zx\r\n", data.size());
    out += size + data + "\r\n";
  }
  return whole ? out + "0\r\n\r\n" : out;
}

// Streams as many tokens as asked for; half of the prompt counts as cached.
std::string GoodAnswer(const std::string& head, const std::string& body) {
  if (head.starts_with("GET /v1/models")) return Plain(200, R"({"data":[{"id":"fake"}]})");
  if (head.starts_with("GET /metrics")) {
    return Plain(200, "vllm:num_requests_running 0\nkvasir_steps_total{model_name=\"fake\"} 7\n");
  }
  const Json json = Json::parse(body);
  const int tokens = json["max_tokens"];
  const size_t prompt = json["prompt"].is_array() ? json["prompt"].size() : 7;
  std::vector<std::string> events;
  const bool with_ids = json.value("return_token_ids", false);
  for (int i = 0; i < tokens; ++i) {
    const std::string ids = with_ids ? R"(,"token_ids":[)" + std::to_string(300 + i) + "]" : "";
    events.push_back(R"({"choices":[{"text":"a","finish_reason":null)" + ids + "}]}");
  }
  events.push_back(R"({"choices":[{"text":"","finish_reason":"length"}]})");
  events.push_back(Json{{"choices", Json::array()},
                        {"usage",
                         {{"prompt_tokens", prompt},
                          {"completion_tokens", tokens},
                          {"kvasir", {{"queue_ms", 2.5}}},
                          {"prompt_tokens_details", {{"cached_tokens", prompt / 2}}}}}}
                       .dump());
  events.push_back("[DONE]");
  return Chunked(events);
}

}  // namespace kvasir
