// Reading an HTTP/1.1 response (RFC 9112) and the server-sent events in it (WHATWG HTML,
// section 9.2), byte by byte as they come off a socket. No I/O here: both are fed by whoever reads
// the socket, so any split of the bytes can be tested. The server is not trusted: every length has
// a limit, and what is broken becomes a Status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir {

// Feed bytes, take body bytes. Ends by Content-Length, by the last chunk, or by the end of the
// connection, as the head says. 1xx responses before the real one are skipped.
class HttpResponseParser {
 public:
  static constexpr size_t kHeadBytesMax = 64u << 10;  // status line and headers
  static constexpr size_t kChunkLineBytesMax = 4096;  // one chunk-size line with its extensions
  static constexpr uint64_t kChunkBytesMax = uint64_t{1} << 32;

  // Takes bytes from the socket and appends the body bytes among them to `body`. Bytes after the
  // end are ignored. kDataLoss if this is no HTTP response; the parser is then of no further use.
  Status Push(std::string_view bytes, std::string* body);
  // The connection was closed. kDataLoss if the response was not whole by then.
  Status Close();

  bool head_done() const { return state_ != State::kHead; }
  bool done() const { return state_ == State::kDone; }
  int status() const { return code_; }  // 0 until head_done
  // Value of a header, name in lower case; "" if absent. Of repeated ones the last.
  std::string_view header(const std::string& name) const;

 private:
  enum class State {
    kHead,
    kLength,
    kUntilClose,
    kChunkSize,
    kChunkData,
    kChunkEnd,
    kTrailer,
    kDone
  };

  Status ParseHead(std::string_view head);
  Status ParseHeaderLine(std::string_view line);
  Status StartBody();
  Status StepLine(std::string_view* bytes);
  Status OnChunkSize();

  State state_ = State::kHead;
  std::string pending_;  // of the head or of a line that is not whole yet
  std::map<std::string, std::string> headers_;
  int code_ = 0;
  uint64_t remaining_ = 0;  // of the chunk or of the whole body
};

// Server-sent events: the `data` of each event, lines joined by "\n". Lines end in LF, CR LF or CR.
// Comments and other fields are skipped; an event without data is no event.
class SseParser {
 public:
  static constexpr size_t kEventBytesMax = 16u << 20;

  // Appends the events that are complete to `events`. kDataLoss if one is longer than the limit.
  Status Push(std::string_view bytes, std::vector<std::string>* events);
  // The body ended. An event whose closing blank line is missing is dropped, as the specification
  // says.
  bool mid_event() const { return !line_.empty() || has_data_; }

 private:
  void EndLine(std::vector<std::string>* events);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;
};

}  // namespace kvasir
