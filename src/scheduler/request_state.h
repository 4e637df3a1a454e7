// Private to the scheduler: what it knows of one request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "scheduler/scheduler_types.h"
#include "scheduler/sequence.h"

namespace kvasir {

struct RequestState {
  RequestId id;
  uint64_t arrival = 0;
  int32_t max_tokens = 0;
  int64_t enqueued_ns = 0;
  int64_t deadline_ns = INT64_MAX;
  int32_t space = -1;
  int64_t ttl_ns = 0;
  CacheHint hint;
  bool read_cache = true;
  int32_t priority = 0;
  std::optional<FirstAdmission> first;
  bool forked =
      false;  // the prompt has been computed; from then on each choice has a sequence of its own
  int32_t open = 0;                                  // choices that have not ended
  int32_t in_queue = 0;                              // sequences waiting
  std::vector<bool> ended;                           // per choice
  std::vector<std::unique_ptr<Sequence>> sequences;  // per choice; null if ended or not forked yet

  int32_t choices() const { return static_cast<int32_t>(ended.size()); }
  Sequence* sequence(int32_t choice) const { return sequences[static_cast<size_t>(choice)].get(); }
  int32_t seats() const { return forked ? 1 : open; }  // of one of its sequences
};

}  // namespace kvasir
