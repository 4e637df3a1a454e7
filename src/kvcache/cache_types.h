// Plain values of KvCache's interface.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "kvcache/cache_node.h"
#include "kvcache/kv_group.h"

namespace kvasir {

struct KvCacheOptions {
  int32_t block_tokens = 16;
  std::vector<KvGroup> groups = {KvGroup{}};
  std::vector<int32_t> blocks;  // per group
  bool prefix_caching = true;   // false: nothing is matched or kept
  std::string evict = "cost";
  double pin_budget = 0.5;  // share of the pool that pins may hold
  int32_t pin_spare = 0;    // blocks that pins leave in any case: the longest sequence fits beside
  double tenant_quota = 0.5;  // soft: an owner above it evicts its own while others are there
  int32_t host_slots = 0;     // blocks that fit the swap space
  uint64_t name_seed = 0;     // of the names under which owners of salts are shown
  int32_t ghosts = -1;        // evicted blocks remembered; -1: as many as blocks of group 0
};

// Why tokens of a prompt were not in the cache (kvasir_cache_tokens_total{reason}).
enum class MissReason : uint8_t {
  kCold,          // never seen, or so long ago that it is forgotten
  kEvicted,       // was here and had to go for want of room
  kSalt,          // is here in another namespace; never told to a client
  kFormat,        // is there in another KV format (tiers)
  kPartialBlock,  // is here but must be computed: the last token of a fully cached prompt
  kReset,         // was here until a reset
  kExpired,       // was here until its ttl_s was over
  kTierError,
  kTierSlower,
};
inline constexpr int kMissReasons = 9;
const char* MissReasonName(MissReason reason);

enum class EvictReason : uint8_t { kCapacity, kQuota, kExpired, kReset, kMerged, kWindow };
inline constexpr int kEvictReasons = 6;
const char* EvictReasonName(EvictReason reason);

struct CacheMatch {
  int32_t space = -1;
  int32_t tokens = 0;          // what Begin will find: exact to the token
  std::vector<int32_t> nodes;  // full blocks to share, from the root
  int32_t partial = kNoNode;   // block to copy, and how many of its tokens
  int32_t partial_tokens = 0;
  int32_t unheld = 0;  // nodes that are evictable now: leasing them takes from available
  // Further tokens that another sequence computes in this very step: worth waiting for.
  int32_t pending_tokens = 0;
  int32_t present = 0;  // tokens that are there, more than `tokens` if they cannot all be used
};

struct BeginOptions {
  std::span<const TokenId> tokens;  // the prompt; may be empty if nothing is counted
  int32_t limit = 0;                // tokens it looked up
  int32_t promise = 0;              // tokens to promise blocks for
  int32_t room = 0;                 // tokens its tables take memory for at once; more may come
  int32_t chunk = 0;                // most tokens written between two Publish
  bool count = true;                // first admission: hits and misses are counted
};

struct BeginResult {
  int32_t computed = 0;                   // tokens in the blocks now
  int32_t hit = 0;                        // of them found in the index
  int32_t swapped_in = 0;                 // of them brought back from host memory
  MissReason reason = MissReason::kCold;  // of the largest part of the rest
};

struct PinInfo {
  uint64_t id = 0;
  int32_t tokens = 0;
  int32_t blocks = 0;
  int64_t expires_ns = INT64_MAX;
  std::string session;  // if pinned by one
};

struct ResetInfo {
  int64_t freed_blocks = 0;
  int64_t in_use_blocks = 0;  // held by running sequences: stay
  int64_t pinned_blocks = 0;  // pinned by name: stay unless asked
};

struct HotPrefix {
  int32_t tokens = 0;
  int32_t hits = 0;
  int32_t holders = 0;
  std::vector<TokenId> head;  // its last block's tokens
};

struct OwnerInfo {
  std::string name;  // tenant, or the salt's hash; never the salt itself
  int64_t blocks = 0;
};

// Counters since start, in tokens unless said otherwise.
struct CacheCounts {
  uint64_t queries = 0, hits = 0;  // prompt tokens looked up, found
  std::array<uint64_t, kMissReasons> misses{};
  std::array<uint64_t, kEvictReasons> evictions{};  // blocks
  uint64_t evicted_then_wanted = 0;                 // blocks
  uint64_t merged = 0, copied = 0;                  // blocks
  uint64_t swapped_out = 0, swapped_in = 0;         // blocks
  int64_t cached_blocks = 0, pinned_by_name = 0;    // now
};

}  // namespace kvasir
