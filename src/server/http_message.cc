#include "server/http_message.h"

#include "server/json_reader.h"

namespace kvasir {
namespace {

const char* TypeOf(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  if (status == 503) return "service_unavailable_error";
  if (status >= 500) return "server_error";
  return "invalid_request_error";
}

// Codes that client libraries look at.
std::string CodeOf(const Status& status) {
  if (status.code() == StatusCode::kNotFound && status.field() == "model") return "model_not_found";
  for (const char* begin : {kContextLengthMessage, kPoolLengthMessage}) {
    if (status.message().starts_with(begin)) return "context_length_exceeded";
  }
  return {};
}

}  // namespace

int HttpStatusOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnimplemented:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kResourceExhausted:
      return 429;
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return 503;
    case StatusCode::kCancelled:  // by us: the server is stopping
      return 503;
    case StatusCode::kDataLoss:
    case StatusCode::kOutOfMemory:
    case StatusCode::kInternal:
      break;
  }
  return 500;
}

std::string ErrorBody(int http_status, const std::string& message, const std::string& param,
                      const std::string& code) {
  Json error = {{"message", message}, {"type", TypeOf(http_status)}};
  error["param"] = param.empty() ? Json(nullptr) : Json(param);
  error["code"] = code.empty() ? Json(nullptr) : Json(code);
  Json body = Json::object();
  body["error"] = std::move(error);
  return DumpJson(body);
}

std::string ErrorBody(const Status& status) {
  return ErrorBody(HttpStatusOf(status), status.message(), status.field(), CodeOf(status));
}

HttpResponse ErrorResponse(int http_status, const std::string& message, const std::string& param,
                           const std::string& code) {
  HttpResponse response;
  response.status = http_status;
  response.body = ErrorBody(http_status, message, param, code);
  return response;
}

HttpResponse ErrorResponse(const Status& status) {
  return ErrorResponse(HttpStatusOf(status), status.message(), status.field(), CodeOf(status));
}

}  // namespace kvasir
