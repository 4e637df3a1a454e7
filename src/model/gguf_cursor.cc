#include "model/gguf_cursor.h"

#include "model/gguf_text.h"

namespace kvasir::internal {

void GgufCursor::Fail(StatusCode code, uint64_t offset, const std::string& what) {
  if (status_.ok()) status_ = Status(code, GgufComplaint(file_, offset, field_, what));
}

void GgufCursor::FailShort(const std::string& what, uint64_t wanted) {
  // A declared length near 2^64 makes no sensible expected size; the sum must not wrap into one.
  const bool sane = wanted <= UINT64_MAX - at_;
  Fail(StatusCode::kDataLoss, at_,
       what + " needs " + std::to_string(wanted) + " bytes where " + std::to_string(left()) +
           " are left (expected size " +
           (sane ? "at least " + std::to_string(at_ + wanted) : "above 2^64") +
           " bytes, actual size " + std::to_string(size()) + "): cut off or broken");
}

std::span<const std::byte> GgufCursor::Take(uint64_t count) {
  if (!ok()) return {};
  if (count > left()) {
    FailShort("it", count);
    return {};
  }
  const std::span<const std::byte> taken = bytes_.subspan(at_, count);
  at_ += count;
  return taken;
}

std::string_view GgufCursor::ReadString(const char* what, uint64_t longest) {
  const uint64_t start = at_;
  const auto length = Read<uint64_t>();
  if (!ok()) return {};
  if (length > left()) {
    FailShort(std::string(what) + " length " + std::to_string(length) + ":", length);
    return {};
  }
  if (length > longest) {
    Fail(StatusCode::kDataLoss, start,
         std::string(what) + " length " + std::to_string(length) + " (limit " +
             std::to_string(longest) + ")");
    return {};
  }
  const std::span<const std::byte> raw = Take(length);
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

}  // namespace kvasir::internal
