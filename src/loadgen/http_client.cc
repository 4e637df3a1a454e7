#include "loadgen/http_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "loadgen/http_response.h"

namespace kvasir {
namespace {

constexpr size_t kBodyBytesMax = 16u << 20;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Waits until the socket is ready for `events` or the deadline passes.
Status WaitFor(int fd, short events, int64_t deadline_ns) {
  for (;;) {
    const int64_t left_ms = (deadline_ns - SteadyNowNs()) / 1'000'000;
    if (left_ms <= 0) return DeadlineExceeded("timed out");
    pollfd poller{fd, events, 0};
    const int ready = poll(&poller, 1, static_cast<int>(std::min<int64_t>(left_ms, 60'000)));
    if (ready > 0) return Status::Ok();
    if (ready < 0 && errno != EINTR) return Unavailable(std::string("poll: ") + strerror(errno));
  }
}

Result<Socket> ConnectOne(const addrinfo& address, int64_t deadline_ns) {
  const int type = address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC;
  Socket socket_(socket(address.ai_family, type, address.ai_protocol));
  if (socket_.fd() < 0) return Unavailable(std::string("socket: ") + strerror(errno));
  if (connect(socket_.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return Unavailable(std::string("connect: ") + strerror(errno));
    KVASIR_RETURN_IF_ERROR(WaitFor(socket_.fd(), POLLOUT, deadline_ns));
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return Unavailable(std::string("connect: ") + strerror(error));
  }
  const int on = 1;
  setsockopt(socket_.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket_;
}

Result<Socket> Connect(const HttpUrl& url, int64_t deadline_ns) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found);
      error != 0) {
    return Unavailable("cannot resolve " + url.host + ": " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  Status last = Unavailable("no address for " + url.host);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    Result<Socket> connected = ConnectOne(*address, deadline_ns);
    if (connected.ok()) return connected;
    last = connected.status();
  }
  return last;
}

Status SendAll(int fd, std::string_view bytes, int64_t deadline_ns) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      KVASIR_RETURN_IF_ERROR(WaitFor(fd, POLLOUT, deadline_ns));
    } else if (sent < 0 && errno != EINTR) {
      // The server may have answered (413, 401) and closed before reading everything: let the
      // reader look.
      if (errno == EPIPE || errno == ECONNRESET) return Status::Ok();
      return DataLoss(std::string("send: ") + strerror(errno));
    }
  }
  return Status::Ok();
}

// Reads until the response is whole or on_body had enough.
Status Receive(int fd, int64_t deadline_ns, const OnBody& on_body, HttpReply* reply) {
  HttpResponseParser parser;
  std::array<char, 16384> buffer{};
  while (!parser.done()) {
    KVASIR_RETURN_IF_ERROR(WaitFor(fd, POLLIN, deadline_ns));
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    if (got < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) continue;
      return DataLoss(std::string("connection broken: ") + strerror(errno));
    }
    const int64_t now_ns = SteadyNowNs();
    if (got == 0) {
      KVASIR_RETURN_IF_ERROR(parser.Close());
      break;
    }
    std::string body;
    KVASIR_RETURN_IF_ERROR(parser.Push({buffer.data(), static_cast<size_t>(got)}, &body));
    reply->status = parser.status();
    if (body.empty()) continue;
    if (on_body) {
      if (!on_body(parser.status(), body, now_ns)) return Status::Ok();
    } else {
      if (reply->body.size() + body.size() > kBodyBytesMax)
        return DataLoss("body longer than 16 MiB");
      reply->body += body;
    }
  }
  reply->status = parser.status();
  return Status::Ok();
}

}  // namespace

std::string HttpRequestText(const HttpUrl& url, const HttpRequest& request) {
  const bool v6 = url.host.find(':') != std::string::npos;
  std::string text = request.method + " " + url.path + request.path + " HTTP/1.1\r\nHost: ";
  text += (v6 ? "[" + url.host + "]" : url.host) + ":" + url.port;
  text += "\r\nAccept: */*\r\nConnection: close\r\nUser-Agent: kvasir-bench\r\n";
  if (!request.api_key.empty()) text += "Authorization: Bearer " + request.api_key + "\r\n";
  if (!request.body.empty()) {
    text +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(request.body.size()) +
        "\r\n";
  }
  return text + "\r\n" + request.body;
}

int64_t SteadyNowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string HttpUrl::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return "http://" + (v6 ? "[" + host + "]" : host) + ":" + port + path;
}

Result<HttpUrl> ParseHttpUrl(std::string_view text) {
  const std::string whole(text);
  const auto bad = [&whole](const std::string& why) {
    return InvalidArgument("--url '" + whole + "': " + why + " (like http://127.0.0.1:8080)",
                           "url");
  };
  if (text.starts_with("https://")) return bad("https is not offered, only plain http");
  if (text.starts_with("http://")) text.remove_prefix(7);
  if (text.find("://") != std::string_view::npos) return bad("only http is known");
  if (text.find_first_of(" \r\n\t@?#") != std::string_view::npos)
    return bad("unexpected character");
  HttpUrl url;
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    url.path = std::string(text.substr(slash));
    text = text.substr(0, slash);
  }
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t close_at = text.find(']');
    if (close_at == std::string_view::npos) return bad("'[' without ']'");
    url.host = std::string(text.substr(1, close_at - 1));
    text.remove_prefix(close_at + 1);
    if (!text.empty() && text.front() != ':') return bad("unexpected text after ']'");
    port = text.empty() ? text : text.substr(1);
    if (!text.empty() && port.empty()) return bad("empty port");
  } else {
    const size_t colon = text.find(':');
    url.host = std::string(text.substr(0, colon));
    if (colon != std::string_view::npos) {
      port = text.substr(colon + 1);
      if (port.empty()) return bad("empty port");
    }
  }
  if (url.host.empty()) return bad("no host");
  if (!port.empty()) {
    if (port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos ||
        std::stoi(std::string(port)) < 1 || std::stoi(std::string(port)) > 65535) {
      return bad("port must be 1 to 65535");
    }
    url.port = std::string(port);
  }
  return url;
}

Result<HttpReply> HttpExchange(const HttpUrl& url, const HttpRequest& request,
                               const OnBody& on_body) {
  const int64_t deadline_ns = SteadyNowNs() + static_cast<int64_t>(request.timeout_s * 1e9);
  KVASIR_ASSIGN_OR_RETURN(const Socket connection, Connect(url, deadline_ns));
  KVASIR_RETURN_IF_ERROR(SendAll(connection.fd(), HttpRequestText(url, request), deadline_ns));
  HttpReply reply;
  KVASIR_RETURN_IF_ERROR(Receive(connection.fd(), deadline_ns, on_body, &reply));
  return reply;
}

}  // namespace kvasir
