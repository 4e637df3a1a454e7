// Small owners for what kvasir_text.h hands out. Private to src/text.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "kvasir_text.h"

namespace kvasir::internal {

inline kv_str View(std::string_view text) {
  return {text.data(), text.size()};
}

// Owns a kv_buffer.
class RustBuffer {
 public:
  RustBuffer() = default;
  ~RustBuffer() { kv_buffer_free(buffer_); }
  RustBuffer(const RustBuffer&) = delete;
  RustBuffer& operator=(const RustBuffer&) = delete;
  kv_buffer* out() { return &buffer_; }
  std::string_view view() const { return {buffer_.data, buffer_.size}; }

 private:
  kv_buffer buffer_ = {nullptr, 0};
};

inline Status ToStatus(kv_code code, const RustBuffer& error) {
  std::string message(error.view());
  switch (code) {
    case kKvOk:
      return Status::Ok();
    case kKvInvalidArgument:
      return InvalidArgument(std::move(message));
    case kKvDataLoss:
      return DataLoss(std::move(message));
    case kKvUnimplemented:
      return Unimplemented(std::move(message));
    case kKvNotFound:
      return NotFound(std::move(message));
    case kKvInternal:
      break;
  }
  return Internal(std::move(message));
}

}  // namespace kvasir::internal
