// CacheCall: one body of POST /v1/kvcache/{warm,pin,unpin,reset}, checked. Every field and its
// range: docs/api.md.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "server/api_call.h"
#include "server/json_reader.h"

namespace kvasir {

struct CacheCall {
  enum class Kind : uint8_t { kWarm, kPin, kUnpin, kReset };
  Kind kind = Kind::kWarm;
  std::string model;  // "": the one served
  // A body of one of the completions endpoints, reduced to its one prompt: nothing is generated.
  bool has_prompt = false;
  ApiCall prompt;
  CacheWish cache;         // without the tenant
  std::string session;     // pin, unpin: instead of a prompt
  uint64_t pin = 0;        // unpin: instead of a prompt, the number that pin answered
  double ttl_s = 0;        // pin: more than 0; warm: 0 or how long the prompt is pinned too
  bool drop_pins = false;  // reset
};

// kInvalidArgument with field() set.
Result<CacheCall> ParseCacheCall(const Json& body, CacheCall::Kind kind, const CallLimits& limits);

}  // namespace kvasir
