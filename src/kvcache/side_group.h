// SideGroup: the blocks of a windowed or chunked group as the index sees them: at most one per
// node. Unheld ones have an order of their own (least recently released first): losing one costs a
// hit that ends there, not the node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache/cache_node.h"

namespace kvasir {

class SideGroup {
 public:
  SideGroup(int32_t nodes, int32_t blocks)
      : block_of_(static_cast<size_t>(nodes), -1), entries_(static_cast<size_t>(blocks)) {}

  int32_t BlockOf(int32_t node) const { return block_of_[static_cast<size_t>(node)]; }
  int32_t NodeOf(int32_t block) const { return entries_[static_cast<size_t>(block)].node; }
  void Attach(int32_t node, int32_t block);  // neither has a partner
  void Detach(int32_t block);                // not listed

  // Unheld and unpinned blocks.
  void List(int32_t block);  // last to go
  void Unlist(int32_t block);
  bool Listed(int32_t block) const { return entries_[static_cast<size_t>(block)].listed; }
  int32_t oldest() const { return head_; }  // -1: none
  int32_t listed() const { return listed_; }
  size_t bytes() const;
  void CheckIntegrity() const;

 private:
  struct Entry {
    int32_t node = kNoNode;
    int32_t prev = -1, next = -1;
    bool listed = false;
  };
  Entry& At(int32_t block) { return entries_[static_cast<size_t>(block)]; }

  std::vector<int32_t> block_of_;
  std::vector<Entry> entries_;
  int32_t head_ = -1, tail_ = -1;
  int32_t listed_ = 0;
};

}  // namespace kvasir
