// ChoiceText: bytes of tokens in, text that may be shown out: whole characters only, and never a
// part of a stop string.
//
// A match is looked for after every token; of several matches the one that begins first wins, of
// those that begin at the same place the first in the list. Text that could still become a stop
// string is held back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace kvasir {

class ChoiceText {
 public:
  // stop outlives the object; its strings are not empty.
  ChoiceText(const std::vector<std::string>* stop, bool include_stop);

  // Adds a token's bytes and returns what can be shown now. watch: look for stop strings in what
  // this token adds (false while min_tokens is not reached). After a match nothing may be pushed.
  std::string Push(std::string_view bytes, bool watch);
  // The end by other means: shows what was held back; half a character becomes one U+FFFD.
  std::string Finish();

  bool stopped() const { return stop_index_ >= 0; }
  int32_t stop_index() const { return stop_index_; }
  // Characters (code points) decoded so far, whether shown or not.
  int64_t characters() const { return characters_; }
  bool holding() const { return !held_.empty(); }

 private:
  size_t HoldFrom() const;

  const std::vector<std::string>* stop_;
  bool include_stop_;
  Utf8Stream utf8_;
  std::string held_;  // decoded, not shown: a proper prefix of a stop string
  int64_t characters_ = 0;
  int32_t stop_index_ = -1;
};

// Code points in valid UTF-8.
int64_t CountCharacters(std::string_view utf8);

}  // namespace kvasir
