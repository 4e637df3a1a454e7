#include "base/status.h"

namespace kvasir {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kDataLoss:
      return "broken data";
    case StatusCode::kUnimplemented:
      return "not supported";
    case StatusCode::kResourceExhausted:
      return "limit reached";
    case StatusCode::kOutOfMemory:
      return "out of memory";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kDeadlineExceeded:
      return "deadline exceeded";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  std::string text(StatusCodeName(code_));
  text += ": ";
  text += message_;
  return text;
}

Status InvalidArgument(std::string message, std::string field) {
  return {StatusCode::kInvalidArgument, std::move(message), std::move(field)};
}
Status NotFound(std::string message) {
  return {StatusCode::kNotFound, std::move(message)};
}
Status DataLoss(std::string message) {
  return {StatusCode::kDataLoss, std::move(message)};
}
Status Unimplemented(std::string message) {
  return {StatusCode::kUnimplemented, std::move(message)};
}
Status ResourceExhausted(std::string message) {
  return {StatusCode::kResourceExhausted, std::move(message)};
}
Status OutOfMemory(std::string message) {
  return {StatusCode::kOutOfMemory, std::move(message)};
}
Status Unavailable(std::string message) {
  return {StatusCode::kUnavailable, std::move(message)};
}
Status DeadlineExceeded(std::string message) {
  return {StatusCode::kDeadlineExceeded, std::move(message)};
}
Status Internal(std::string message) {
  return {StatusCode::kInternal, std::move(message)};
}

}  // namespace kvasir
