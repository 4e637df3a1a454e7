// What the engine keeps of a request until its last event: how to sample it and where its events
// go.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/request.h"

namespace kvasir {

struct LiveRequest {
  RequestId id;
  SamplingParams sampling;
  uint64_t seed = 0;
  int32_t prompt_tokens = 0;
  std::shared_ptr<EventSink> sink;
  bool begun = false;  // it has run; then:
  int64_t scheduled_ns = 0;
  int32_t cached_tokens = 0;
  MissReason miss_reason = MissReason::kCold;

  std::vector<bool> started;  // per choice: its first event is out
  std::vector<bool> ended;    // per choice: no further event
  int32_t open = 0;           // choices that have not ended

  // One entry per prompt token but the first; null if not asked for or already sent. Rows below
  // prompt_rows_done are in: a preempted prompt does not ask for them twice.
  std::unique_ptr<std::vector<PositionLogprobs>> prompt_logprobs;
  int32_t prompt_rows_done = 0;

  std::vector<TokenEvent> events;  // of this step
  bool touched = false;            // listed for delivery

  bool EndsWith(TokenId token) const {
    for (const TokenId stop : sampling.stop_tokens) {
      if (stop == token) return true;
    }
    if (sampling.ignore_eos) return false;
    for (const TokenId end : sampling.end_tokens) {
      if (end == token) return true;
    }
    return false;
  }
};

}  // namespace kvasir
