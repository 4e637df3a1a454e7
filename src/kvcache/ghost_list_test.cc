#include "kvcache/ghost_list.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "base/hash.h"

namespace kvasir {
namespace {

TEST(GhostList, ForgetsFirstInFirstOut) {
  GhostList ghosts(2);
  EXPECT_EQ(ghosts.Insert(1, EvictReason::kCapacity), std::nullopt);
  EXPECT_EQ(ghosts.Insert(2, EvictReason::kReset), std::nullopt);
  EXPECT_EQ(ghosts.Find(1), EvictReason::kCapacity);
  EXPECT_EQ(ghosts.Insert(3, EvictReason::kExpired), EvictReason::kCapacity);
  EXPECT_EQ(ghosts.Find(1), std::nullopt);
  EXPECT_EQ(ghosts.Erase(2), EvictReason::kReset);
  EXPECT_EQ(ghosts.Erase(2), std::nullopt);
  EXPECT_EQ(ghosts.Find(3), EvictReason::kExpired);
  EXPECT_EQ(ghosts.size(), 1);
  ghosts.Clear();
  EXPECT_EQ(ghosts.Find(3), std::nullopt);
  EXPECT_EQ(ghosts.size(), 0);
}

TEST(GhostList, AnEntryInsertedAgainIsTheNewest) {
  GhostList ghosts(3);
  ghosts.Insert(1, EvictReason::kCapacity);
  ghosts.Insert(2, EvictReason::kCapacity);
  ghosts.Insert(1, EvictReason::kQuota);  // the place of its first entry is empty now
  EXPECT_EQ(ghosts.size(), 2);
  EXPECT_EQ(ghosts.Insert(3, EvictReason::kCapacity), std::nullopt);
  EXPECT_EQ(ghosts.Insert(4, EvictReason::kCapacity), EvictReason::kCapacity);
  EXPECT_EQ(ghosts.Find(2), std::nullopt);
  EXPECT_EQ(ghosts.Find(1), EvictReason::kQuota);
}

TEST(GhostList, NoCapacityRemembersNothing) {
  GhostList ghosts(0);
  EXPECT_EQ(ghosts.Insert(1, EvictReason::kCapacity), std::nullopt);
  EXPECT_EQ(ghosts.Find(1), std::nullopt);
  EXPECT_EQ(ghosts.Erase(1), std::nullopt);
  ghosts.Clear();
  EXPECT_EQ(ghosts.size(), 0);
}

TEST(GhostList, MemoryIsFixedAndSmall) {
  for (const int32_t capacity : {1, 1000, 65536, 1 << 20}) {
    GhostList ghosts(capacity);
    const int64_t before = ghosts.bytes();
    for (int32_t i = 0; i < 3 * std::min(capacity, 1000); ++i)
      ghosts.Insert(static_cast<uint64_t>(i), EvictReason::kCapacity);
    EXPECT_EQ(ghosts.bytes(), before);
    EXPECT_LE(before, 16 * static_cast<int64_t>(capacity) + 16);
  }
}

// The same in the plainest way: a queue of places, some of them given up.
struct NaiveGhosts {
  struct Entry {
    uint64_t chain;
    uint8_t mark;
    bool live;
  };
  explicit NaiveGhosts(int32_t n) : capacity(static_cast<size_t>(n)) {}
  Entry* Get(uint64_t chain) {
    for (Entry& entry : queue) {
      if (entry.live && entry.chain == chain) return &entry;
    }
    return nullptr;
  }
  std::optional<uint8_t> Erase(uint64_t chain) {
    Entry* entry = Get(chain);
    if (entry == nullptr) return std::nullopt;
    entry->live = false;
    return entry->mark;
  }
  std::optional<uint8_t> Insert(uint64_t chain, uint8_t mark) {
    Erase(chain);
    std::optional<uint8_t> forgotten;
    if (queue.size() == capacity) {
      if (queue.front().live) forgotten = queue.front().mark;
      queue.pop_front();
    }
    queue.push_back({chain, mark, true});
    return forgotten;
  }
  int32_t size() const {
    int32_t n = 0;
    for (const Entry& entry : queue) n += entry.live ? 1 : 0;
    return n;
  }
  size_t capacity;
  std::deque<Entry> queue;
};

// mask: which bits of a chain may be set; few of them make runs of collisions and repeats, the high
// ones alone make chains that differ only there.
void RunRandom(uint64_t seed, uint64_t mask) {
  SCOPED_TRACE("seed " + std::to_string(seed) + " mask " + std::to_string(mask));
  Rng rng(seed);
  const int32_t capacity = 1 + static_cast<int32_t>(rng.Below(24));
  BasicGhostList<uint8_t> ghosts(capacity);
  NaiveGhosts naive(capacity);
  for (int step = 0; step < 4000; ++step) {
    const uint64_t chain = rng.Next() & mask;
    const uint64_t what = rng.Below(8);
    if (what < 4) {
      const uint8_t mark = static_cast<uint8_t>(rng.Below(256));
      ASSERT_EQ(ghosts.Insert(chain, mark), naive.Insert(chain, mark));
    } else if (what < 6) {
      ASSERT_EQ(ghosts.Erase(chain), naive.Erase(chain));
    } else {
      const NaiveGhosts::Entry* entry = naive.Get(chain);
      const auto found = ghosts.Find(chain);
      ASSERT_EQ(found.has_value(), entry != nullptr);
      if (entry != nullptr) {
        ASSERT_EQ(*found, entry->mark);
      }
    }
    ASSERT_EQ(ghosts.size(), naive.size());
  }
}

TEST(GhostList, AgreesWithNaiveModelOnRandomOperations) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    RunRandom(seed, 0x1F);
    RunRandom(seed, 0x3F00000000000000);
    RunRandom(seed, 0x8000000100000803);
    RunRandom(seed, ~uint64_t{0});
  }
}

}  // namespace
}  // namespace kvasir
