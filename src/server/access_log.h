// One line per answered request, by spdlog, as text or JSON. No bodies, no keys, no prompts.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir {

struct AccessRecord {
  std::string remote;
  std::string method;
  std::string path;
  std::string request_id;
  int status = 0;  // 499: the client left before the answer was complete
  double ms = 0;
  uint64_t bytes = 0;  // sent
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

class AccessLog {
 public:
  AccessLog(bool enabled, bool json) : enabled_(enabled), json_(json) {}
  void Write(const AccessRecord& record) const;
  // The line as it is logged; without time and level, which the logger adds.
  std::string Format(const AccessRecord& record) const;

 private:
  bool enabled_;
  bool json_;
};

}  // namespace kvasir
