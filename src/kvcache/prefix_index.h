// PrefixIndex: a radix tree over token ids whose nodes are blocks. Exact: token ids are compared,
// no hash decides anything.
//
// Children of a node (and the tops of a namespace) are a treap ordered by their tokens,
// lexicographically, a prefix before what it begins. One descent finds the equal child and, on the
// same path, one with the longest common prefix (the query's neighbours in the order both lie on
// it). Expected O(log children) comparisons a level; heap order is a seeded hash of a counter. A
// node whose key is shorter than a block (a tail) has no children; two siblings never have equal
// keys.
//
// Not thread-safe. Memory is taken at start: capacity nodes and their tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "kvcache/cache_node.h"

namespace kvasir {

class PrefixIndex {
 public:
  // seed: of the heap order; known to nobody outside, so that no request can steer the trees.
  PrefixIndex(int32_t capacity, int32_t block_tokens, uint64_t seed = 0);

  // ---- Namespaces. `key` identifies one; it lives while it has users or nodes.
  struct Space {
    std::string key;
    int32_t root = kNoNode;
    int32_t nodes = 0;
    int32_t users = 0;
    int32_t owner = -1;  // KvCache's
    uint64_t seed = 0;   // of the chain hashes
    bool open = false;
  };
  // Adds a user. *fresh: it was not there (then set owner and seed).
  int32_t Open(std::string_view key, bool* fresh);
  void Close(int32_t space);  // one user less
  Space& space(int32_t id) { return spaces_[static_cast<size_t>(id)]; }
  const Space& space(int32_t id) const { return spaces_[static_cast<size_t>(id)]; }
  int32_t spaces() const { return static_cast<int32_t>(spaces_.size()); }
  // True if the namespace is neither used nor filled any more: its number may be given anew.
  bool Dead(int32_t space) const;

  // ---- Nodes
  static int32_t Top(int32_t space) { return -1 - space; }  // as a parent
  struct Found {
    int32_t equal = kNoNode;  // key == the query
    int32_t best = kNoNode;   // most tokens in common that are written
    int32_t best_tokens = 0;
    int32_t longest = kNoNode;  // most tokens in common, written or being computed
    int32_t longest_tokens = 0;
  };
  Found Find(int32_t parent, std::span<const TokenId> query) const;

  // The node is not present; no sibling has these tokens. `ready` of them are written.
  void Insert(int32_t node, int32_t parent, std::span<const TokenId> tokens, int32_t ready,
              int64_t tick);
  // A longer or shorter key for a node without children; no sibling has it.
  void Rekey(int32_t node, std::span<const TokenId> tokens);
  void Remove(int32_t node);                // has no children
  int32_t Predecessor(int32_t node) const;  // the sibling before it, kNoNode if it is first
  // Is a's key a beginning of b's?
  bool Begins(int32_t a, int32_t b) const;

  std::span<const TokenId> tokens(int32_t node) const;
  CacheNode& node(int32_t n) { return nodes_[static_cast<size_t>(n)]; }
  const CacheNode& node(int32_t n) const { return nodes_[static_cast<size_t>(n)]; }
  CacheNode* data() { return nodes_.data(); }
  int32_t capacity() const { return static_cast<int32_t>(nodes_.size()); }
  int32_t size() const { return size_; }
  int32_t block_tokens() const { return block_tokens_; }
  uint64_t ChainSeed(int32_t parent) const;  // chain of the parent, or its namespace's seed
  static uint64_t Chain(uint64_t before, std::span<const TokenId> tokens);
  size_t bytes() const;         // without token ids
  void CheckIntegrity() const;  // O(nodes): order, heap, counts, links; CHECKs

 private:
  int32_t& Root(int32_t parent);
  int32_t Root(int32_t parent) const;
  int Compare(std::span<const TokenId> query, int32_t node, int32_t* common) const;
  void Split(int32_t tree, std::span<const TokenId> key, int32_t* less, int32_t* more);
  int32_t Merge(int32_t less, int32_t more);
  void Link(int32_t node);
  void Unlink(int32_t node);
  int64_t CheckTree(int32_t tree, int32_t parent, int32_t* last) const;

  int32_t block_tokens_;
  std::vector<CacheNode> nodes_;
  std::vector<TokenId> tokens_;
  int32_t size_ = 0;
  uint64_t inserted_ = 0;
  std::vector<Space> spaces_;
  std::vector<int32_t> free_spaces_;
  uint64_t seed_;
  std::map<std::string, int32_t, std::less<>> by_key_;
};

}  // namespace kvasir
