#include "apps/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace kvasir {

// Moves the first line of the buffer out, if it is whole.
bool LineReader::TakeLine(std::string* line) {
  const size_t end = buffer_.find('\n');
  if (end == std::string::npos && !(at_end_ && !buffer_.empty())) return false;
  *line = buffer_.substr(0, end);
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  if (line->ends_with('\r')) line->pop_back();
  return true;
}

LineReader::Line LineReader::Next() {
  std::string message;
  std::array<char, 65536> bytes{};
  for (;;) {
    for (std::string line; TakeLine(&line);) {
      const bool goes_on = line.ends_with('\\') && !(at_end_ && buffer_.empty());
      if (goes_on) line.back() = '\n';
      if (message.size() + line.size() <= kMessageBytesMax) message += line;
      if (!goes_on) return {Kind::kLine, message};
    }
    if (at_end_) return message.empty() ? Line{Kind::kEnd, ""} : Line{Kind::kLine, message};
    // A signal just before the read would be missed by it; the poll's limit bounds how long.
    pollfd poller{fd_, POLLIN, 0};
    const int ready = poll(&poller, 1, 200);
    if (*interrupted_) {
      buffer_.clear();
      return {Kind::kInterrupted, ""};
    }
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t got = ready < 0 ? 0 : read(fd_, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      at_end_ = true;
    } else if (buffer_.size() <= kMessageBytesMax) {
      buffer_.append(bytes.data(), static_cast<size_t>(got));
    }
  }
}

}  // namespace kvasir
