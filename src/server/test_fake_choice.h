// For tests: how FakeWorker answers. Token p of a sequence is the token `distance` places before
// it, as COPY(L) fixtures give it; choice c > 0 adds c to ordinary tokens. One token per choice and
// step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/worker.h"

namespace kvasir {

struct FakeWorkerOptions {
  int32_t vocab = 305;
  int32_t context = 4096;
  int32_t distance = 32;
  int32_t max_queue = 1024;
  int64_t step_us = 0;      // pause between steps
  int32_t fail_after = -1;  // tokens, then kError
  bool infinite_logprobs = false;
  // In the first event of every choice.
  int32_t cached_tokens = 0;
  MissReason miss_reason = MissReason::kCold;
  std::string kv_verdict;  // not empty: the cache's format failed its certificate
  WorkerStats stats;       // what stats() begins with: counters, retry_after_s
};

struct FakeChoice {
  std::vector<TokenId> tokens;
  bool open;
};

// The next event of choice `index`.
TokenEvent FakeNext(const FakeWorkerOptions& options, const Request& request, int32_t index,
                    FakeChoice* open_choice);

}  // namespace kvasir
