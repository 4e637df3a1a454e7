// Lines from a terminal or a pipe, with a way to be interrupted.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace kvasir {

class LineReader {
 public:
  static constexpr size_t kMessageBytesMax = 4u << 20;  // the rest of a longer message is dropped

  enum class Kind { kLine, kInterrupted, kEnd };
  struct Line {
    Kind kind = Kind::kEnd;
    std::string text;
  };

  // interrupted is set by a signal handler (installed without SA_RESTART).
  LineReader(int fd, const std::atomic<bool>* interrupted) : fd_(fd), interrupted_(interrupted) {}

  // One message: a line without its end; a line that ends in a backslash goes on in the next one.
  // What was typed before an interruption is dropped. A last line without an end counts.
  Line Next();

 private:
  bool TakeLine(std::string* line);

  int fd_;
  const std::atomic<bool>* interrupted_;
  std::string buffer_;
  bool at_end_ = false;
};

}  // namespace kvasir
