// BlockPool against a naive model, from a seed.
#include "kvcache/block_pool.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/hash.h"

namespace kvasir {
namespace {

struct Naive {
  int32_t refs = 0, fill = 0;
  bool cached = false, pin = false;
  BlockState State(int32_t block_tokens) const {
    if (refs > 0) return fill == block_tokens ? BlockState::kPinned : BlockState::kFilling;
    if (!cached) return BlockState::kFree;
    return pin ? BlockState::kPinned : BlockState::kEvictable;
  }
};

TEST(BlockPool, AgainstANaiveModel) {
  constexpr int32_t kTokens = 8;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const int32_t total = 1 + static_cast<int32_t>(rng.Below(20));
    BlockPool pool(total, kTokens);
    std::vector<Naive> model(static_cast<size_t>(total));
    std::deque<int32_t> free;
    for (int32_t b = 0; b < total; ++b) free.push_back(b);
    for (int op = 0; op < 2000; ++op) {
      const int32_t block = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(total)));
      Naive& naive = model[static_cast<size_t>(block)];
      const bool was_free = naive.State(kTokens) == BlockState::kFree;
      switch (rng.Below(6)) {
        case 0:
          if (!free.empty()) {
            ASSERT_EQ(pool.Take(), free.front()) << "first in, first out";
            model[static_cast<size_t>(free.front())] = Naive{1, 0, false, false};
            free.pop_front();
          }
          break;
        case 1:
          if (!was_free) pool.Ref(block), ++naive.refs;
          break;
        case 2:
          if (naive.refs > 0) pool.Unref(block), --naive.refs;
          break;
        case 3:
          if (naive.cached && !naive.pin) {
            pool.SetCached(block, naive.cached = false);
          } else if (naive.refs > 0 && !naive.cached) {
            pool.SetCached(block, naive.cached = true);
          }
          break;
        case 4:
          if (naive.cached) pool.SetNamedPin(block, naive.pin = !naive.pin);
          break;
        default:
          if (naive.refs > 0) {
            naive.fill +=
                static_cast<int32_t>(rng.Below(static_cast<uint64_t>(kTokens - naive.fill + 1)));
            pool.SetFill(block, naive.fill);
          }
      }
      if (!was_free && naive.State(kTokens) == BlockState::kFree) {
        free.push_back(block);
        naive = Naive{};
      }
      int64_t used = 0;
      for (int32_t b = 0; b < total; ++b) {
        const Naive& other = model[static_cast<size_t>(b)];
        ASSERT_EQ(pool.State(b), other.State(kTokens));
        ASSERT_EQ(pool.RefCount(b), other.refs);
        used += other.fill;
      }
      ASSERT_EQ(pool.used_slots(), used);
      ASSERT_EQ(pool.free(), static_cast<int32_t>(free.size()));
    }
    pool.CheckIntegrity();
  }
}

}  // namespace
}  // namespace kvasir
