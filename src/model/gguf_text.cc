#include "model/gguf_text.h"

#include <cstdio>

namespace kvasir::internal {

std::string Printable(std::string_view raw) {
  constexpr size_t kLongest = 80;
  std::string text;
  for (const char c : raw.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      text += c;
    } else {
      char hex[8];
      std::snprintf(hex, sizeof(hex), "\\x%02X", byte);
      text += hex;
    }
  }
  if (raw.size() > kLongest) text += "...";
  return text;
}

std::string GgufComplaint(const std::string& file, uint64_t offset, const std::string& field,
                          const std::string& what) {
  return file + ": offset " + std::to_string(offset) + ": field '" + field + "': " + what;
}

}  // namespace kvasir::internal
