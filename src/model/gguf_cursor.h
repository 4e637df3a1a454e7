// A reading position in a hostile file's bytes. Every read is checked against what is left; a
// failure is remembered with the field it happened in, and everything after it reads as zero, so a
// caller may check once per record.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/status.h"

namespace kvasir::internal {

static_assert(std::endian::native == std::endian::little, "GGUF files are read in place");

class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, std::string file)
      : bytes_(bytes), file_(std::move(file)) {}

  uint64_t offset() const { return at_; }
  uint64_t size() const { return bytes_.size(); }
  uint64_t left() const { return bytes_.size() - at_; }
  const std::string& file() const { return file_; }
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  // Names what is read next; stands in messages.
  void Enter(std::string field) { field_ = std::move(field); }
  const std::string& field() const { return field_; }

  template <typename T>
  requires std::is_trivially_copyable_v<T> T Read() {
    T value{};
    const std::span<const std::byte> raw = Take(sizeof(T));
    if (raw.size() == sizeof(T)) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }

  // `count` bytes in place; empty and failed if they are not there.
  std::span<const std::byte> Take(uint64_t count);

  // A 64-bit length and that many bytes. `what` is "string" or "key".
  std::string_view ReadString(const char* what, uint64_t longest);

  // Remember the first failure only.
  void Fail(StatusCode code, uint64_t offset, const std::string& what);
  void FailShort(const std::string& what, uint64_t wanted);

 private:
  std::span<const std::byte> bytes_;
  std::string file_;
  std::string field_;
  uint64_t at_ = 0;
  Status status_;
};

}  // namespace kvasir::internal
