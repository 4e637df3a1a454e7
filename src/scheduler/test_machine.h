// For tests: a machine that only pretends to compute but keeps books of every byte. Each slot of
// each block holds the hash of the history that wrote it (namespace and tokens up to it). Each row
// verifies every slot it reads, and that nobody else holds what it writes.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kvcache/kv_cache.h"
#include "scheduler/scheduled_batch.h"

namespace kvasir {

class TestMachine {
 public:
  TestMachine(const KvCacheOptions& options, const KvCache* cache)
      : groups_(options.groups), bt_(options.block_tokens), cache_(cache) {
    for (const int32_t blocks : options.blocks) {
      memory_.emplace_back(static_cast<size_t>(blocks),
                           std::vector<uint64_t>(static_cast<size_t>(bt_), 0));
    }
    host_.resize(static_cast<size_t>(options.host_slots));
  }

  static uint64_t Start(const std::string& salt) {
    return Hash64(std::as_bytes(std::span(salt)), 5);
  }
  static uint64_t Next(uint64_t hash, TokenId token) {
    return CounterRandom(hash, 1, static_cast<uint64_t>(token)) | 1;
  }
  // Per position, of everything up to it.
  static std::vector<uint64_t> Hashes(const std::string& salt, const std::vector<TokenId>& tokens) {
    uint64_t hash = Start(salt);
    std::vector<uint64_t> hashes;
    for (const TokenId token : tokens) hashes.push_back(hash = Next(hash, token));
    return hashes;
  }

  void Move(const BlockMove& move) {
    switch (move.kind) {
      case BlockMove::Kind::kCopy:
        Block(move.group, move.to) = Block(move.group, move.from);
        break;
      case BlockMove::Kind::kSwapOut:
        host_.at(static_cast<size_t>(move.to)) = Block(move.group, move.from);
        break;
      case BlockMove::Kind::kSwapIn:
        Block(move.group, move.to) = host_.at(static_cast<size_t>(move.from));
        break;
    }
  }
  // Slots, with SchedulerOptions::resume_tokens > 1: whatever lies in one, the tokens since the
  // last multiple are there.
  void Copy(const SlotCopy& copy) { slots_[copy.to] = slots_[copy.from]; }
  void ReadSlot(const ScheduledItem& item, const std::vector<uint64_t>& want, int32_t resume) {
    std::vector<uint64_t>& slot = slots_[item.sequence->slot];
    slot.resize(static_cast<size_t>(resume));
    for (int32_t q = item.first / resume * resume; q < item.first; ++q) {
      ASSERT_EQ(slot[static_cast<size_t>(q % resume)], want[static_cast<size_t>(q)])
          << "request " << item.sequence->request.value << " goes on at " << item.first
          << " without token " << q << " in its slot";
    }
  }
  void WriteSlot(const ScheduledItem& item, const std::vector<uint64_t>& hashes, int32_t resume) {
    std::vector<uint64_t>& slot = slots_[item.sequence->slot];
    for (int32_t q = item.first; q < item.first + item.count; ++q) {
      slot[static_cast<size_t>(q % resume)] = hashes[static_cast<size_t>(q)];
    }
  }

  // Before anything of the step is written: rows may not read what another item writes.
  void Read(const ScheduledItem& item, const std::vector<uint64_t>& want) const {
    for (int32_t g = 0; g < cache_->groups(); ++g) {
      const auto table = item.sequence->kv.table(g);
      const KvGroup& group = groups_[static_cast<size_t>(g)];
      for (int32_t q = group.FirstNeeded(item.first); q < item.first; ++q) {
        const int32_t block = table[static_cast<size_t>(q / bt_)];
        ASSERT_GE(block, 0) << "released while still needed";
        ASSERT_EQ(memory_[static_cast<size_t>(g)].at(
                      static_cast<size_t>(block))[static_cast<size_t>(q % bt_)],
                  want[static_cast<size_t>(q)])
            << "request " << item.sequence->request.value << " reads foreign or stale bytes at "
            << q << " of group " << g;
      }
    }
  }
  void Write(const ScheduledItem& item, const std::vector<uint64_t>& hashes) {
    for (int32_t g = 0; g < cache_->groups(); ++g) {
      for (int32_t q = item.first; q < item.first + item.count; ++q) {
        const int32_t block = item.sequence->kv.table(g)[static_cast<size_t>(q / bt_)];
        ASSERT_GE(block, 0);
        ASSERT_EQ(cache_->RefCount(g, block), 1) << "writes into a block that others hold";
        Block(g, block)[static_cast<size_t>(q % bt_)] = hashes[static_cast<size_t>(q)];
      }
    }
  }

 private:
  std::vector<uint64_t>& Block(int32_t group, int32_t block) {
    return memory_.at(static_cast<size_t>(group)).at(static_cast<size_t>(block));
  }

  std::vector<KvGroup> groups_;
  int32_t bt_;
  const KvCache* cache_;
  std::vector<std::vector<std::vector<uint64_t>>> memory_;  // group, block, slot
  std::vector<std::vector<uint64_t>> host_;
  std::map<int32_t, std::vector<uint64_t>> slots_;
};

}  // namespace kvasir
