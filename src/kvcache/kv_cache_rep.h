// Private to KvCache: its parts and the moves they have in common. See kv_cache.h for the rules.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvcache/ghost_list.h"
#include "kvcache/kv_cache.h"
#include "kvcache/owner_lists.h"
#include "kvcache/prefix_index.h"
#include "kvcache/side_group.h"

namespace kvasir {

struct KvCache::Rep {
  explicit Rep(const KvCacheOptions& made);

  struct Pin {
    PinInfo info;
    std::vector<int32_t> nodes;  // from the root
    int32_t times = 1;           // pinned so often
    int32_t space = -1;
  };
  struct SessionEnd {
    int32_t node = kNoNode;
    int64_t created = 0;  // of the node: another block may have its number by now
    int32_t tokens = 0;
    uint16_t turns = 0;                                          // requests that ended with it
    std::list<std::pair<int32_t, std::string>>::iterator place;  // in session_order
  };
  struct Expiry {
    int64_t at_ns = 0;
    uint64_t order = 0;  // deepest first
    int32_t node = kNoNode;
    auto operator<=>(const Expiry&) const = default;
  };
  struct ExpiryOf {
    Expiry key;
    uint16_t hits = 0;  // when it was set: used again since, it stays
  };

  // ---- Blocks (kv_cache_blocks.cc)
  void Hold(int32_t group, int32_t block);     // one reference more, off the policy's list
  void Unhold(int32_t group, int32_t block);   // one less; unheld: listed, or free
  int32_t Take(int32_t group, int32_t owner);  // evicts if it must; CHECKs that it can
  void EvictNode(int32_t node, EvictReason reason);
  // Out of the index without a trace: merged, or never written.
  void DropNode(int32_t node, EvictReason reason);
  void List(int32_t node);
  void Unlist(int32_t node);
  int32_t Evictable(int32_t group) const;
  int32_t Available(int32_t group) const;
  int32_t QuotaVictim(int32_t owner) const;

  // ---- Index (kv_cache_index.cc)
  void InsertNode(int32_t block, int32_t parent, std::span<const TokenId> tokens, int32_t ready);
  int32_t ParentOf(const SequenceKv& kv, int32_t index) const;
  std::span<const TokenId> BlockTokens(std::span<const TokenId> tokens, int32_t index,
                                       int32_t end) const;
  void AttachAll(SequenceKv& kv, std::span<const TokenId> tokens, int32_t computed);
  bool AttachFull(SequenceKv& kv, std::span<const TokenId> tokens, int32_t index);
  void MergeInto(SequenceKv& kv, int32_t index, int32_t node);
  void AttachSides(SequenceKv& kv, int32_t index, int32_t node);
  void DropBeginnings(int32_t node);
  bool Extend(int32_t node, std::span<const TokenId> tokens);
  void ReleasePassed(SequenceKv& kv, int32_t computed);

  // ---- Sequences
  int32_t BlocksFor(int32_t tokens) const { return (tokens + bt - 1) / bt; }
  int32_t BlocksHeld(int32_t group, int32_t tokens, int32_t chunk) const;
  struct Need {
    int32_t fresh = 0;   // blocks to take
    int32_t unheld = 0;  // leases on evictable blocks
    int32_t total() const { return fresh + unheld; }
  };
  Need NeedOf(const CacheMatch& match, const SequenceKv& kv, int32_t group, int32_t tokens,
              int32_t chunk) const;
  void Promise(SequenceKv& kv, int32_t group, int32_t blocks);
  void DropPromises(SequenceKv& kv);
  void Drop(SequenceKv& kv);  // all references, deepest first
  int32_t HeldBlocks(const SequenceKv& kv, int32_t group) const;
  void LeaseMatch(SequenceKv& kv, const CacheMatch& match, int32_t end);
  void CopyPartial(SequenceKv& kv, const CacheMatch& match, std::vector<BlockMove>& moves);
  void SwapIn(SequenceKv& kv, std::vector<BlockMove>& moves);
  MissReason CountLookup(const CacheMatch& match, int32_t hit, const BeginOptions& begin);
  int32_t ElsewhereTokens(int32_t space, std::span<const TokenId> tokens) const;
  int32_t PendingTokens(PrefixIndex::Found found, std::span<const TokenId> tokens, int32_t depth,
                        int32_t limit) const;
  bool SidesCover(const CacheMatch& match, int32_t tokens) const;
  void Mark(const SequenceKv& kv, const std::vector<int32_t>& path, const CacheHint& hint);
  void SetExpiry(int32_t node, int64_t at_ns);
  void DropExpiry(int32_t node);
  void Overdue(int32_t node);
  int64_t PinBudget() const;
  void EndSpaceIfDead(int32_t space);

  // ---- Pins (kv_cache_pins.cc)
  std::vector<int32_t> PathOf(int32_t node) const;
  Result<PinInfo> AddPin(int32_t space, std::vector<int32_t> nodes, int32_t tokens,
                         int64_t expires_ns, std::string session);
  void EndPin(std::map<uint64_t, Pin>::iterator pin);
  void DropPinEnd(const PinInfo& info);
  bool PinOn(const Pin& pin, std::span<const TokenId> tokens) const;
  const SessionEnd* FindSession(int32_t space, std::string_view name) const;

  KvCacheOptions options;
  const int32_t bt;  // block tokens
  std::vector<BlockPool> pools;
  PrefixIndex index;
  std::unique_ptr<EvictionPolicy> policy;
  std::vector<SideGroup> sides;  // of group g: sides[g - 1]
  GhostList ghosts;
  OwnerLists owners;
  std::vector<int64_t> promised;  // per group
  std::vector<int32_t> host_free;
  CacheCounts counts;
  int64_t tick = 0;

  uint64_t next_pin = 1;
  std::map<uint64_t, Pin> pin_table;
  std::multimap<int64_t, uint64_t> pin_ends;
  std::set<Expiry> expiries;              // one a node at most
  std::map<int32_t, ExpiryOf> expiry_of;  // by node
  uint64_t next_expiry = 0;
  int32_t pinned_unheld = 0;  // blocks pinned by name that no sequence holds
  uint64_t next_session = 1;
  std::map<std::pair<int32_t, std::string>, uint64_t> session_ids;
  std::list<std::pair<int32_t, std::string>> session_order;  // longest unused first
  std::unordered_map<uint64_t, SessionEnd> session_ends;     // look-up only
};

}  // namespace kvasir
