// HttpConnection: one client's socket: reads requests, writes answers, guards time and sizes,
// notices when the client goes.
//
// While an answer is made, the socket is read on (a little), so that a closed client is seen at
// once; a client that closes only its sending side counts as gone too. All work runs on the
// socket's strand; Shutdown, Abort and Post: any thread.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "server/access_log.h"
#include "server/api.h"
#include "server/http_message.h"
#include "server/server_options.h"

namespace kvasir {

class HttpConnection;

// What all connections share. Outlives them.
struct ConnectionHost {
  const ServerOptions* options = nullptr;
  Api* api = nullptr;
  ServerMetrics* metrics = nullptr;
  AccessLog* log = nullptr;
  std::atomic<size_t> body_bytes{0};  // being read or prepared
  std::function<void(HttpConnection*)> on_closed;
};

class HttpConnection : public ResponseWriter, public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // socket's executor is a strand.
  HttpConnection(Socket socket, ConnectionHost* host);
  ~HttpConnection() override;

  void Start();
  void Refuse(HttpResponse response);  // instead of Start: one answer, then the end
  void Shutdown();                     // after the answer being made, if there is one
  void Abort();                        // now
  // When it began to wait for a request, in steady nanoseconds; 0: it is not waiting.
  int64_t idle_since_ns() const { return idle_since_ns_.load(); }

  void Post(std::function<void()> work) override;
  bool open() const override { return state_ != State::kClosed; }
  void Attach(std::shared_ptr<Exchange> exchange) override;
  void Send(HttpResponse response) override;
  void BeginStream(HttpResponse head) override;
  void Write(std::string bytes) override;
  void EndStream() override;
  void NoteUsage(int64_t prompt_tokens, int64_t completion_tokens) override;

 private:
  enum class State : uint8_t { kIdle, kHead, kBody, kWorking, kWriting, kLingering, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using Error = boost::system::error_code;
  struct BodyCharge;

  void WaitForRequest();
  void ReadHead();
  void OnHead(Error error);
  void TakeHead();
  void ForgetRequest();
  void ReadBody();
  void OnBody(Error error);
  bool ChargeBody();
  void OnRequest();
  void Reject(HttpResponse response);
  void OnReadError(Error error);
  void Monitor();
  void OnMonitor(Error error, size_t bytes);
  void Queue(const HttpResponse& response, bool streamed);
  bool ReadsTooSlowly();
  void Flush();
  void OnWritten(Error error, size_t bytes);
  void OnAnswered();
  void Linger();
  void LogAnswer(int status);
  void SetDeadline(double seconds);
  void OnDeadline();
  void Close();

  Socket socket_;
  ConnectionHost* host_;
  boost::asio::steady_timer deadline_;
  uint64_t deadline_number_ = 0;  // a timer that fires late must not hit the next phase
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  State state_ = State::kIdle;
  std::atomic<int64_t> idle_since_ns_{0};
  bool monitoring_ = false;  // a read is pending beside the answer
  bool stopping_ = false;
  std::string remote_;

  // The request being answered.
  HttpRequest request_;
  std::shared_ptr<BodyCharge> charge_;
  std::shared_ptr<Exchange> exchange_;
  AccessRecord record_;
  std::chrono::steady_clock::time_point begun_;
  bool busy_ = false;  // between a request's head and the end of its answer
  bool keep_alive_ = false;
  bool head_only_ = false;
  bool http10_ = false;
  bool unread_body_ = false;

  // Bytes to send: writing_ is with the kernel, out_ waits.
  std::string out_;
  std::string writing_;
  std::optional<std::chrono::steady_clock::time_point> over_limit_since_;
  size_t written_ = 0;
  bool write_pending_ = false;
  bool chunked_ = false;
  bool streamed_ = false;
  bool complete_ = false;  // nothing will be added
  size_t lingered_ = 0;
};

}  // namespace kvasir
