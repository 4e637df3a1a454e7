// For tests: a blocking HTTP client and a server on a free port around a FakeWorker.
#pragma once

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/json_reader.h"
#include "server/server.h"
#include "server/test_fake_worker.h"
#include "server/test_tokenizer.h"

namespace kvasir {

struct TestReply {
  int status = 0;  // 0: the server closed without an answer
  std::string body;
  std::map<std::string, std::string> headers;
  Json json() const { return Json::parse(body, nullptr, false); }
};

class TestClient {
 public:
  explicit TestClient(int32_t port) : socket_(context_) {
    socket_.connect({boost::asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(port)});
  }
  // False if the server has closed.
  bool Write(const std::string& bytes) {
    boost::system::error_code error;
    boost::asio::write(socket_, boost::asio::buffer(bytes), error);
    return !error;
  }
  TestReply Read(bool head_only = false) {
    namespace http = boost::beast::http;
    http::response_parser<http::string_body> parser;
    parser.body_limit(256u << 20);
    parser.skip(head_only);
    boost::system::error_code error;
    http::read(socket_, buffer_, parser, error);
    TestReply reply;
    if (error) return reply;
    reply.status = static_cast<int>(parser.get().result_int());
    reply.body = parser.get().body();
    for (const auto& field : parser.get())
      reply.headers[std::string(field.name_string())] = std::string(field.value());
    return reply;
  }
  TestReply Post(const std::string& path, const std::string& body, const std::string& more = "") {
    Write("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + more +
          "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return Read();
  }
  TestReply Get(const std::string& path, const std::string& more = "") {
    Write("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n");
    return Read();
  }
  // Some bytes as they come; empty: closed.
  std::string ReadSome() {
    std::string bytes(4096, '\0');
    boost::system::error_code error;
    bytes.resize(socket_.read_some(boost::asio::buffer(bytes), error));
    return bytes;
  }
  void Close() { socket_.close(); }
  boost::asio::ip::tcp::socket& socket() { return socket_; }

 private:
  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
};

// The data of the events of a stream, without [DONE]; *done says whether that came last.
inline std::vector<Json> Events(const std::string& body, bool* done) {
  std::vector<Json> events;
  *done = false;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0) return {};
    const std::string data = body.substr(at + 6, end - at - 6);
    *done = data == "[DONE]";
    if (!*done) events.push_back(Json::parse(data, nullptr, false));
    at = end + 2;
  }
  return events;
}

// True as soon as it holds; gives up after a long time, so that only a broken server waits it out.
inline bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 4000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

struct TestServer {
  explicit TestServer(FakeWorkerOptions worker_options = {}, ServerOptions options = {},
                      bool add_bos = false, int32_t wanted_model_len = 0)
      : worker(worker_options), tokenizer(MakeTestTokenizer(add_bos)), metrics("m") {
    auto made = ChatTemplate::Make(kDefaultChatTemplate, *tokenizer);
    KVASIR_CHECK(made.ok());
    chat_template = std::move(made).value();
    options.port = 0;
    options.access_log = false;
    ServedModel model;
    model.name = "m";
    model.worker = &worker;
    model.tokenizer = tokenizer.get();
    model.chat_template = chat_template.get();
    model.wanted_model_len = wanted_model_len;
    auto started = Server::Start(options, model, &metrics);
    KVASIR_CHECK(started.ok());
    server = std::move(started).value();
  }
  TestClient Connect() const { return TestClient(server->port()); }
  TestReply Post(const std::string& path, const std::string& body) const {
    return Connect().Post(path, body);
  }
  TestReply Get(const std::string& path) const { return Connect().Get(path); }

  FakeWorker worker;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
  ServerMetrics metrics;
  std::unique_ptr<Server> server;
};

}  // namespace kvasir
