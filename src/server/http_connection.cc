#include "server/http_connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <cstdio>
#include <random>
#include <utility>

namespace kvasir {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr size_t kReadAheadMax = 16u << 10;  // of a pipelining client while its answer is made
constexpr size_t kLingerBytesMax = 64u << 20;
constexpr double kLingerS = 3;

std::string MakeRequestId() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(random()),
                static_cast<unsigned long long>(random()));
  return text;
}

std::string RequestIdFrom(std::string_view given) {
  const bool sane =
      !given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ||
               c == '.' || c == ':';
      });
  return sane ? std::string(given) : MakeRequestId();
}

std::string ReasonOf(int status) {
  const auto text = http::obsolete_reason(static_cast<http::status>(status));
  return {text.data(), text.size()};
}

}  // namespace

// Bytes of a body that are accounted for in ConnectionHost::body_bytes.
struct HttpConnection::BodyCharge {
  explicit BodyCharge(ConnectionHost* h) : host(h) {}
  ~BodyCharge() { host->body_bytes -= bytes; }
  ConnectionHost* host;
  size_t bytes = 0;
};

HttpConnection::HttpConnection(Socket socket, ConnectionHost* host)
    : socket_(std::move(socket)), host_(host), deadline_(socket_.get_executor()) {
  buffer_.max_size(host_->options->header_bytes_max + (64u << 10));
  Error error;
  const auto endpoint = socket_.remote_endpoint(error);
  if (!error) remote_ = endpoint.address().to_string();
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  // The kernel's share of what a slow reader can pile up.
  socket_.set_option(asio::socket_base::send_buffer_size(256 << 10), error);
}

HttpConnection::~HttpConnection() = default;

void HttpConnection::Post(std::function<void()> work) {
  asio::post(socket_.get_executor(),
             [self = shared_from_this(), work = std::move(work)] { work(); });
}

void HttpConnection::Start() {
  Post([this] { WaitForRequest(); });
}

void HttpConnection::Refuse(HttpResponse response) {
  Post([this, response = std::move(response)]() mutable {
    if (!open()) return;
    ForgetRequest();
    Reject(std::move(response));
  });
}

void HttpConnection::Shutdown() {
  Post([this] {
    stopping_ = true;
    if (state_ == State::kIdle || state_ == State::kHead) Close();
  });
}

void HttpConnection::Abort() {
  Post([this] { Close(); });
}

void HttpConnection::WaitForRequest() {
  if (!open()) return;
  if (stopping_) return Close();
  state_ = State::kIdle;
  idle_since_ns_ =
      std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  SetDeadline(host_->options->idle_timeout_s);
  if (buffer_.size() == 0) return Monitor();
  // Part of the next request is here already. The read beside the last answer has to end first: one
  // reader at a time.
  if (monitoring_) {
    Error error;
    socket_.cancel(error);
    return;
  }
  ReadHead();
}

void HttpConnection::Monitor() {
  if (monitoring_ || buffer_.size() >= kReadAheadMax) return;
  monitoring_ = true;
  constexpr size_t kRead = 4096;
  socket_.async_read_some(
      buffer_.prepare(kRead),
      [self = shared_from_this()](Error error, size_t n) { self->OnMonitor(error, n); });
}

void HttpConnection::OnMonitor(Error error, size_t bytes) {
  monitoring_ = false;
  if (!open()) return;
  buffer_.commit(bytes);
  if (state_ == State::kLingering) {
    // After the peer's end nothing more comes: waiting for it would hold the socket till the limit.
    if (error && error != asio::error::operation_aborted) return Close();
    return Linger();
  }
  if (state_ == State::kIdle &&
      (!error || (error == asio::error::operation_aborted && buffer_.size() > 0)))
    return ReadHead();
  if (error) return Close();
  Monitor();
}

void HttpConnection::ReadHead() {
  state_ = State::kHead;
  idle_since_ns_ = 0;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(host_->options->header_bytes_max));
  parser_->body_limit(host_->options->body_bytes_max);
  SetDeadline(host_->options->header_timeout_s);
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](Error error, size_t) { self->OnHead(error); });
}

void HttpConnection::OnReadError(Error error) {
  // The peer closed or broke the connection: there is nobody to tell.
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error.category() != http::make_error_code(http::error::bad_version).category())
    return Close();
  if (error == http::error::body_limit)
    return Reject(ErrorResponse(
        413, "the body is larger than " + std::to_string(host_->options->body_bytes_max) + " bytes",
        "", "body_too_large"));
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return Reject(ErrorResponse(
        431,
        "the header is larger than " + std::to_string(host_->options->header_bytes_max) + " bytes",
        "", "header_too_large"));
  Reject(ErrorResponse(400, "this is not valid HTTP: " + error.message(), "", "bad_http"));
}

// An answer given before the request was read to its end: the connection cannot be used again.
void HttpConnection::Reject(HttpResponse response) {
  if (!busy_) begun_ = std::chrono::steady_clock::now();
  busy_ = true;
  unread_body_ = true;
  response.close = true;
  Send(std::move(response));
}

