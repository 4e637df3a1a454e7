// PrefixIndex against a list of keys, from a seed.
#include "kvcache/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/hash.h"

namespace kvasir {
namespace {

using Key = std::vector<TokenId>;

int32_t Common(const Key& a, const Key& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  return static_cast<int32_t>(i);
}

// Children of a namespace's top: inserted, renamed, removed, looked up.
TEST(PrefixIndex, SiblingsAgainstAMap) {
  int64_t looked_up = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const int32_t block = 1 << rng.Below(5);
    const uint64_t alphabet = 1 + rng.Below(4);
    PrefixIndex index(200, block);
    bool fresh = false;
    const int32_t space = index.Open("s", &fresh);
    const int32_t top = PrefixIndex::Top(space);
    std::map<Key, int32_t> model;  // in the same order
    std::vector<int32_t> unused(200);
    for (int32_t i = 0; i < 200; ++i) unused[static_cast<size_t>(i)] = i;
    const auto random_key = [&] {
      Key key(1 + rng.Below(static_cast<uint64_t>(block)));
      for (TokenId& token : key) token = static_cast<TokenId>(rng.Below(alphabet));
      return key;
    };
    for (int op = 0; op < 3000; ++op) {
      const Key key = random_key();
      const PrefixIndex::Found found = index.Find(top, key);
      const auto there = model.find(key);
      ASSERT_EQ(found.equal, there == model.end() ? kNoNode : there->second);
      int32_t longest = 0;
      for (const auto& [other, node] : model) longest = std::max(longest, Common(key, other));
      ASSERT_EQ(found.longest_tokens, longest);
      ASSERT_EQ(found.best_tokens, longest) << "all are written";
      ++looked_up;
      if (there == model.end() && rng.Below(2) == 0 && !unused.empty()) {
        const int32_t node = unused.back();
        unused.pop_back();
        index.Insert(node, top, key, static_cast<int32_t>(key.size()), op);
        model.emplace(key, node);
      } else if (there != model.end() && rng.Below(3) == 0) {
        index.Remove(there->second);
        unused.push_back(there->second);
        model.erase(there);
      } else if (there == model.end() && !model.empty() && rng.Below(3) == 0) {
        auto other = model.begin();
        std::advance(other, static_cast<ptrdiff_t>(rng.Below(model.size())));
        const int32_t node = other->second;
        index.Rekey(node, key);
        index.node(node).ready = index.node(node).fill;
        model.erase(other);
        model.emplace(key, node);
      }
      if (!model.empty()) {
        auto at = model.begin();
        std::advance(at, static_cast<ptrdiff_t>(rng.Below(model.size())));
        const int32_t before = index.Predecessor(at->second);
        ASSERT_EQ(before, at == model.begin() ? kNoNode : std::prev(at)->second);
        if (before != kNoNode) {
          ASSERT_EQ(index.Begins(before, at->second),
                    Common(std::prev(at)->first, at->first) ==
                        static_cast<int32_t>(std::prev(at)->first.size()));
        }
      }
      if (op % 100 == 0) index.CheckIntegrity();
    }
    ASSERT_EQ(static_cast<size_t>(index.size()), model.size());
  }
  EXPECT_EQ(looked_up, 180000);
}

TEST(PrefixIndex, ANamespaceLivesWhileItHasUsersOrNodes) {
  PrefixIndex index(4, 4);
  bool fresh = false;
  const int32_t a = index.Open("a", &fresh);
  EXPECT_TRUE(fresh);
  EXPECT_EQ(index.Open("a", &fresh), a);
  EXPECT_FALSE(fresh);
  const Key key = {1, 2, 3, 4};
  index.Insert(0, PrefixIndex::Top(a), key, 4, 1);
  index.Insert(1, 0, key, 4, 2);
  EXPECT_EQ(index.node(1).depth, 1);
  EXPECT_EQ(index.node(1).space, a);
  index.Close(a);
  index.Close(a);
  EXPECT_FALSE(index.Dead(a));
  index.CheckIntegrity();
  index.Remove(1);
  index.Remove(0);
  EXPECT_TRUE(index.Dead(a));
  EXPECT_EQ(index.Open("b", &fresh), a) << "its number is given anew";
  EXPECT_TRUE(fresh);
  index.CheckIntegrity();
}

// Ten thousand children of one node stay cheap: the depth of the search is counted, not timed.
TEST(PrefixIndex, ManySiblings) {
  PrefixIndex index(10001, 16);
  bool fresh = false;
  const int32_t space = index.Open("", &fresh);
  Key key(16, 5);
  for (int32_t i = 0; i < 10000; ++i) {
    key[15] = i;
    index.Insert(i, PrefixIndex::Top(space), key, 16, i);
  }
  index.CheckIntegrity();
  int32_t deepest = 0;
  std::vector<std::pair<int32_t, int32_t>> open = {{index.space(space).root, 1}};
  while (!open.empty()) {
    const auto [node, depth] = open.back();
    open.pop_back();
    if (node == kNoNode) continue;
    deepest = std::max(deepest, depth);
    open.push_back({index.node(node).left, depth + 1});
    open.push_back({index.node(node).right, depth + 1});
  }
  EXPECT_LT(deepest, 60) << "log2 is 14; a treap of random order stays within a few times that";
}

}  // namespace
}  // namespace kvasir
