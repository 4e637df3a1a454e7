// HTTP seen from the API: what came in, what goes out, and the one who writes it. No sockets here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::string content_type;
  std::string authorization;
  std::string request_id;  // X-Request-Id if it was a sane one, else made here
  std::string body;
  std::shared_ptr<void> body_charge;  // accounts for the body's bytes while it lives
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool close = false;  // the connection ends with it
};

// How messages about a prompt that does not fit begin; they get the code context_length_exceeded.
inline constexpr const char* kContextLengthMessage = "This model's maximum context length is ";
inline constexpr const char* kPoolLengthMessage = "This server's KV pool holds ";

// {"error":{"message","type","param","code"}}, OpenAI's shape, for each kind of failure.
int HttpStatusOf(const Status& status);
std::string ErrorBody(int http_status, const std::string& message, const std::string& param = "",
                      const std::string& code = "");
std::string ErrorBody(const Status& status);
HttpResponse ErrorResponse(int http_status, const std::string& message,
                           const std::string& param = "", const std::string& code = "");
HttpResponse ErrorResponse(const Status& status);

// An answer being made. Called on the connection's strand.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void OnClientGone() = 0;  // nothing can be written any more
};

// The connection as an answer sees it. All but Post on its strand.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  virtual void Post(std::function<void()> work) = 0;  // any thread: runs work on the strand
  virtual bool open() const = 0;                      // false: the client is gone, drop the work
  // Keeps exchange alive, and tells it when the client goes, until the answer is complete.
  virtual void Attach(std::shared_ptr<Exchange> exchange) = 0;
  virtual void Send(HttpResponse response) = 0;  // a whole answer
  // A streamed one: head, any number of pieces, end.
  virtual void BeginStream(HttpResponse head) = 0;
  virtual void Write(std::string bytes) = 0;
  virtual void EndStream() = 0;
  virtual void NoteUsage(int64_t prompt_tokens, int64_t completion_tokens) = 0;  // for the log
};

}  // namespace kvasir
