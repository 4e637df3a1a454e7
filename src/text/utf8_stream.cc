#include "text/tokenizer.h"

namespace kvasir {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What stands at the front of `bytes` (not empty): a whole character, the beginning of one, or a
// maximal bad part. Ranges of the second byte: Unicode 15, table 3-7 (no overlong forms, no
// surrogates, nothing above U+10FFFF).
struct Front {
  enum class Kind { kWhole, kBegun, kBad } kind;
  size_t size;
};

Front Classify(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Front::Kind::kWhole, 1};
  size_t size = 0;
  if (lead >= 0xC2 && lead <= 0xDF) size = 2;
  if (lead >= 0xE0 && lead <= 0xEF) size = 3;
  if (lead >= 0xF0 && lead <= 0xF4) size = 4;
  if (size == 0) return {Front::Kind::kBad, 1};
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < size; ++i) {
    if (i == bytes.size()) return {Front::Kind::kBegun, i};
    if (at(i) < low || at(i) > high) return {Front::Kind::kBad, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Front::Kind::kWhole, size};
}

}  // namespace

std::string Utf8Stream::Push(std::string_view bytes) {
  std::string joined = pending_;
  joined += bytes;
  pending_.clear();
  std::string shown;
  shown.reserve(joined.size());
  std::string_view rest = joined;
  while (!rest.empty()) {
    const Front front = Classify(rest);
    if (front.kind == Front::Kind::kBegun) {
      pending_ = rest;
      break;
    }
    shown += front.kind == Front::Kind::kWhole ? rest.substr(0, front.size) : kReplacement;
    rest.remove_prefix(front.size);
  }
  return shown;
}

std::string Utf8Stream::Finish() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacement);
}

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Front front = Classify(text.substr(at));
    if (front.kind != Front::Kind::kWhole) return at;
    at += front.size;
  }
  return std::string_view::npos;
}

}  // namespace kvasir
