#include "server/choice_text.h"

#include <algorithm>
#include <utility>

namespace kvasir {

int64_t CountCharacters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

ChoiceText::ChoiceText(const std::vector<std::string>* stop, bool include_stop)
    : stop_(stop), include_stop_(include_stop) {}

std::string ChoiceText::Push(std::string_view bytes, bool watch) {
  std::string decoded = utf8_.Push(bytes);
  characters_ += CountCharacters(decoded);
  if (stop_->empty()) return decoded;
  held_ += decoded;
  if (!watch) return std::exchange(held_, {});
  size_t first = std::string::npos;
  for (size_t i = 0; i < stop_->size(); ++i) {
    const size_t at = held_.find((*stop_)[i]);
    if (at < first) {
      first = at;
      stop_index_ = static_cast<int32_t>(i);
    }
  }
  if (stopped()) {
    const size_t end =
        include_stop_ ? first + (*stop_)[static_cast<size_t>(stop_index_)].size() : first;
    std::string shown = held_.substr(0, end);
    held_.clear();
    return shown;
  }
  const size_t hold = HoldFrom();
  std::string shown = held_.substr(0, hold);
  held_.erase(0, hold);
  return shown;
}

// Where the longest end of held_ begins that is a proper beginning of a stop string.
size_t ChoiceText::HoldFrom() const {
  size_t longest = 0;
  const std::string_view held = held_;
  for (const std::string& stop : *stop_) {
    for (size_t length = std::min(stop.size() - 1, held.size()); length > longest; --length) {
      if (held.substr(held.size() - length) == std::string_view(stop).substr(0, length)) {
        longest = length;
        break;
      }
    }
  }
  return held.size() - longest;
}

std::string ChoiceText::Finish() {
  if (stopped()) return {};
  const std::string rest = utf8_.Finish();
  characters_ += CountCharacters(rest);
  return std::exchange(held_, {}) + rest;
}

}  // namespace kvasir
