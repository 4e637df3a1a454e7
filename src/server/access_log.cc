#include "server/access_log.h"

#include <spdlog/spdlog.h>

#include <cmath>

#include "server/json_reader.h"

namespace kvasir {
namespace {

// What a client sent must not break the line or the terminal.
std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F ? '?' : c;
  return out;
}

}  // namespace

std::string AccessLog::Format(const AccessRecord& record) const {
  if (json_) {
    return DumpJson({{"event", "request"},
                     {"remote", record.remote},
                     {"method", record.method},
                     {"path", record.path},
                     {"status", record.status},
                     {"ms", std::round(record.ms * 1000) / 1000},
                     {"bytes", record.bytes},
                     {"prompt_tokens", record.prompt_tokens},
                     {"completion_tokens", record.completion_tokens},
                     {"request_id", record.request_id}});
  }
  return fmt::format("{} {} {} {} {:.1f} ms {} bytes {}+{} tokens {}", record.remote,
                     Printable(record.method), Printable(record.path), record.status, record.ms,
                     record.bytes, record.prompt_tokens, record.completion_tokens,
                     record.request_id);
}

void AccessLog::Write(const AccessRecord& record) const {
  if (enabled_) spdlog::info("{}", Format(record));
}

}  // namespace kvasir
