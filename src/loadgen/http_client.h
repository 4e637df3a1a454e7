// A small blocking HTTP/1.1 client over a socket of its own: one request, one connection, closed
// afterwards, as independent users would come. Plain http only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvasir {

struct HttpUrl {
  std::string host;
  std::string port = "80";
  std::string path;  // prefix of every request's path, without a trailing '/'; "" mostly
  std::string ToString() const;
};

// "http://host[:port][/path]", also without "http://", IPv6 in brackets. A trailing "/v1" is taken
// off, since many clients are given it. https is refused by name.
Result<HttpUrl> ParseHttpUrl(std::string_view text);

struct HttpRequest {
  std::string method = "GET";
  std::string path;  // "/v1/models"
  std::string body;  // JSON, "" if none
  std::string api_key;
  double timeout_s = 600;  // for the whole exchange
};

struct HttpReply {
  int status = 0;
  std::string body;  // empty if on_body took it
};

// Called with body bytes as they come and the time of arrival (steady clock, ns). Return false to
// stop reading: the exchange then counts as complete.
using OnBody = std::function<bool(int status, std::string_view bytes, int64_t now_ns)>;

// Any thread. kUnavailable: no connection; kDeadlineExceeded: the time is over; kDataLoss: a broken
// response or stream. Any HTTP status is a success here. Bodies kept in HttpReply are limited to 16
// MiB.
Result<HttpReply> HttpExchange(const HttpUrl& url, const HttpRequest& request,
                               const OnBody& on_body = {});

// The bytes that HttpExchange sends.
std::string HttpRequestText(const HttpUrl& url, const HttpRequest& request);

int64_t SteadyNowNs();

}  // namespace kvasir
