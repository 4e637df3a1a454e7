#include "kvcache/prefix_index.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace kvasir {

PrefixIndex::PrefixIndex(int32_t capacity, int32_t block_tokens, uint64_t seed)
    : block_tokens_(block_tokens), seed_(seed) {
  KVASIR_CHECK(capacity >= 0 && block_tokens > 0);
  nodes_.resize(static_cast<size_t>(capacity));
  tokens_.resize(static_cast<size_t>(capacity) * static_cast<size_t>(block_tokens));
}

int32_t PrefixIndex::Open(std::string_view key, bool* fresh) {
  const auto found = by_key_.find(key);
  *fresh = found == by_key_.end();
  if (!*fresh) {
    ++space(found->second).users;
    return found->second;
  }
  int32_t id = 0;
  if (free_spaces_.empty()) {
    id = spaces();
    spaces_.emplace_back();
  } else {
    id = free_spaces_.back();
    free_spaces_.pop_back();
    spaces_[static_cast<size_t>(id)] = Space{};
  }
  Space& made = space(id);
  made.key = std::string(key);
  made.users = 1;
  made.open = true;
  by_key_.emplace(made.key, id);
  return id;
}

bool PrefixIndex::Dead(int32_t id) const {
  return !space(id).open;
}

void PrefixIndex::Close(int32_t id) {
  Space& gone = space(id);
  KVASIR_CHECK(gone.open && gone.users > 0);
  if (--gone.users > 0 || gone.nodes > 0) return;
  by_key_.erase(gone.key);
  gone.open = false;
  free_spaces_.push_back(id);
}

int32_t& PrefixIndex::Root(int32_t parent) {
  return parent >= 0 ? node(parent).child : space(-1 - parent).root;
}

int32_t PrefixIndex::Root(int32_t parent) const {
  return parent >= 0 ? node(parent).child : space(-1 - parent).root;
}

std::span<const TokenId> PrefixIndex::tokens(int32_t n) const {
  return {tokens_.data() + static_cast<size_t>(n) * static_cast<size_t>(block_tokens_),
          static_cast<size_t>(node(n).fill)};
}

// < 0: query before the node's key, 0: equal, > 0: after it.
int PrefixIndex::Compare(std::span<const TokenId> query, int32_t n, int32_t* common) const {
  const std::span<const TokenId> key = tokens(n);
  const size_t shorter = std::min(query.size(), key.size());
  size_t i = 0;
  while (i < shorter && query[i] == key[i]) ++i;
  *common = static_cast<int32_t>(i);
  if (i < shorter) return query[i] < key[i] ? -1 : 1;
  if (query.size() == key.size()) return 0;
  return query.size() < key.size() ? -1 : 1;
}

PrefixIndex::Found PrefixIndex::Find(int32_t parent, std::span<const TokenId> query) const {
  Found found;
  for (int32_t n = Root(parent); n != kNoNode;) {
    const CacheNode& at = node(n);
    int32_t common = 0;
    const int order = Compare(query, n, &common);
    if (common > found.longest_tokens) {
      found.longest = n;
      found.longest_tokens = common;
    }
    const int32_t written = std::min<int32_t>(common, at.ready);
    if (written > found.best_tokens) {
      found.best = n;
      found.best_tokens = written;
    }
    if (order == 0) {
      found.equal = n;
      return found;
    }
    n = order < 0 ? at.left : at.right;
  }
  return found;
}

void PrefixIndex::Split(int32_t tree, std::span<const TokenId> key, int32_t* less, int32_t* more) {
  while (tree != kNoNode) {
    int32_t common = 0;
    if (Compare(key, tree, &common) < 0) {
      *more = tree;
      more = &node(tree).left;
      tree = *more;
    } else {
      *less = tree;
      less = &node(tree).right;
      tree = *less;
    }
  }
  *less = kNoNode;
  *more = kNoNode;
}

int32_t PrefixIndex::Merge(int32_t less, int32_t more) {
  int32_t root = kNoNode;
  int32_t* link = &root;
  while (less != kNoNode && more != kNoNode) {
    if (node(less).order >= node(more).order) {
      *link = less;
      link = &node(less).right;
      less = *link;
    } else {
      *link = more;
      link = &node(more).left;
      more = *link;
    }
  }
  *link = less != kNoNode ? less : more;
  return root;
}

void PrefixIndex::Link(int32_t n) {
  CacheNode& at = node(n);
  const std::span<const TokenId> key = tokens(n);
  int32_t* link = &Root(at.parent);
  int32_t common = 0;
  while (*link != kNoNode && node(*link).order >= at.order) {
    const int order = Compare(key, *link, &common);
    KVASIR_CHECK(order != 0);
    link = order < 0 ? &node(*link).left : &node(*link).right;
  }
  Split(*link, key, &at.left, &at.right);
  *link = n;
}

void PrefixIndex::Unlink(int32_t n) {
  CacheNode& at = node(n);
  const std::span<const TokenId> key = tokens(n);
  int32_t* link = &Root(at.parent);
  int32_t common = 0;
  while (*link != n) {
    KVASIR_CHECK(*link != kNoNode);
    link = Compare(key, *link, &common) < 0 ? &node(*link).left : &node(*link).right;
  }
  *link = Merge(at.left, at.right);
  at.left = kNoNode;
  at.right = kNoNode;
}

