// Sequence: one choice of one request as the scheduler moves it: its tokens, how many of them are
// in the cache, its table.
//
// Invariants
//   1. 0 <= computed < tokens.size(), except between the last prompt row and the first sampled
//   token.
//   2. A waiting sequence has an empty table and computed == 0.
//   3. The table of a running sequence covers at least `computed` tokens.
//   4. Before the prompt of an n > 1 request is computed only choice 0 exists (the lead) and it
//   holds the seats of all.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "kvcache/block_table.h"

namespace kvasir {

// Order of service: first come, first served; choices of one request in their order.
struct SequenceKey {
  uint64_t arrival = 0;  // counts up per request
  int32_t choice = 0;
  auto operator<=>(const SequenceKey&) const = default;
};

struct Sequence {
  explicit Sequence(int32_t block_tokens) : table(block_tokens) {}

  RequestId request;
  SequenceKey key;
  std::vector<TokenId> tokens;  // prompt, then generated
  int32_t prompt_tokens = 0;
  int32_t computed = 0;        // tokens whose K and V are in the blocks of the table
  int32_t prefill_target = 0;  // tokens to compute before it decodes: set at admission
  bool running = false;
  BlockTable table;

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
};

}  // namespace kvasir