void HttpConnection::ForgetRequest() {
  request_ = {};
  head_only_ = false;
  record_ = {};
  record_.remote = remote_;
  record_.request_id = MakeRequestId();
}

void HttpConnection::OnHead(Error error) {
  if (state_ != State::kHead) return;
  if (error) {
    ForgetRequest();
    return OnReadError(error);
  }
  TakeHead();
  const std::optional<HttpResponse> early = host_->api->Early(request_);
  const auto length = parser_->content_length();
  const bool has_body = parser_->chunked() || (length && *length > 0);
  if (early) {
    if (has_body) return Reject(*early);
    state_ = State::kWorking;
    return Send(*early);
  }
  if (length && *length > host_->options->body_bytes_max)
    return OnReadError(http::error::body_limit);
  if (!has_body) return OnRequest();
  charge_ = std::make_shared<BodyCharge>(host_);
  if (length && host_->body_bytes.load() + *length > host_->options->body_bytes_total_max)
    return Reject(ErrorResponse(503, "too many large bodies are being read", "", "overloaded"));
  state_ = State::kBody;
  SetDeadline(host_->options->body_timeout_s);
  if (!boost::beast::iequals(parser_->get()[http::field::expect], "100-continue"))
    return ReadBody();
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(kContinue),
                    [self = shared_from_this()](Error failed, size_t) {
                      if (failed) return self->Close();
                      if (self->state_ == State::kBody) self->ReadBody();
                    });
}

void HttpConnection::TakeHead() {
  const auto& head = parser_->get();
  const auto field = [&](http::field name) {
    const auto value = head[name];
    return std::string(value.data(), value.size());
  };
  request_ = {};
  const auto method = head.method_string();
  request_.method.assign(method.data(), method.size());
  const auto target = head.target();
  request_.path.assign(target.data(), std::min(target.size(), target.find('?')));
  request_.content_type = field(http::field::content_type);
  request_.authorization = field(http::field::authorization);
  const auto id = head["X-Request-Id"];
  request_.request_id = RequestIdFrom(std::string_view(id.data(), id.size()));
  keep_alive_ = parser_->keep_alive();
  http10_ = head.version() < 11;
  head_only_ = request_.method == "HEAD";
  unread_body_ = false;
  busy_ = true;
  begun_ = std::chrono::steady_clock::now();
  record_ = {};
  record_.remote = remote_;
  record_.method = request_.method;
  record_.path = request_.path;
  record_.request_id = request_.request_id;
}

void HttpConnection::ReadBody() {
  if (parser_->is_done()) return OnRequest();
  http::async_read_some(socket_, buffer_, *parser_,
                        [self = shared_from_this()](Error error, size_t) { self->OnBody(error); });
}

void HttpConnection::OnBody(Error error) {
  if (state_ != State::kBody) return;
  if (error) return OnReadError(error);
  if (!ChargeBody())
    return Reject(ErrorResponse(503, "too many large bodies are being read", "", "overloaded"));
  ReadBody();
}

bool HttpConnection::ChargeBody() {
  const size_t size = parser_->get().body().size();
  host_->body_bytes += size - charge_->bytes;
  charge_->bytes = size;
  return host_->body_bytes.load() <= host_->options->body_bytes_total_max;
}

void HttpConnection::OnRequest() {
  request_.body = std::move(parser_->get().body());
  request_.body_charge = std::move(charge_);
  parser_.reset();
  state_ = State::kWorking;
  SetDeadline(0);
  Monitor();
  host_->api->Handle(std::move(request_), shared_from_this());
}

void HttpConnection::Attach(std::shared_ptr<Exchange> exchange) {
  if (open()) exchange_ = std::move(exchange);
}

void HttpConnection::NoteUsage(int64_t prompt_tokens, int64_t completion_tokens) {
  record_.prompt_tokens = prompt_tokens;
  record_.completion_tokens = completion_tokens;
}

