// KvGroup: layers whose cache lives and dies together. Pool, index and scheduler know a model only
// as a list of groups; what a hit needs and what may be released is this rule and nothing else.
//
// Group 0 is the one that keeps every token if there is one (full and latent layers), else the
// widest window. Layers that share another layer's cache are in that layer's group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvasir {

enum class GroupRule : uint8_t {
  kAll,      // a row reads every token before it
  kWindow,   // the last `window` tokens, its own included
  kChunked,  // the tokens of its own chunk: chunks of `window` tokens from position 0
};

struct KvGroup {
  GroupRule rule = GroupRule::kAll;
  int32_t window = 0;          // tokens; for kWindow and kChunked
  double bytes_per_token = 0;  // without padding
  size_t block_bytes = 0;      // with padding

  // First token that the row at `position` reads. A prefix of m tokens can be used if this group
  // has tokens [FirstNeeded(m), m); after m tokens everything below FirstNeeded(m) may go.
  int32_t FirstNeeded(int32_t position) const {
    if (rule == GroupRule::kAll || window <= 0) return 0;
    if (rule == GroupRule::kWindow) return std::max(0, position - window + 1);
    return position / window * window;
  }
};

}  // namespace kvasir