void PrefixIndex::Insert(int32_t n, int32_t parent, std::span<const TokenId> tokens, int32_t ready,
                         int64_t tick) {
  CacheNode& at = node(n);
  KVASIR_CHECK(!at.present && !tokens.empty());
  KVASIR_CHECK(tokens.size() <= static_cast<size_t>(block_tokens_));
  KVASIR_CHECK(parent < 0 || (node(parent).present && node(parent).fill == block_tokens_));
  at = CacheNode{};
  at.present = true;
  at.parent = parent;
  at.depth = parent >= 0 ? node(parent).depth + 1 : 0;
  at.space = parent >= 0 ? node(parent).space : -1 - parent;
  at.order = static_cast<uint32_t>(CounterRandom(seed_, 1, inserted_++));
  at.created = tick;
  at.last_use = tick;
  at.fill = static_cast<uint16_t>(tokens.size());
  at.ready = static_cast<uint16_t>(ready);
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<ptrdiff_t>(n) * block_tokens_);
  if (at.fill == block_tokens_) at.chain = Chain(ChainSeed(parent), tokens);
  Link(n);
  ++size_;
  if (parent >= 0) {
    ++node(parent).children;
  } else {
    ++space(-1 - parent).nodes;  // of the tops only: the rest hangs below them
  }
}

void PrefixIndex::Rekey(int32_t n, std::span<const TokenId> tokens) {
  CacheNode& at = node(n);
  KVASIR_CHECK(at.present && at.children == 0 && !tokens.empty());
  KVASIR_CHECK(tokens.size() <= static_cast<size_t>(block_tokens_));
  Unlink(n);
  at.fill = static_cast<uint16_t>(tokens.size());
  at.ready = std::min(at.ready, at.fill);
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<ptrdiff_t>(n) * block_tokens_);
  at.chain = at.fill == block_tokens_ ? Chain(ChainSeed(at.parent), tokens) : 0;
  Link(n);
}

void PrefixIndex::Remove(int32_t n) {
  CacheNode& at = node(n);
  KVASIR_CHECK(at.present && at.children == 0 && at.child == kNoNode && !at.listed);
  Unlink(n);
  at.present = false;
  --size_;
  if (at.parent >= 0) {
    --node(at.parent).children;
    return;
  }
  const int32_t id = -1 - at.parent;
  Space& top = space(id);
  if (--top.nodes > 0 || top.users > 0) return;
  by_key_.erase(top.key);
  top.open = false;
  free_spaces_.push_back(id);
}

int32_t PrefixIndex::Predecessor(int32_t n) const {
  const std::span<const TokenId> key = tokens(n);
  int32_t before = kNoNode;
  int32_t common = 0;
  for (int32_t at = Root(node(n).parent); at != kNoNode;) {
    if (Compare(key, at, &common) > 0) {
      before = at;
      at = node(at).right;
    } else {
      at = node(at).left;
    }
  }
  return before;
}

bool PrefixIndex::Begins(int32_t a, int32_t b) const {
  int32_t common = 0;
  Compare(tokens(a), b, &common);
  return common == node(a).fill;
}

uint64_t PrefixIndex::ChainSeed(int32_t parent) const {
  return parent >= 0 ? node(parent).chain : space(-1 - parent).seed;
}

uint64_t PrefixIndex::Chain(uint64_t before, std::span<const TokenId> tokens) {
  return Hash64(std::as_bytes(tokens), before);
}

size_t PrefixIndex::bytes() const {
  return nodes_.size() * sizeof(CacheNode);
}

int64_t PrefixIndex::CheckTree(int32_t tree, int32_t parent, int32_t* last) const {
  if (tree == kNoNode) return 0;
  const CacheNode& at = node(tree);
  KVASIR_CHECK(at.present && at.parent == parent);
  for (const int32_t below : {at.left, at.right})
    KVASIR_CHECK(below == kNoNode || node(below).order <= at.order);
  int64_t count = CheckTree(at.left, parent, last) + 1;
  int32_t common = 0;
  KVASIR_CHECK(*last == kNoNode || Compare(tokens(*last), tree, &common) < 0);
  *last = tree;
  count += CheckTree(at.right, parent, last);
  return count;
}

void PrefixIndex::CheckIntegrity() const {
  int64_t present = 0;
  for (int32_t n = 0; n < capacity(); ++n) {
    const CacheNode& at = node(n);
    if (!at.present) continue;
    ++present;
    int32_t last = kNoNode;
    KVASIR_CHECK(CheckTree(at.child, n, &last) == at.children);
    KVASIR_CHECK(at.fill > 0 && at.ready <= at.fill && at.fill <= block_tokens_);
    KVASIR_CHECK(at.children == 0 || at.fill == block_tokens_);
    if (at.parent >= 0) {
      KVASIR_CHECK(node(at.parent).present && at.depth == node(at.parent).depth + 1);
      KVASIR_CHECK(at.space == node(at.parent).space);
    } else {
      KVASIR_CHECK(at.space == -1 - at.parent);
    }
    if (at.fill == block_tokens_) KVASIR_CHECK(at.chain == Chain(ChainSeed(at.parent), tokens(n)));
  }
  for (int32_t id = 0; id < spaces(); ++id) {
    int32_t last = kNoNode;
    KVASIR_CHECK(CheckTree(space(id).root, Top(id), &last) == space(id).nodes);
    KVASIR_CHECK(space(id).open == (space(id).nodes > 0 || space(id).users > 0));
  }
  KVASIR_CHECK(present == size_);
}

}  // namespace kvasir
