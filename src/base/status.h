// Status and Result<T>: how a broken world or bad input is reported. No exceptions cross a folder's
// border.
//
// A message is one line, says what was wrong with which field, and the limit if there is one. It is
// written for the person who caused it: it may be shown to a client as is.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace kvasir {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // bad request or option: HTTP 400, exit 2
  kNotFound,           // no such file, model, path: HTTP 404
  kDataLoss,           // a file or a peer's bytes are broken: exit 3
  kUnimplemented,      // well-formed, but a kind we do not know: exit 3
  kResourceExhausted,  // a queue is full: HTTP 429
  kOutOfMemory,        // memory asked for is not there: exit 4
  kUnavailable,        // loading, draining: HTTP 503
  kDeadlineExceeded,   // waited too long: HTTP 503
  kCancelled,          // the client went away
  kInternal,           // ours: HTTP 500, exit 1
};

std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, std::string field = "")
      : code_(code), message_(std::move(message)), field_(std::move(field)) {}

  static Status Ok() { return Status(); }
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // The request field or option that was wrong ("" if none): becomes `param` of an API error.
  const std::string& field() const { return field_; }
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string field_;
};

Status InvalidArgument(std::string message, std::string field = "");
Status NotFound(std::string message);
Status DataLoss(std::string message);
Status Unimplemented(std::string message);
Status ResourceExhausted(std::string message);
Status OutOfMemory(std::string message);
Status Unavailable(std::string message);
Status DeadlineExceeded(std::string message);
Status Internal(std::string message);

// Either a value or a non-OK status. Reading value() of a failed result is our own mistake (CHECK).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    KVASIR_CHECK(!status_.ok());
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    KVASIR_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    KVASIR_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    KVASIR_CHECK(ok());
    return *std::move(value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kvasir

#define KVASIR_RETURN_IF_ERROR(expr)                                      \
  do {                                                                    \
    if (::kvasir::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

#define KVASIR_CONCAT_INNER(a, b) a##b
#define KVASIR_CONCAT(a, b) KVASIR_CONCAT_INNER(a, b)
#define KVASIR_ASSIGN_OR_RETURN(lhs, expr) \
  KVASIR_ASSIGN_OR_RETURN_IMPL(KVASIR_CONCAT(result_, __LINE__), lhs, expr)
#define KVASIR_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return tmp.status();                \
  lhs = std::move(tmp).value()
