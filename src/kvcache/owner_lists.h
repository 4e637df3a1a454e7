// OwnerLists: how many cached blocks each owner (a tenant, or a salt without one) has, and its
// unheld ones in the order of their release, so that an owner above its quota can be made to evict
// its own. Links are in the nodes (owner_prev, owner_next).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/cache_node.h"

namespace kvasir {

class OwnerLists {
 public:
  explicit OwnerLists(CacheNode* nodes) : nodes_(nodes) {}

  struct Owner {
    std::string key;
    int64_t blocks = 0;  // in the index, held or not
    int32_t spaces = 0;  // namespaces of it; at zero it is forgotten
    int32_t head = kNoNode, tail = kNoNode;
  };
  int32_t Open(std::string_view key);  // one namespace more
  void Close(int32_t owner);
  Owner& at(int32_t owner) { return owners_[static_cast<size_t>(owner)]; }
  const Owner& at(int32_t owner) const { return owners_[static_cast<size_t>(owner)]; }
  int32_t size() const { return static_cast<int32_t>(owners_.size()); }
  int32_t with_blocks() const { return with_blocks_; }  // owners that have any

  void AddBlock(int32_t owner) { with_blocks_ += at(owner).blocks++ == 0 ? 1 : 0; }
  void DropBlock(int32_t owner) { with_blocks_ -= --at(owner).blocks == 0 ? 1 : 0; }
  void List(int32_t owner, int32_t node);
  void Unlist(int32_t owner, int32_t node);

 private:
  CacheNode& node(int32_t n) { return nodes_[n]; }
  CacheNode* nodes_;
  std::vector<Owner> owners_;
  std::vector<int32_t> free_;
  std::map<std::string, int32_t, std::less<>> by_key_;
  int32_t with_blocks_ = 0;
};

}  // namespace kvasir
