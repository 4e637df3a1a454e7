#include "loadgen/http_response.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>

namespace kvasir {
namespace {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Whole text must be one number in `base`.
bool ParseNumber(std::string_view text, int base, uint64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace

std::string_view HttpResponseParser::header(const std::string& name) const {
  const auto it = headers_.find(name);
  return it == headers_.end() ? std::string_view() : std::string_view(it->second);
}

Status HttpResponseParser::Push(std::string_view bytes, std::string* body) {
  while (!bytes.empty() && state_ != State::kDone) {
    if (state_ == State::kUntilClose) {
      body->append(bytes);
      return Status::Ok();
    }
    if (state_ == State::kLength || state_ == State::kChunkData) {
      const size_t take = static_cast<size_t>(std::min<uint64_t>(remaining_, bytes.size()));
      body->append(bytes.substr(0, take));
      bytes.remove_prefix(take);
      remaining_ -= take;
      if (remaining_ == 0) state_ = state_ == State::kLength ? State::kDone : State::kChunkEnd;
      continue;
    }
    KVASIR_RETURN_IF_ERROR(StepLine(&bytes));
  }
  return Status::Ok();
}

// Takes bytes up to the end of a line (or of the head) and acts on it if it is whole.
Status HttpResponseParser::StepLine(std::string_view* bytes) {
  const size_t limit = state_ == State::kHead ? kHeadBytesMax : kChunkLineBytesMax;
  const size_t newline = bytes->find('\n');
  const size_t take = newline == std::string_view::npos ? bytes->size() : newline + 1;
  if (pending_.size() + take > limit) {
    return DataLoss(state_ == State::kHead ? "response head longer than 64 KiB"
                                           : "chunk line longer than 4 KiB");
  }
  pending_.append(bytes->substr(0, take));
  bytes->remove_prefix(take);
  if (newline == std::string_view::npos) return Status::Ok();

  if (state_ == State::kHead) {
    if (pending_.ends_with("\r\n\r\n") || pending_.ends_with("\n\n")) {
      const std::string head = std::move(pending_);
      pending_.clear();
      return ParseHead(head);
    }
    return Status::Ok();
  }
  while (pending_.ends_with('\n') || pending_.ends_with('\r')) pending_.pop_back();
  Status status;
  if (state_ == State::kChunkSize) {
    status = OnChunkSize();
  } else if (state_ == State::kChunkEnd) {
    if (!pending_.empty()) return DataLoss("bytes after a chunk's end");
    state_ = State::kChunkSize;
  } else if (pending_.empty()) {  // kTrailer: an empty line ends it
    state_ = State::kDone;
  }
  pending_.clear();
  return status;
}

Status HttpResponseParser::OnChunkSize() {
  const std::string_view digits = Trim(std::string_view(pending_).substr(0, pending_.find(';')));
  uint64_t size = 0;
  if (!ParseNumber(digits, 16, &size) || size > kChunkBytesMax) {
    return DataLoss("bad chunk size");
  }
  remaining_ = size;
  state_ = size == 0 ? State::kTrailer : State::kChunkData;
  return Status::Ok();
}

Status HttpResponseParser::ParseHead(std::string_view head) {
  size_t end = head.find('\n');
  std::string_view line = head.substr(0, end);
  if (line.ends_with('\r')) line.remove_suffix(1);
  uint64_t code = 0;
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ' ||
      !ParseNumber(line.substr(9, 3), 10, &code) || code < 100 || code > 599) {
    return DataLoss("not an HTTP/1.x response");
  }
  headers_.clear();
  while (end != std::string_view::npos) {
    const size_t start = end + 1;
    end = head.find('\n', start);
    if (end == std::string_view::npos) break;
    line = head.substr(start, end - start);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) KVASIR_RETURN_IF_ERROR(ParseHeaderLine(line));
  }
  if (code < 200) return Status::Ok();  // informational: the next head follows
  code_ = static_cast<int>(code);
  return StartBody();
}

Status HttpResponseParser::ParseHeaderLine(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) return DataLoss("bad response header line");
  headers_[Lower(line.substr(0, colon))] = std::string(Trim(line.substr(colon + 1)));
  return Status::Ok();
}

Status HttpResponseParser::StartBody() {
  if (code_ == 204 || code_ == 304) {
    state_ = State::kDone;
    return Status::Ok();
  }
  if (const std::string_view coding = header("transfer-encoding"); !coding.empty()) {
    if (Lower(coding) != "chunked") return DataLoss("transfer-encoding other than chunked");
    state_ = State::kChunkSize;
    return Status::Ok();
  }
  if (const std::string_view length = header("content-length"); !length.empty()) {
    if (!ParseNumber(length, 10, &remaining_)) return DataLoss("bad content-length");
    state_ = remaining_ == 0 ? State::kDone : State::kLength;
    return Status::Ok();
  }
  state_ = State::kUntilClose;
  return Status::Ok();
}

Status HttpResponseParser::Close() {
  if (state_ == State::kUntilClose) state_ = State::kDone;
  if (state_ == State::kDone) return Status::Ok();
  if (state_ == State::kHead) return DataLoss("connection closed before the response head");
  return DataLoss("connection closed in the middle of the body");
}

Status SseParser::Push(std::string_view bytes, std::vector<std::string>* events) {
  for (const char c : bytes) {
    if (after_cr_ && c == '\n') {
      after_cr_ = false;
      continue;
    }
    after_cr_ = c == '\r';
    if (c == '\n' || c == '\r') {
      EndLine(events);
      continue;
    }
    line_.push_back(c);
    if (line_.size() + data_.size() > kEventBytesMax) return DataLoss("event longer than 16 MiB");
  }
  return Status::Ok();
}

void SseParser::EndLine(std::vector<std::string>* events) {
  if (line_.empty()) {
    if (has_data_) events->push_back(std::move(data_));
    data_.clear();
    has_data_ = false;
    return;
  }
  std::string_view line = line_;
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "data") {
    if (has_data_) data_.push_back('\n');
    data_.append(value);
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace kvasir
