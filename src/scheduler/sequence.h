// Sequence: one choice of one request as the scheduler moves it: its tokens, how many of them are
// in the cache, its blocks.
//
// Invariants
//   1. 0 <= computed < tokens.size(), except between the last prompt row and the first sampled
//   token.
//   2. A waiting sequence holds no block (it may hold host slots) and computed == 0.
//   3. The tables of a running sequence hold tokens [0, computed), less what its groups' rules let
//   go.
//   4. Before the prompt of an n > 1 request is computed only choice 0 exists (the lead) and it
//   holds the seats of all.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "kvcache/sequence_kv.h"

namespace kvasir {

struct RequestState;  // the scheduler's

// Order of service. rank is a time in ns, less or more than the arrival's by what the policy gives
// (docs/scheduler.md); then the order of arrival; then choices of one request in their order.
struct SequenceKey {
  int64_t rank = 0;
  uint64_t arrival = 0;  // counts up per request
  int32_t choice = 0;
  auto operator<=>(const SequenceKey&) const = default;
};

struct Sequence {
  RequestId request;
  SequenceKey key;
  std::vector<TokenId> tokens;  // prompt, then generated
  int32_t prompt_tokens = 0;
  int32_t computed = 0;        // tokens whose K and V are in its blocks
  int32_t prefill_target = 0;  // tokens to compute before it decodes: set at admission
  int32_t most_computed = 0;   // ever: what it may look up if the request reads no cache
  int32_t slot = -1;           // while it runs, and while it is swapped out
  bool running = false;
  bool tail_published = false;  // the prompt's last block is in the index
  uint64_t planned = 0;         // number of the last plan that has an item of it
  uint64_t preempted = 0;       // number of the last plan that preempted it
  uint64_t joined = 0;          // number of the last plan that left it waiting for others' tokens
  int32_t rows_expected = 0;    // waiting: tokens that were not cached when it was looked up ...
  uint64_t rows_plan = 0;       // ... in this plan; 0: not yet
  RequestState* state = nullptr;
  SequenceKv kv;

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  int32_t generated() const { return size() - prompt_tokens; }
  bool decoding() const { return computed >= prefill_target; }
};

// A request in the scheduler's hands.
struct NewRequest {
  RequestId id;
  std::vector<TokenId> prompt;
  int32_t choices = 1;
  int32_t max_tokens = 16;          // per choice; 0: the prompt is computed and nothing is sampled
  int64_t deadline_ns = INT64_MAX;  // for the first admission
  int32_t space = -1;               // from KvCache::OpenSpace; the scheduler closes it
  CacheHint hint;                   // for the blocks of every choice when it ends
  int64_t ttl_ns = 0;               // > 0: hint.expires_ns is so long after the end of a choice
  bool read_cache = true;           // false: the whole prompt is computed here, once
  int32_t priority = 0;             // lower runs earlier; for SchedulingPolicy::kPriority
};

}  // namespace kvasir
