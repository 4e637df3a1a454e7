// What cost is for: hints, floods of one-off prompts, and giving way to lru where reuse is no sign
// of more reuse. A small replay of whole-block paths stands in for the cache.
#include "kvcache/policy_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"

namespace kvasir {
namespace {

class Replay {
 public:
  Replay(const std::string& policy, int32_t blocks) : nodes_(static_cast<size_t>(blocks)) {
    ids_.resize(nodes_.size());
    policy_ = std::move(EvictionPolicy::Make(policy, nodes_.data(), blocks).value());
    for (int32_t i = blocks - 1; i >= 0; --i) free_.push_back(i);
  }

  // A prompt as names of its blocks; equal name, equal path. Returns how many were there.
  int Request(const std::vector<int>& ids, Retain retain = Retain::kNormal) {
    std::vector<int32_t> path;
    ++tick_;
    for (const int id : ids) {
      const auto it = node_of_.find(id);
      if (it == node_of_.end()) break;
      policy_->Remove(it->second);
      ++N(it->second).hits;
      path.push_back(it->second);
    }
    const int found = static_cast<int>(path.size());
    for (size_t i = path.size(); i < ids.size(); ++i) {
      if (free_.empty()) Evict();
      const int32_t node = free_.back();
      free_.pop_back();
      N(node) = CacheNode{};
      N(node).parent = path.empty() ? kNoNode : path.back();
      N(node).created = tick_;
      N(node).depth = static_cast<int32_t>(i);
      // The last one is a tail: not full, no name.
      if (i + 1 < ids.size()) N(node).chain = CounterRandom(static_cast<uint64_t>(ids[i]), 0, 0);
      if (!path.empty()) ++N(path.back()).children;
      ids_[static_cast<size_t>(node)] = ids[i];
      node_of_[ids[i]] = node;
      path.push_back(node);
    }
    for (size_t i = path.size(); i-- > 0;) {
      N(path[i]).retain = retain;
      N(path[i]).last_use = tick_;
      policy_->Add(path[i]);
    }
    return found;
  }
  bool Has(int id) const { return node_of_.count(id) > 0; }
  const EvictionPolicy& policy() const { return *policy_; }

