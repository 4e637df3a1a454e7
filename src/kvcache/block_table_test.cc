#include "kvcache/block_table.h"

#include <gtest/gtest.h>

#include <list>
#include <map>
#include <string>

#include "base/hash.h"

namespace kvasir {
namespace {

TEST(BlockTable, GrowsWritesAndClears) {
  BlockPool pool(3);
  BlockTable table(16);
  EXPECT_EQ(table.ObstacleAt(pool, 0), BlockTable::Obstacle::kNeedsBlock);
  ASSERT_TRUE(table.Grow(pool, 2));
  EXPECT_FALSE(table.Grow(pool, 2));
  table.Written(pool, 0, 20);
  EXPECT_EQ(pool.books().pinned, 1);
  EXPECT_EQ(pool.books().filling, 1);
  EXPECT_EQ(pool.used_slots(), 20);
  std::vector<BlockCopy> copies;
  EXPECT_TRUE(table.MakeWritable(pool, 20, copies));
  EXPECT_EQ(table.size(), 2);
  EXPECT_TRUE(copies.empty());
  table.Clear(pool);
  EXPECT_EQ(pool.free_blocks(), 3);
}

TEST(BlockTable, WriterOfSharedBlockCopiesItAndTheLastOneDoesNot) {
  BlockPool pool(4);
  BlockTable a(16), b(16);
  ASSERT_TRUE(a.Grow(pool, 2));
  a.Written(pool, 0, 21);
  b.ShareFrom(pool, a);
  EXPECT_EQ(pool.used_slots(), 21);
  std::vector<BlockCopy> copies;
  EXPECT_EQ(a.ObstacleAt(pool, 21), BlockTable::Obstacle::kNeedsCopy);
  ASSERT_TRUE(a.MakeWritable(pool, 21, copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from.value, b.blocks()[1]);
  EXPECT_EQ(copies[0].to.value, a.blocks()[1]);
  EXPECT_EQ(a.blocks()[0], b.blocks()[0]);
  EXPECT_EQ(b.ObstacleAt(pool, 21), BlockTable::Obstacle::kNone);
  EXPECT_EQ(pool.used_slots(), 16 + 5 + 5);
  a.Clear(pool);
  b.Clear(pool);
  EXPECT_EQ(pool.free_blocks(), 4);
}

TEST(BlockTable, NoBlockForTheCopyChangesNothing) {
  BlockPool pool(1);
  BlockTable a(8), b(8);
  ASSERT_TRUE(a.Grow(pool, 1));
  a.Written(pool, 0, 3);
  b.ShareFrom(pool, a);
  std::vector<BlockCopy> copies;
  EXPECT_FALSE(a.MakeWritable(pool, 3, copies));
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(pool.RefCount(BlockId(0)), 2);
  a.Clear(pool);
  EXPECT_TRUE(b.MakeWritable(pool, 3, copies));
  EXPECT_TRUE(copies.empty());
  b.Clear(pool);
}

TEST(BlockTableDeathTest, WritingIntoSharedBlocksAndLeaksAreMistakes) {
  BlockPool pool(2);
  EXPECT_DEATH(
      {
        BlockTable leaked(8);
        (void)leaked.Grow(pool, 1);
      },
      "");
  BlockTable a(8), b(8);
  ASSERT_TRUE(a.Grow(pool, 1));
  b.ShareFrom(pool, a);
  EXPECT_DEATH(a.Written(pool, 0, 1), "");
  a.Clear(pool);
  b.Clear(pool);
}

// Tables that fork, grow by a token and end, against the contents they ought to have: each slot of
// the fake bytes holds who wrote it; a table must always read its own history.
void RunForks(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed);
  constexpr int kBlock = 8;
  BlockPool pool(12);
  std::vector<std::vector<uint64_t>> bytes(12, std::vector<uint64_t>(kBlock, 0));
  struct Branch {
    BlockTable table{kBlock};
    std::vector<uint64_t> history;
  };
  std::list<Branch> branches;
  uint64_t stamp = 1;
  for (int step = 0; step < 3000; ++step) {
    const uint64_t what = rng.Below(10);
    auto it = branches.begin();
    if (!branches.empty()) std::advance(it, rng.Below(branches.size()));
    if (branches.empty() || what == 0) {
      branches.emplace_back();
    } else if (what == 1) {
      branches.emplace_back();
      branches.back().table.ShareFrom(pool, it->table);
      branches.back().history = it->history;
    } else if (what == 2) {
      it->table.Clear(pool);
      branches.erase(it);
    } else {
      std::vector<BlockCopy> copies;
      const int32_t position = static_cast<int32_t>(it->history.size());
      const int32_t free = pool.free_blocks();
      const bool obstacle = it->table.ObstacleAt(pool, position) != BlockTable::Obstacle::kNone;
      const bool writable = it->table.MakeWritable(pool, position, copies);
      ASSERT_EQ(writable, !obstacle || free > 0);
      for (const BlockCopy& copy : copies) {
        bytes[static_cast<size_t>(copy.to.value)] = bytes[static_cast<size_t>(copy.from.value)];
      }
      if (writable) {
        const auto block =
            static_cast<size_t>(it->table.blocks()[static_cast<size_t>(position / kBlock)]);
        bytes[block][static_cast<size_t>(position % kBlock)] = stamp;
        it->history.push_back(stamp++);
        it->table.Written(pool, position, position + 1);
      }
    }
    std::map<int32_t, int> references;
    for (const Branch& branch : branches) {
      for (const int32_t block : branch.table.blocks()) ++references[block];
      for (size_t i = 0; i < branch.history.size(); ++i) {
        const auto block = static_cast<size_t>(branch.table.blocks()[i / kBlock]);
        ASSERT_EQ(bytes[block][i % kBlock], branch.history[i]);
      }
    }
    for (int32_t b = 0; b < 12; ++b) ASSERT_EQ(pool.RefCount(BlockId(b)), references[b]);
    pool.CheckIntegrity();
  }
  for (Branch& branch : branches) branch.table.Clear(pool);
  EXPECT_EQ(pool.free_blocks(), 12);
}

TEST(BlockTable, ForksKeepTheirOwnHistory) {
  for (uint64_t seed = 1; seed <= 30; ++seed) RunForks(seed);
}

}  // namespace
}  // namespace kvasir
