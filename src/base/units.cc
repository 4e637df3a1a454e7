#include "base/units.h"

#include <cctype>
#include <charconv>
#include <cstdio>

namespace kvasir {
namespace {

Status Bad(std::string_view text, std::string_view field) {
  return InvalidArgument(std::string(field) + ": '" + std::string(text) +
                             "' is no size; write for example 512MiB, 4GiB or 65536",
                         std::string(field));
}

}  // namespace

Result<uint64_t> ParseSize(std::string_view text, std::string_view field) {
  double number = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return Bad(text, field);
  std::string suffix;
  for (const char* p = rest; p != end; ++p) {
    if (*p != ' ') suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(*p)));
  }
  double unit = 1;
  if (!suffix.empty() && suffix != "b") {
    switch (suffix[0]) {
      case 'k':
        unit = 0x1p10;
        break;
      case 'm':
        unit = 0x1p20;
        break;
      case 'g':
        unit = 0x1p30;
        break;
      case 't':
        unit = 0x1p40;
        break;
      default:
        return Bad(text, field);
    }
    const std::string tail = suffix.substr(1);
    if (!tail.empty() && tail != "b" && tail != "ib") return Bad(text, field);
  }
  if (number * unit > 0x1p62) return Bad(text, field);
  return static_cast<uint64_t>(number * unit);
}

std::string FormatSize(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) {
    value /= 1024;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : (value < 10 ? "%.2f %s" : "%.1f %s"),
                value, kUnits[unit]);
  return text;
}

}  // namespace kvasir
