// The blocks of one group: ids, references and states. No bytes (KvArena has them), no clock, no
// threads. KvCache alone changes it.
//
// A block's state follows from four facts:
//   refs > 0, not sealed                  filling: held by sequences, not all slots have a token
//   refs > 0, sealed                      pinned: full and held
//   refs == 0, cached, pinned by name     pinned
//   refs == 0, cached                     evictable: in the index, nobody holds it
//   refs == 0, not cached                 free
// The free list is first in, first out, so a block's bytes stay intact as long as possible.
//
// Who writes: only a holder that is alone (refs 1) may write into a block; a holder of a shared one
// copies first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace kvasir {

// reserved: of the free and evictable ones, those promised to admitted prompts. inflight: being
// moved to or from a tier; zero until those exist.
struct PoolBooks {
  int64_t total = 0, free = 0, reserved = 0, filling = 0, pinned = 0, evictable = 0, inflight = 0;
  bool Balanced() const {
    return free + reserved + filling + pinned + evictable + inflight == total && free >= 0 &&
           reserved >= 0 && filling >= 0 && pinned >= 0 && evictable >= 0 && inflight >= 0;
  }
};

enum class BlockState : uint8_t { kFree, kFilling, kPinned, kEvictable };

class BlockPool {
 public:
  BlockPool(int32_t blocks, int32_t block_tokens);

  int32_t Take();                          // a free block, refs 1; CHECKs that there is one
  void Ref(int32_t block);                 // one holder more; of a free block never
  void Unref(int32_t block);               // one less; at zero free or evictable
  void SetCached(int32_t block, bool on);  // in the index or not
  void SetNamedPin(int32_t block, bool on);
  // So many slots have a token now; never fewer than before. Full: sealed.
  void SetFill(int32_t block, int32_t tokens);

  int32_t RefCount(int32_t block) const { return At(block).refs; }
  int32_t Fill(int32_t block) const { return At(block).fill; }
  bool Cached(int32_t block) const { return At(block).cached; }
  bool NamedPin(int32_t block) const { return At(block).named_pin; }
  BlockState State(int32_t block) const { return StateOf(At(block)); }
  int32_t total() const { return static_cast<int32_t>(entries_.size()); }
  int32_t Count(BlockState state) const { return counts_[static_cast<size_t>(state)]; }
  int32_t free() const { return Count(BlockState::kFree); }
  int64_t used_slots() const { return used_slots_; }  // over all blocks that are not free
  size_t bytes() const;                               // of bookkeeping
  void CheckIntegrity() const;                        // O(blocks)

 private:
  struct Entry {
    int32_t refs = 0;
    uint16_t fill = 0;
    bool cached = false;
    bool named_pin = false;
  };
  BlockState StateOf(const Entry& entry) const;
  const Entry& At(int32_t block) const;
  template <typename Change>
  void Update(int32_t block, Change change);

  int32_t block_tokens_;
  std::vector<Entry> entries_;
  std::vector<int32_t> free_ring_;
  size_t free_head_ = 0;
  std::array<int32_t, 4> counts_{};
  int64_t used_slots_ = 0;
};

}  // namespace kvasir
