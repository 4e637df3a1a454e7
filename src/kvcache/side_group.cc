#include "kvcache/side_group.h"

#include "base/check.h"

namespace kvasir {

void SideGroup::Attach(int32_t node, int32_t block) {
  KVASIR_CHECK(BlockOf(node) < 0 && NodeOf(block) == kNoNode);
  block_of_[static_cast<size_t>(node)] = block;
  At(block).node = node;
}

void SideGroup::Detach(int32_t block) {
  Entry& entry = At(block);
  KVASIR_CHECK(entry.node != kNoNode && !entry.listed);
  block_of_[static_cast<size_t>(entry.node)] = -1;
  entry.node = kNoNode;
}

void SideGroup::List(int32_t block) {
  Entry& entry = At(block);
  KVASIR_CHECK(!entry.listed && entry.node != kNoNode);
  entry.listed = true;
  entry.prev = tail_;
  entry.next = -1;
  (tail_ < 0 ? head_ : At(tail_).next) = block;
  tail_ = block;
  ++listed_;
}

void SideGroup::Unlist(int32_t block) {
  Entry& entry = At(block);
  KVASIR_CHECK(entry.listed);
  entry.listed = false;
  (entry.prev < 0 ? head_ : At(entry.prev).next) = entry.next;
  (entry.next < 0 ? tail_ : At(entry.next).prev) = entry.prev;
  --listed_;
}

size_t SideGroup::bytes() const {
  return entries_.size() * sizeof(Entry) + block_of_.size() * sizeof(int32_t);
}

void SideGroup::CheckIntegrity() const {
  int32_t walked = 0;
  int32_t before = -1;
  for (int32_t b = head_; b >= 0; b = entries_[static_cast<size_t>(b)].next) {
    const Entry& entry = entries_[static_cast<size_t>(b)];
    KVASIR_CHECK(entry.listed && entry.prev == before && entry.node != kNoNode);
    before = b;
    KVASIR_CHECK(++walked <= listed_);
  }
  KVASIR_CHECK(walked == listed_ && before == tail_);
  for (size_t b = 0; b < entries_.size(); ++b) {
    const int32_t node = entries_[b].node;
    KVASIR_CHECK(node == kNoNode || BlockOf(node) == static_cast<int32_t>(b));
  }
}

}  // namespace kvasir