 private:
  CacheNode& N(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  void Evict() {
    const int32_t victim = policy_->Victim();
    ASSERT_NE(victim, kNoNode);
    ASSERT_EQ(N(victim).children, 0);
    policy_->Evicting(victim);
    policy_->Remove(victim);
    if (N(victim).parent != kNoNode) --N(N(victim).parent).children;
    node_of_.erase(ids_[static_cast<size_t>(victim)]);
    free_.push_back(victim);
  }

  std::vector<CacheNode> nodes_;
  std::vector<int> ids_;
  std::map<int, int32_t> node_of_;
  std::vector<int32_t> free_;
  std::unique_ptr<EvictionPolicy> policy_;
  int64_t tick_ = 0;
};

std::vector<int> Fresh(int& next, int n) {
  std::vector<int> ids;
  for (int i = 0; i < n; ++i) ids.push_back(next++);
  return ids;
}

struct FloodResult {
  double mixed = 0;  // share of the hot prefix found while it is in use
  int after = 0;     // blocks of it found after the flood
};

// Case S04 in blocks of 16: room for 1,500 tokens; half of 200 requests share 512 tokens, half are
// one-off prompts of 600; then 50 of those in a row, then the hot prefix again.
FloodResult Flood(const std::string& policy) {
  constexpr int kHot = 32;
  Replay replay(policy, 1500 / 16);
  Rng rng(4);
  int next = 0;
  const std::vector<int> hot = Fresh(next, kHot);
  const auto with_question = [&] {
    std::vector<int> ids = hot;
    ids.push_back(next++);
    return ids;
  };
  double found = 0, wanted = 0;
  for (int i = 0; i < 200; ++i) {
    if (rng.Below(2) == 0) {
      wanted += kHot;
      found += std::min(kHot, replay.Request(with_question()));
    } else {
      replay.Request(Fresh(next, 38));
    }
  }
  for (int i = 0; i < 50; ++i) replay.Request(Fresh(next, 38));
  return {found / wanted, std::min(kHot, replay.Request(with_question()))};
}

TEST(CostPolicy, HotPrefixSurvivesFloodOfOneOffPrompts) {
  const FloodResult lru = Flood("lru"), cost = Flood("cost");
  EXPECT_EQ(lru.after, 0);
  EXPECT_EQ(cost.after, 32);
  // An ideal policy gets all but the first of about a hundred; the case asks for 90 % of that.
  EXPECT_GE(cost.mixed, 0.95);
  EXPECT_LT(lru.mixed, 0.9);
  for (const char* policy : {"slru", "s3fifo"}) EXPECT_EQ(Flood(policy).after, 32) << policy;
}

TEST(CostPolicy, HintsOrderBlocksOfOneAge) {
  Replay replay("cost", 50);
  int next = 0;
  std::map<Retain, std::vector<int>> prompts;
  for (const Retain retain :
       {Retain::kHigh, Retain::kSession, Retain::kNormal, Retain::kLow, Retain::kDrop}) {
    prompts[retain] = Fresh(next, 10);
    replay.Request(prompts[retain], retain);
  }
  std::vector<Retain> gone;
  for (int i = 0; i < 1000 && gone.size() < 4; ++i) {
    replay.Request(Fresh(next, 1), Retain::kSession);
    for (const auto& [retain, ids] : prompts) {
      const bool there = replay.Has(ids.front());
      if (!there && std::count(gone.begin(), gone.end(), retain) == 0) gone.push_back(retain);
    }
  }
  // The one marked last use was released last and goes first; no hint keeps a block for ever.
  ASSERT_GE(gone.size(), 4u);
  EXPECT_EQ(gone[0], Retain::kDrop);
  EXPECT_EQ(gone[1], Retain::kLow);
  EXPECT_EQ(gone[2], Retain::kNormal);
}

TEST(CostPolicy, DropsWhatWillNotBeUsedAgainLeafByLeaf) {
  Replay replay("cost", 10);
  int next = 0;
  const std::vector<int> dropped = Fresh(next, 4), kept = Fresh(next, 6);
  replay.Request(kept);
  replay.Request(dropped, Retain::kDrop);
  for (int i = 3; i >= 0; --i) {
    replay.Request(Fresh(next, 1), Retain::kHigh);
    EXPECT_FALSE(replay.Has(dropped[static_cast<size_t>(i)]));
    EXPECT_EQ(replay.Has(dropped.front()), i > 0);
    EXPECT_TRUE(replay.Has(kept.back()));
  }
}

// Blocks are used twice and never again; what is wanted is what was used once, a little before it
// is thrown out.
TEST(CostPolicy, LearnsThatReuseIsNoSignOfMoreReuse) {
  constexpr int32_t kBlocks = 400;
  Replay cost("cost", kBlocks), lru("lru", kBlocks);
  const auto& policy = dynamic_cast<const CostPolicy&>(cost.policy());
  EXPECT_EQ(policy.level(), 1);
  int next = 0;
  std::vector<std::vector<int>> prompts;
  int64_t cost_found = 0, lru_found = 0;
  for (size_t i = 0; i < 4000; ++i) {
    prompts.push_back(Fresh(next, 10));
    cost.Request(prompts[i]);
    lru.Request(prompts[i]);
    if (i < 15) continue;
    const int found = cost.Request(prompts[i - 15]);
    if (i >= 2000) {
      cost_found += found;
      lru_found += lru.Request(prompts[i - 15]);
    } else {
      lru.Request(prompts[i - 15]);
    }
  }
  EXPECT_LT(policy.level(), 0.2);
  EXPECT_GT(lru_found, 0);
  EXPECT_GE(static_cast<double>(cost_found), 0.95 * static_cast<double>(lru_found));
}

// The other way round: what was used is used again, and a level that has fallen rises.
TEST(CostPolicy, LearnsBackThatReuseCounts) {
  constexpr int32_t kBlocks = 400;
  Replay cost("cost", kBlocks);
  const auto& policy = dynamic_cast<const CostPolicy&>(cost.policy());
  int next = 0;
  std::vector<std::vector<int>> prompts;
  for (size_t i = 0; i < 4000; ++i) {
    prompts.push_back(Fresh(next, 10));
    cost.Request(prompts[i]);
    if (i >= 30) cost.Request(prompts[i - 30]);
  }
  const double fallen = policy.level();
  EXPECT_LT(fallen, 0.5);
  std::vector<std::vector<int>> hot;
  for (int i = 0; i < 25; ++i) hot.push_back(Fresh(next, 10));
  for (size_t i = 0; i < 20000; ++i) {
    cost.Request(hot[i % hot.size()]);
    cost.Request(Fresh(next, 10));
  }
  EXPECT_GT(policy.level(), fallen + 0.3);
}

}  // namespace
}  // namespace kvasir
