// The blocks of the hot pool: ids, reference counts and states. No bytes (KvArena has them), no
// clock, no threads.
//
// Books (promise 1): free + reserved + filling + pinned + evictable + inflight == total after every
// call.
//   free      in the free list
//   filling   held by one or more sequences, still being written (not all slots have a token)
//   pinned    sealed (full) and held by one or more sequences
//   reserved, evictable, inflight: states of the prefix index, of admission and of tiers; zero
//   until those exist
// A block is handed out with reference count 1; Share adds a holder (n > 1 sharing a prompt),
// Release takes one away and frees the block at zero. The free list is first in, first out, so a
// block's bytes stay intact as long as possible.
//
// Who writes: only a holder that is alone (RefCount 1) may write into a block; a holder of a shared
// one copies first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace kvasir {

struct PoolBooks {
  int64_t total = 0, free = 0, reserved = 0, filling = 0, pinned = 0, evictable = 0, inflight = 0;
  bool Balanced() const {
    return free + reserved + filling + pinned + evictable + inflight == total;
  }
};

class BlockPool {
 public:
  explicit BlockPool(int32_t blocks);

  // Exactly n blocks in state filling, or nullopt and nothing changed.
  std::optional<std::vector<BlockId>> Allocate(int32_t n);
  void Share(BlockId block);    // one more holder
  void Seal(BlockId block);     // every slot has a token: filling -> pinned; idempotent
  void Release(BlockId block);  // one holder less; free at zero
  // So many slots of a held block have a token now: bookkeeping for used_slots(). Never fewer than
  // before.
  void SetFill(BlockId block, int32_t tokens);
  int32_t Fill(BlockId block) const;
  int32_t RefCount(BlockId block) const;  // 0: free
  bool Sealed(BlockId block) const;

  int32_t free_blocks() const { return free_count_; }
  int32_t total_blocks() const { return static_cast<int32_t>(entries_.size()); }
  int64_t used_slots() const {
    return used_slots_;
  }  // sum of Fill over held blocks; a shared block counts once
  PoolBooks books() const;
  void CheckIntegrity() const;  // O(blocks): recounts everything, CHECKs on a difference

 private:
  struct Entry {
    int32_t refs = 0;
    int32_t fill = 0;
    bool sealed = false;
  };
  Entry& Held(BlockId block);  // CHECKs that the id is in range and held
  const Entry& Held(BlockId block) const;

  std::vector<Entry> entries_;
  std::vector<int32_t> free_ring_;
  size_t free_head_ = 0;
  int32_t free_count_ = 0;
  int32_t sealed_count_ = 0;
  int64_t used_slots_ = 0;
};

}  // namespace kvasir
