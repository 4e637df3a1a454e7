#include "server/test_http.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <thread>
#include <utility>

namespace kvasir {

Json TestJson(const std::string& text) {
  return Json::parse(text, nullptr, false);
}

struct TestClient::Rep {
  boost::asio::io_context context;
  boost::asio::ip::tcp::socket socket{context};
  boost::beast::flat_buffer buffer;
};

TestClient::TestClient(int32_t port) : rep_(std::make_unique<Rep>()) {
  rep_->socket.connect({boost::asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(port)});
}
TestClient::~TestClient() = default;
TestClient::TestClient(TestClient&&) noexcept = default;

bool TestClient::Write(const std::string& bytes) {
  boost::system::error_code error;
  boost::asio::write(rep_->socket, boost::asio::buffer(bytes), error);
  return !error;
}

TestReply TestClient::Read(bool head_only) {
  namespace http = boost::beast::http;
  http::response_parser<http::string_body> parser;
  parser.body_limit(256u << 20);
  parser.skip(head_only);
  boost::system::error_code error;
  http::read(rep_->socket, rep_->buffer, parser, error);
  TestReply reply;
  if (error) return reply;
  reply.status = static_cast<int>(parser.get().result_int());
  reply.body = parser.get().body();
  for (const auto& field : parser.get())
    reply.headers[std::string(field.name_string())] = std::string(field.value());
  return reply;
}

TestReply TestClient::Post(const std::string& path, const std::string& body,
                           const std::string& more) {
  Write("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + more +
        "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  return Read();
}

TestReply TestClient::Get(const std::string& path, const std::string& more) {
  Write("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n");
  return Read();
}

std::string TestClient::ReadSome() {
  std::string bytes(4096, '\0');
  boost::system::error_code error;
  bytes.resize(rep_->socket.read_some(boost::asio::buffer(bytes), error));
  return bytes;
}

void TestClient::Close() {
  rep_->socket.close();
}

std::vector<Json> Events(const std::string& body, bool* done) {
  std::vector<Json> events;
  *done = false;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0) return {};
    const std::string data = body.substr(at + 6, end - at - 6);
    *done = data == "[DONE]";
    if (!*done) events.push_back(TestJson(data));
    at = end + 2;
  }
  return events;
}

bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 4000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

TestServer::TestServer(FakeWorkerOptions worker_options, ServerOptions options, bool add_bos,
                       int32_t wanted_model_len)
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
TestServer::~TestServer() = default;
TestClient TestServer::Connect() const {
  return TestClient(server->port());
}
TestReply TestServer::Post(const std::string& path, const std::string& body) const {
  return Connect().Post(path, body);
}
TestReply TestServer::Get(const std::string& path) const {
  return Connect().Get(path);
}

}  // namespace kvasir
