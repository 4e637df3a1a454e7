// KvCache: the blocks of the hot pool and who may use them: pool, prefix index, eviction, pins,
// tenants, host slots for swapped sequences. Ids and counts only: no bytes, clock, random, thread
// or I/O. Not thread-safe: the engine's thread alone.
//
// Life of a block: free -> filling (held by a sequence, not full) -> pinned (full, held or pinned)
// -> evictable (in the index, nobody holds it) -> free. `reserved` are free or evictable blocks
// promised to admitted prompts and not taken yet. Books (promise 1): the states add up to the
// total after every call.
//
// Use by the scheduler, per sequence:
//   Match                            what of its tokens is cached, or being computed right now
//   Begin                            takes leases on the match and a promise for the rest
//   Grow, Announce, [run], Publish   for each chunk; Announce makes tokens visible as "being
//                                    computed" until Publish (written) or Retract (the run failed)
//   Release | SwapOut                end, preemption by dropping | by swap; Begin resumes both
// A lease is the sequence's reference: as long as its table has a block nobody evicts it.
//
// Same tokens, same bytes (docs/decisions/0001): a block computed twice is merged into one when it
// is full, whoever computed it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "kvcache/block_pool.h"
#include "kvcache/cache_types.h"
#include "kvcache/eviction_policy.h"
#include "kvcache/kv_group.h"
#include "kvcache/sequence_kv.h"

namespace kvasir {

class KvCache {
 public:
  // Names the option and the limit.
  static Result<std::unique_ptr<KvCache>> Make(const KvCacheOptions& options);
  ~KvCache();

  int32_t block_tokens() const;
  const std::string& evict() const;  // the policy's name
  int32_t groups() const;
  int32_t total_blocks(int32_t group = 0) const;

  // ---- Namespaces: tokens are shared only between sequences of one (tenant, salt).
  // Keeps the namespace until CloseSpace; every sequence in the queue holds one.
  int32_t OpenSpace(std::string_view tenant, std::string_view salt);
  void CloseSpace(int32_t space);

  // ---- Sequences
  // Longest cached prefix of tokens[0, limit). Changes nothing. O(blocks of the match).
  CacheMatch Match(int32_t space, std::span<const TokenId> tokens, int32_t limit) const;
  // Blocks that Begin(match) with a promise up to `tokens` takes out of available(), per group the
  // worst. chunk: most tokens written between two Publish.
  bool Fits(const CacheMatch& match, const SequenceKv& kv, int32_t tokens, int32_t chunk,
            int32_t keep_free) const;
  // Leases the match, copies a partial block (appended to moves), brings back what lies in host
  // slots, promises blocks for begin.promise tokens in all. kv must be empty or swapped. False and
  // nothing changed if there is no room: Fits has said no, or a match that is left aside (for want
  // of a block to copy to, or of another group's blocks) would have been needed to fit.
  bool Begin(SequenceKv& kv, const CacheMatch& match, const BeginOptions& begin,
             std::vector<BlockMove>& moves, BeginResult* result);
  // Makes positions [from, to) writable: fresh blocks, copies of shared ones. False and nothing
  // changed if others' promises leave too few.
  bool Grow(SequenceKv& kv, int32_t from, int32_t to, std::vector<BlockMove>& moves);
  // tokens[0, to) will have been written when the step is over.
  void Announce(SequenceKv& kv, std::span<const TokenId> tokens, int32_t to);
  // tokens[0, computed) are written: fills, seals, enters the index, merges duplicates, releases
  // what the groups' rules let go.
  void Publish(SequenceKv& kv, std::span<const TokenId> tokens, int32_t from, int32_t computed);
  // The prompt, or the whole sequence, ends at `computed`: its last, partial block enters too.
  void PublishTail(SequenceKv& kv, std::span<const TokenId> tokens, int32_t computed);
  void Retract(SequenceKv& kv);
  // to: empty; shares every block of from (same tokens up to here).
  void Fork(const SequenceKv& from, SequenceKv& to);
  // tokens[0, computed) stay cached, marked by the hint. Ends announcements.
  void Release(SequenceKv& kv, std::span<const TokenId> tokens, int32_t computed,
               const CacheHint& hint);
  // The hint for what is cached of a sequence that ends while it waits after a preemption.
  void MarkWaiting(const SequenceKv& kv, int32_t space, std::span<const TokenId> tokens,
                   int32_t computed, const CacheHint& hint);
  // As Release, and a copy of its blocks goes to host slots; false and nothing changed if there are
  // too few slots.
  bool SwapOut(SequenceKv& kv, std::span<const TokenId> tokens, int32_t computed,
               std::vector<BlockMove>& moves);
  void DropSwapped(SequenceKv& kv);

  // Blocks that a new allocation may take: free or evictable and not promised.
  int32_t available(int32_t group = 0) const;
  // Blocks sequence of so many tokens holds at most at once in a group.
  int32_t BlocksHeld(int32_t group, int32_t tokens, int32_t chunk) const;
  int32_t free_host_slots() const;

  // ---- Pins, sessions, reset
  // Pins what is cached of tokens until expires_ns; kResourceExhausted beyond the budget, with the
  // numbers. The pin's tokens may be fewer than asked: what was cached.
  Result<PinInfo> Pin(int32_t space, std::span<const TokenId> tokens, int64_t expires_ns);
  // The same for the last release of a session.
  Result<PinInfo> PinSession(int32_t space, std::string_view session, int64_t expires_ns);
  // The same prefix again is the same pin, once more: it lasts as long as the longest of them.
  // Unpin takes one of them back, the others below all.
  bool Unpin(uint64_t pin);                                             // false: unknown or expired
  int32_t UnpinTokens(int32_t space, std::span<const TokenId> tokens);  // pins on prefixes of it
  int32_t UnpinSession(int32_t space, std::string_view session);
  uint64_t Session(int32_t space, std::string_view name);  // for CacheHint; bounded memory
  // Drops all that nobody holds; pins too if asked.
  ResetInfo Reset(bool pins);
  // Ends pins and TTLs that are over; a bounded number a call, see next_expiry_ns.
  void Expire(int64_t now_ns);

  // ---- Seen from outside
  PoolBooks books(int32_t group = 0) const;
  CacheCounts counts() const;
  int64_t slots_allocated() const;  // group 0: token slots of blocks that are not free
  int64_t slots_used() const;       // of them, with a token
  // The hottest prefixes (deepest nodes of the most used paths), at most `most`.
  std::vector<HotPrefix> Hottest(int32_t most) const;
  std::vector<PinInfo> pins() const;
  int32_t pin_budget() const;      // blocks
  int64_t next_expiry_ns() const;  // when Expire has something to do; INT64_MAX: never
  std::vector<OwnerInfo> owners(int32_t most) const;
  int64_t bookkeeping_bytes() const;  // without token ids
  void CheckIntegrity() const;        // O(blocks): recounts everything, CHECKs on a difference
  // References by sequences: for the scheduler's own check.
  int32_t RefCount(int32_t group, int32_t block) const;

 private:
  struct Rep;
  explicit KvCache(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvasir
