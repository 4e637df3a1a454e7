#include "kvcache/eviction_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kvcache/policy_test_models.h"

namespace kvasir {
int NaiveCost::Reuse(int32_t node) {
  int reuse = 0;
  for (int hits = At(node).hits + credit_[node]; hits > 0 && reuse < 7; hits /= 2) ++reuse;
  return reuse;
}

void NaiveCost::Add(int32_t node) {
  const CacheNode& n = At(node);
  if (n.hits < 4) {
    const double without = ghosts_.Count(0, 0), with = ghosts_.Count(1, 7);
    const int mark = ghosts_.Erase(n.chain);
    const double share = (mark > 0 ? with : without) / (without + with);
    if (mark == 0) level_ = std::max(0.0, level_ - 0.5 * step_ / share);
    if (mark > 0) level_ = std::min(1.0, level_ + 0.5 * step_ / share);
    constexpr int kCredit[] = {1, 2, 4, 8, 16, 32, 64, 64};
    if (mark >= 0) credit_[node] = kCredit[mark];
    if (mark < 0 && n.hits == 0) credit_[node] = 0;
  }
  Worth worth;
  worth.reuse = Reuse(node);
  worth.deep = n.depth >= 256;
  worth.retain = static_cast<int>(n.retain);
  worth.added = static_cast<double>(n.last_use);
  now_ = std::max(now_, worth.added);
  worth_[node] = worth;
  order_.push_back(node);
}

void NaiveCost::Remove(int32_t node) {
  std::erase(order_, node);
  worth_.erase(node);
}

// Of each kind of worth the oldest leaf among its first eight.
int32_t NaiveCost::Victim() {
  using Key = decltype(Worth().Key());
  std::map<Key, std::vector<int32_t>> kinds;
  for (const int32_t node : order_) kinds[worth_[node].Key()].push_back(node);
  int32_t victim = kNoNode;
  double worst = -1;
  for (auto& [key, nodes] : kinds) {
    if (nodes.size() > 8) nodes.resize(8);
    const int32_t node = OldestLeaf(nodes);
    if (node == kNoNode) continue;
    const Worth& worth = worth_[node];
    if (worth.retain == static_cast<int>(Retain::kDrop)) return node;
    static constexpr double kRetain[] = {0, 0.25, 1, 4, 16};
    static constexpr double kReuse[] = {0, 1, 2, 3, 4, 6, 8, 10};
    const double score =
        (now_ - worth.added + 1) * (1 / (std::exp2(kReuse[worth.reuse] * level_) *
                                         (worth.deep ? 1.25 : 1) * kRetain[worth.retain]));
    if (score <= worst) continue;
    worst = score;
    victim = node;
  }
  return victim;
}

void NaiveCost::Evicting(int32_t node) {
  if (At(node).retain == Retain::kDrop) return;
  ghosts_.Insert(At(node).chain, Reuse(node));
}

std::unique_ptr<NaivePolicy> MakeNaive(const std::string& name, const std::vector<CacheNode>& nodes,
                                       int32_t capacity) {
  if (name == "fifo") return std::make_unique<NaiveFifo>(nodes);
  if (name == "slru") return std::make_unique<NaiveSlru>(nodes, capacity);
  if (name == "s3fifo") return std::make_unique<NaiveS3Fifo>(nodes, capacity);
  if (name == "cost") return std::make_unique<NaiveCost>(nodes, capacity);
  return std::make_unique<NaivePolicy>(nodes);
}

namespace {

// Sequences hold paths, grow, end, fork; unheld blocks are matched, evicted, dropped at random.
class PolicyForest {
 public:
  PolicyForest(const std::string& name, int32_t blocks, uint64_t seed)
      : rng_(seed),
        nodes_(static_cast<size_t>(blocks)),
        more_(static_cast<size_t>(blocks)),
        naive_(MakeNaive(name, nodes_, blocks)) {
    policy_ = std::move(EvictionPolicy::Make(name, nodes_.data(), blocks).value());
    for (int32_t i = blocks - 1; i >= 0; --i) free_.push_back(i);
  }

  void Step();  // one random operation
  uint64_t operations() const { return operations_; }
  uint64_t evictions() const { return evictions_; }

 private:
  struct More {  // what the test knows of a node beside CacheNode
    int refs = 0;
    uint64_t label = 0;
    std::vector<int32_t> children;
  };
  CacheNode& N(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  More& M(int32_t node) { return more_[static_cast<size_t>(node)]; }

  void Hold(int32_t node, int hits);
  void Let(int32_t node);
  int32_t Take();  // a free block, evicting if there is none; kNoNode if all are held
  void Detach(int32_t node);
  bool Extend(std::vector<int32_t>& path, int hits);
  void Begin();
  void End(size_t sequence);
  void DropLeaf();

  Rng rng_;
  std::vector<CacheNode> nodes_;
  std::vector<More> more_;
  std::vector<int32_t> roots_, free_;
  std::vector<std::vector<int32_t>> sequences_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::unique_ptr<NaivePolicy> naive_;
  int64_t tick_ = 0;
  int32_t listed_ = 0;
  uint64_t operations_ = 0, evictions_ = 0;
};

void PolicyForest::Hold(int32_t node, int hits) {
  CacheNode& n = N(node);
  n.hits = static_cast<uint16_t>(std::min(65535, n.hits + hits));
  n.last_use = tick_;
  if (M(node).refs++ > 0) return;
  if (!n.listed) return;
  policy_->Remove(node);
  naive_->Remove(node);
  n.listed = false;
  --listed_;
  ++operations_;
}

void PolicyForest::Let(int32_t node) {
  CacheNode& n = N(node);
  if (--M(node).refs > 0) return;
  n.last_use = tick_;
  n.listed = true;
  ++listed_;
  policy_->Add(node);
  naive_->Add(node);
  ++operations_;
}

void PolicyForest::Detach(int32_t node) {
  CacheNode& n = N(node);
  std::vector<int32_t>& siblings = n.parent == kNoNode ? roots_ : M(n.parent).children;
  siblings.erase(std::find(siblings.begin(), siblings.end(), node));
  if (n.parent != kNoNode) {
    --N(n.parent).children;
    N(n.parent).child = siblings.empty() ? kNoNode : siblings.front();
  }
  n = CacheNode{};
  free_.push_back(node);
}

int32_t PolicyForest::Take() {
  if (free_.empty()) {
    const int32_t victim = policy_->Victim();
    EXPECT_EQ(victim, naive_->Victim());
    // Asked again it says the same, but for a queue that turns.
    if (policy_->name() != "s3fifo") {
      EXPECT_EQ(policy_->Victim(), victim);
    }
    ++operations_;
    if (victim == kNoNode) {
      EXPECT_EQ(listed_, 0);
      return kNoNode;
    }
    EXPECT_TRUE(N(victim).listed);
    EXPECT_EQ(N(victim).children, 0);
    policy_->Evicting(victim);
    naive_->Evicting(victim);
    policy_->Remove(victim);
    naive_->Remove(victim);
    --listed_;
    ++evictions_;
    Detach(victim);
  }
  const int32_t node = free_.back();
  free_.pop_back();
  return node;
}

// One more block at the end of a held path: an existing child, or a new one.
bool PolicyForest::Extend(std::vector<int32_t>& path, int hits) {
  const int32_t parent = path.empty() ? kNoNode : path.back();
  if (parent != kNoNode && N(parent).chain == 0) return false;  // a tail has no children
  const std::vector<int32_t>& siblings = parent == kNoNode ? roots_ : M(parent).children;
  const uint64_t label = 1 + rng_.Below(3);
  for (const int32_t child : siblings) {
    if (M(child).label != label) continue;
    Hold(child, hits);
    path.push_back(child);
    return true;
  }
  const int32_t node = Take();
  if (node == kNoNode) return false;
  CacheNode& n = N(node);
  n.parent = parent;
  n.created = tick_;
  n.last_use = tick_;
  n.depth = static_cast<int32_t>(path.size()) * 100;
  if (rng_.Below(6) > 0) n.chain = CounterRandom(label, parent == kNoNode ? 0 : N(parent).chain, 7);
  n.present = true;
  M(node).label = label;
  M(node).refs = 1;
  if (parent == kNoNode) {
    roots_.push_back(node);
  } else {
    M(parent).children.push_back(node);
    N(parent).child = M(parent).children.front();
    ++N(parent).children;
  }
  path.push_back(node);
  return true;
}

void PolicyForest::End(size_t sequence) {
  std::vector<int32_t>& path = sequences_[sequence];
  const Retain retain = static_cast<Retain>(rng_.Below(8) == 0 ? rng_.Below(5) : 2);
  for (size_t i = path.size(); i-- > 0;) {
    CacheNode& n = N(path[i]);
    if (M(path[i]).refs == 1) n.retain = n.hits == 0 ? retain : std::max(n.retain, retain);
    Let(path[i]);
  }
  sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(sequence));
}

// A sequence walks down a random way, then goes on with blocks of its own. All it finds counts
// equally many hits, so that of an ancestor are never fewer.
void PolicyForest::Begin() {
  std::vector<int32_t> path;
  const int hits = rng_.Below(30) == 0 ? 1 + static_cast<int>(rng_.Below(200)) : 1;
  const uint64_t length = 1 + rng_.Below(8);
  bool found = true;
  while (path.size() < length) {
    const size_t before = path.size();
    const int32_t free_before = static_cast<int32_t>(free_.size());
    if (!Extend(path, found ? hits : 0)) break;
    found = found && path.size() > before && free_before == static_cast<int32_t>(free_.size());
  }
  if (!path.empty()) sequences_.push_back(std::move(path));
}

// A leaf goes for another reason than want of room: its time is over, a reset.
void PolicyForest::DropLeaf() {
  const size_t start = rng_.Below(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const int32_t node = static_cast<int32_t>((start + i) % nodes_.size());
    if (!N(node).listed || N(node).children > 0) continue;
    policy_->Remove(node);
    naive_->Remove(node);
    --listed_;
    ++operations_;
    Detach(node);
    return;
  }
}

void PolicyForest::Step() {
  ++tick_;
  const uint64_t what = rng_.Below(16);
  if (what < 6 && sequences_.size() < 4) {
    Begin();
  } else if (what < 9 && !sequences_.empty()) {
    Extend(sequences_[rng_.Below(sequences_.size())], 0);
  } else if (what == 9 && !sequences_.empty() && sequences_.size() < 4) {  // fork
    sequences_.push_back(sequences_[rng_.Below(sequences_.size())]);
    for (const int32_t node : sequences_.back()) Hold(node, 0);
  } else if (what == 10) {
    DropLeaf();
  } else if (!sequences_.empty()) {
    End(rng_.Below(sequences_.size()));
  }
  ASSERT_EQ(policy_->size(), listed_);
}

constexpr const char* kNames[] = {"lru", "fifo", "slru", "s3fifo", "cost"};

TEST(EvictionPolicy, UnknownNameIsRefusedWithTheList) {
  CacheNode node;
  const auto refused = EvictionPolicy::Make("mru", &node, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().field(), "evict");
  for (const char* name : kNames) {
    EXPECT_NE(refused.status().message().find(name), std::string::npos);
    const auto made = EvictionPolicy::Make(name, &node, 1);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ((*made)->name(), name);
    EXPECT_EQ((*made)->Victim(), kNoNode);
    EXPECT_EQ((*made)->size(), 0);
  }
}

// Each victim is the one that a plain model names, has no children, is listed, and there is one
// whenever something is listed.
TEST(EvictionPolicy, AgreesWithNaiveModelOnRandomForests) {
  for (const char* name : kNames) {
    uint64_t operations = 0, evictions = 0;
    for (uint64_t seed = 1; seed <= 250; ++seed) {
      SCOPED_TRACE(std::string(name) + " seed " + std::to_string(seed));
      const int32_t blocks = static_cast<int32_t>(1 + seed * seed % 47);
      PolicyForest forest(name, blocks, seed);
      for (int step = 0; step < 5000; ++step) {
        forest.Step();
        if (testing::Test::HasFailure()) return;
      }
      operations += forest.operations();
      evictions += forest.evictions();
    }
    std::printf("%s: %llu operations, %llu evictions\n", name,
                static_cast<unsigned long long>(operations),
                static_cast<unsigned long long>(evictions));
    EXPECT_GT(evictions, 500000u);
  }
}

}  // namespace
}  // namespace kvasir
