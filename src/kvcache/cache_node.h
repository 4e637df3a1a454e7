// CacheNode: what the prefix index and the eviction policies know of one cached block. A node is
// its block: node n is block n of group 0.
//
// Tokens are not in here (PrefixIndex has them, block_tokens per node). 88 bytes.
#pragma once

#include <cstdint>

namespace kvasir {

// A request's word about its own blocks, and what becomes of it.
enum class Retain : uint8_t {
  kDrop,  // will not be used again (kv_hint.last_use): first to go
  kLow,   // kv_hint.retain low
  kNormal,
  kSession,  // belongs to a session that is alive
  kHigh,     // kv_hint.retain high, warmed
};

inline constexpr int32_t kNoNode = -1;

struct CacheNode {
  // Tree. parent >= 0: a node; < 0: top of namespace -1 - parent.
  int32_t parent = kNoNode;
  int32_t left = kNoNode, right = kNoNode;  // in the ordered set of the parent's children
  int32_t child = kNoNode;                  // root of the ordered set of its children
  int32_t children = 0;
  uint32_t order = 0;  // heap order of the set: pseudo-random, no address in it
  // Eviction. Links belong to the policy and to the owner's list; meaningful while listed only.
  int32_t prev = kNoNode, next = kNoNode;
  int32_t owner_prev = kNoNode, owner_next = kNoNode;
  int64_t created = 0;   // ticks: counts up per cache operation, not time
  int64_t last_use = 0;  // tick of the last match or release
  uint64_t chain = 0;  // hash of all tokens from the root, salt included: ghosts only; 0 for a tail
  int32_t depth = 0;   // blocks before it
  int32_t space = -1;  // its namespace
  uint16_t fill = 0;   // tokens of the key; < block_tokens: a tail, which has no children
  uint16_t ready = 0;  // of them, written; the rest is being computed in the current step
  uint16_t hits = 0;   // matches since it was made, saturating
  uint16_t pins = 0;
  Retain retain = Retain::kNormal;
  uint8_t queue = 0;     // the policy's: which of its lists
  bool present = false;  // in the index
  bool listed = false;   // unheld and unpinned: the policy has it
  bool overdue = false;  // its time was over while it was held or pinned: goes when it is let go
};
static_assert(sizeof(CacheNode) <= 88);

}  // namespace kvasir