void HttpConnection::Queue(const HttpResponse& response, bool streamed) {
  if (response.close || stopping_) keep_alive_ = false;
  streamed_ = streamed;
  chunked_ = streamed && !http10_;
  if (streamed && http10_) keep_alive_ = false;
  record_.status = response.status;
  std::string head =
      "HTTP/1.1 " + std::to_string(response.status) + " " + ReasonOf(response.status) + "\r\n";
  const auto add = [&](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  add("Server", "kvasir");
  if (!record_.request_id.empty()) add("X-Request-Id", record_.request_id);
  const std::string& origin = host_->options->cors_allow_origin;
  if (!origin.empty()) {
    add("Access-Control-Allow-Origin", origin);
    add("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id");
    add("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  }
  for (const auto& [name, value] : response.headers) add(name, value);
  if (response.status == 429 || response.status == 503)
    add("Retry-After", std::to_string(host_->api->RetryAfterSeconds()));
  add("X-Content-Type-Options", "nosniff");
  if (response.status != 204) add("Content-Type", response.content_type);
  if (chunked_)
    add("Transfer-Encoding", "chunked");
  else if (!streamed && response.status != 204)
    add("Content-Length", std::to_string(response.body.size()));
  add("Connection", keep_alive_ ? "keep-alive" : "close");
  out_ += head;
  out_ += "\r\n";
}

void HttpConnection::Send(HttpResponse response) {
  if (!open() || state_ == State::kLingering) return;
  state_ = State::kWriting;
  Queue(response, false);
  if (!head_only_ && response.status != 204) out_ += response.body;
  complete_ = true;
  Flush();
}

void HttpConnection::BeginStream(HttpResponse head) {
  if (!open()) return;
  state_ = State::kWriting;
  Queue(head, true);
  Flush();
}

// More unread than allowed for a second tells a slow reader; one large event is not his fault.
bool HttpConnection::ReadsTooSlowly() {
  constexpr auto kGrace = std::chrono::seconds(1);
  constexpr size_t kAtOnceFactor = 64;  // so much is never held, not even for that second
  const size_t limit = host_->options->output_bytes_max;
  const size_t unread = out_.size() + writing_.size() - written_;
  const auto now = std::chrono::steady_clock::now();
  if (unread <= limit) {
    over_limit_since_.reset();
    return false;
  }
  if (!over_limit_since_) over_limit_since_ = now;
  return unread > kAtOnceFactor * limit || now - *over_limit_since_ > kGrace;
}

void HttpConnection::Write(std::string bytes) {
  if (!open() || bytes.empty()) return;
  if (ReadsTooSlowly()) return Post([this] { Close(); });
  if (chunked_) {
    char size[24];
    std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    out_ += size;
    out_ += bytes;
    out_ += "\r\n";
  } else {
    out_ += bytes;
  }
  // A reader this slow is cut off; not from within the exchange that writes.
  Flush();
}

void HttpConnection::EndStream() {
  if (!open()) return;
  if (chunked_) out_ += "0\r\n\r\n";
  complete_ = true;
  Flush();
}

void HttpConnection::Flush() {
  if (write_pending_) return;
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
    writing_.swap(out_);
  }
  if (writing_.empty()) return;
  write_pending_ = true;
  SetDeadline(host_->options->write_timeout_s);
  socket_.async_write_some(
      asio::buffer(writing_.data() + written_, writing_.size() - written_),
      [self = shared_from_this()](Error error, size_t n) { self->OnWritten(error, n); });
}

void HttpConnection::OnWritten(Error error, size_t bytes) {
  write_pending_ = false;
  if (!open()) return;
  if (error) return Close();
  written_ += bytes;
  record_.bytes += bytes;
  SetDeadline(0);
  if (written_ < writing_.size() || !out_.empty()) return Flush();
  if (complete_) OnAnswered();
}

void HttpConnection::LogAnswer(int status) {
  if (!busy_) return;
  busy_ = false;
  record_.status = status;
  record_.ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun_).count();
  host_->metrics->CountHttp(status);
  host_->log->Write(record_);
}

void HttpConnection::OnAnswered() {
  LogAnswer(record_.status);
  exchange_.reset();
  complete_ = false;
  writing_ = {};
  written_ = 0;
  charge_.reset();
  if (keep_alive_ && !stopping_ && !unread_body_) return WaitForRequest();
  if (stopping_ && !unread_body_) return Close();
  Error error;
  socket_.shutdown(Socket::shutdown_send, error);
  state_ = State::kLingering;
  parser_.reset();
  SetDeadline(kLingerS);
  if (!monitoring_) Linger();
}

// Closing a socket with unread bytes resets it, and the reset may overtake the answer: read on for
// a while, keep nothing.
void HttpConnection::Linger() {
  lingered_ += buffer_.size();
  buffer_.consume(buffer_.size());
  if (lingered_ > kLingerBytesMax) return Close();
  constexpr size_t kRead = 16u << 10;
  socket_.async_read_some(buffer_.prepare(kRead),
                          [self = shared_from_this()](Error error, size_t n) {
                            if (!self->open()) return;
                            if (error) return self->Close();
                            self->buffer_.commit(n);
                            self->Linger();
                          });
}

void HttpConnection::SetDeadline(double seconds) {
  const uint64_t number = ++deadline_number_;
  if (seconds <= 0) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds)));
  deadline_.async_wait([self = shared_from_this(), number](Error error) {
    if (!error && number == self->deadline_number_) self->OnDeadline();
  });
}

void HttpConnection::OnDeadline() {
  if (state_ != State::kHead && state_ != State::kBody) return Close();
  // The read still pending would race with the answer's end.
  Error error;
  socket_.cancel(error);
  if (state_ == State::kHead) ForgetRequest();
  Reject(ErrorResponse(408, "the request did not arrive in time", "", "request_timeout"));
}

void HttpConnection::Close() {
  if (!open()) return;
  state_ = State::kClosed;
  idle_since_ns_ = 0;
  constexpr int kClientLeft = 499;
  LogAnswer(kClientLeft);
  Error error;
  socket_.close(error);
  ++deadline_number_;
  deadline_.cancel();
  charge_.reset();
  if (const std::shared_ptr<Exchange> exchange = std::move(exchange_)) exchange->OnClientGone();
  host_->on_closed(this);
}

}  // namespace kvasir
