#include "kvcache/block_pool.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <string>

#include "base/hash.h"

namespace kvasir {
namespace {

TEST(BlockPool, HandsOutExactlyNOrNothing) {
  BlockPool pool(4);
  const auto three = pool.Allocate(3);
  ASSERT_TRUE(three.has_value());
  EXPECT_EQ(three->size(), 3u);
  EXPECT_EQ(pool.free_blocks(), 1);
  EXPECT_FALSE(pool.Allocate(2).has_value());
  EXPECT_EQ(pool.free_blocks(), 1);
  EXPECT_EQ(pool.books().filling, 3);
  EXPECT_TRUE(pool.Allocate(0).has_value());
  pool.CheckIntegrity();
}

TEST(BlockPool, SharedBlockIsFreedByItsLastHolder) {
  BlockPool pool(2);
  const BlockId block = pool.Allocate(1)->front();
  pool.Share(block);
  pool.SetFill(block, 16);
  pool.Seal(block);
  pool.Seal(block);
  EXPECT_EQ(pool.books().pinned, 1);
  EXPECT_EQ(pool.used_slots(), 16);
  pool.Release(block);
  EXPECT_EQ(pool.RefCount(block), 1);
  EXPECT_TRUE(pool.Sealed(block));
  pool.Release(block);
  EXPECT_EQ(pool.free_blocks(), 2);
  EXPECT_EQ(pool.used_slots(), 0);
}

TEST(BlockPool, FreeListIsFirstInFirstOut) {
  BlockPool pool(4);
  const auto all = *pool.Allocate(4);
  pool.Release(all[2]);
  pool.Release(all[0]);
  EXPECT_EQ(pool.Allocate(1)->front(), all[2]);
  EXPECT_EQ(pool.Allocate(1)->front(), all[0]);
}

TEST(BlockPool, EmptyPoolHasNothing) {
  BlockPool pool(0);
  EXPECT_FALSE(pool.Allocate(1).has_value());
  EXPECT_TRUE(pool.Allocate(0).has_value());
  pool.CheckIntegrity();
}

TEST(BlockPoolDeathTest, OurOwnMistakesEndTheProcess) {
  BlockPool pool(2);
  const BlockId block = pool.Allocate(1)->front();
  pool.Release(block);
  EXPECT_DEATH(pool.Release(block), "");
  EXPECT_DEATH(pool.Share(block), "");
  EXPECT_DEATH(pool.Seal(kNoBlock), "");
  EXPECT_DEATH(pool.RefCount(BlockId(2)), "");
}

// The same in the plainest way: a map of held blocks and a queue of free ones.
struct NaivePool {
  struct Block {
    int refs = 1;
    int fill = 0;
    bool sealed = false;
  };
  std::map<int32_t, Block> held;
  std::deque<int32_t> free;
};

void RunRandom(uint64_t seed, int operations) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed);
  const int32_t blocks = 1 + static_cast<int32_t>(rng.Below(40));
  BlockPool pool(blocks);
  NaivePool naive;
  for (int32_t i = 0; i < blocks; ++i) naive.free.push_back(i);
  for (int step = 0; step < operations; ++step) {
    const uint64_t what = rng.Below(5);
    if (what == 0) {
      const int32_t n = static_cast<int32_t>(rng.Below(6));
      const auto got = pool.Allocate(n);
      ASSERT_EQ(got.has_value(), n <= static_cast<int32_t>(naive.free.size()));
      if (got) {
        for (const BlockId block : *got) {
          ASSERT_EQ(block.value, naive.free.front());
          naive.free.pop_front();
          naive.held[block.value] = {};
        }
      }
    } else if (!naive.held.empty()) {
      auto it = naive.held.begin();
      std::advance(it, rng.Below(naive.held.size()));
      const BlockId block(it->first);
      if (what == 1) {
        pool.Share(block);
        ++it->second.refs;
      } else if (what == 2) {
        pool.Seal(block);
        it->second.sealed = true;
      } else if (what == 3) {
        it->second.fill += static_cast<int>(rng.Below(3));
        pool.SetFill(block, it->second.fill);
      } else {
        pool.Release(block);
        if (--it->second.refs == 0) {
          naive.free.push_back(block.value);
          naive.held.erase(it);
        }
      }
    }
    int64_t sealed = 0, fill = 0;
    for (const auto& [id, block] : naive.held) {
      ASSERT_EQ(pool.RefCount(BlockId(id)), block.refs);
      ASSERT_EQ(pool.Sealed(BlockId(id)), block.sealed);
      ASSERT_EQ(pool.Fill(BlockId(id)), block.fill);
      sealed += block.sealed ? 1 : 0;
      fill += block.fill;
    }
    const PoolBooks books = pool.books();
    ASSERT_TRUE(books.Balanced());
    ASSERT_EQ(books.free, static_cast<int64_t>(naive.free.size()));
    ASSERT_EQ(books.pinned, sealed);
    ASSERT_EQ(books.filling, static_cast<int64_t>(naive.held.size()) - sealed);
    ASSERT_EQ(pool.used_slots(), fill);
    pool.CheckIntegrity();
  }
}

TEST(BlockPool, AgreesWithNaiveModelOnRandomOperations) {
  for (uint64_t seed = 1; seed <= 50; ++seed) RunRandom(seed, 2000);
}

}  // namespace
}  // namespace kvasir
