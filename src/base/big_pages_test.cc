#include "base/big_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/hash.h"

namespace kvasir {
namespace {

TEST(BigPages, PiecesAreZeroedAlignedAndApart) {
  const uint64_t seed = 21;
  Rng rng(seed);
  struct Piece {
    std::shared_ptr<uint8_t> data;
    size_t bytes = 0;
    uint8_t mark = 0;
  };
  std::vector<Piece> pieces;
  for (int round = 0; round < 400; ++round) {
    Piece piece;
    const uint64_t kind = rng.Below(20);
    piece.bytes = 1 + rng.Below(kind == 0 ? (size_t{40} << 20) : kind < 5 ? 2'000'000 : 5000);
    piece.mark = static_cast<uint8_t>(1 + rng.Below(255));
    piece.data = TakeBigPages(piece.bytes);
    ASSERT_NE(piece.data, nullptr) << "seed " << seed;
    ASSERT_EQ(reinterpret_cast<uintptr_t>(piece.data.get()) % 64, 0u);
    // Ends and some inside, so that a test of gigabytes of address space touches little of it.
    const auto touch = [&](auto f) {
      for (size_t i = 0; i < piece.bytes; i += 1 + piece.bytes / 64) f(piece.data.get() + i);
      f(piece.data.get() + piece.bytes - 1);
    };
    touch([&](uint8_t* p) { ASSERT_EQ(*p, 0) << "seed " << seed << " round " << round; });
    touch([&](uint8_t* p) { *p = piece.mark; });
    pieces.push_back(std::move(piece));
    if (pieces.size() > 20) pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(rng.Below(20)));
    for (const Piece& one : pieces) {
      ASSERT_EQ(one.data.get()[0], one.mark) << "seed " << seed << " round " << round;
      ASSERT_EQ(one.data.get()[one.bytes - 1], one.mark) << "seed " << seed << " round " << round;
    }
  }
}

TEST(BigPages, NothingAndTooMuch) {
  EXPECT_EQ(TakeBigPages(0), nullptr);
  EXPECT_EQ(TakeBigPages(SIZE_MAX), nullptr);
  EXPECT_EQ(TakeBigPages(SIZE_MAX / 4), nullptr);
  EXPECT_NE(TakeBigPages(1), nullptr);
}

}  // namespace
}  // namespace kvasir
