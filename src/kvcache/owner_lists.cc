#include "kvcache/owner_lists.h"

#include "base/check.h"

namespace kvasir {

int32_t OwnerLists::Open(std::string_view key) {
  const auto found = by_key_.find(key);
  if (found != by_key_.end()) {
    ++at(found->second).spaces;
    return found->second;
  }
  int32_t id = size();
  if (free_.empty()) {
    owners_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
    at(id) = Owner{};
  }
  at(id).key = std::string(key);
  at(id).spaces = 1;
  by_key_.emplace(std::string(key), id);
  return id;
}

void OwnerLists::Close(int32_t owner) {
  Owner& gone = at(owner);
  if (--gone.spaces > 0) return;
  KVASIR_CHECK(gone.blocks == 0 && gone.head == kNoNode);
  by_key_.erase(gone.key);
  gone.key.clear();
  free_.push_back(owner);
}

void OwnerLists::List(int32_t owner, int32_t n) {
  Owner& list = at(owner);
  node(n).owner_prev = list.tail;
  node(n).owner_next = kNoNode;
  (list.tail == kNoNode ? list.head : node(list.tail).owner_next) = n;
  list.tail = n;
}

void OwnerLists::Unlist(int32_t owner, int32_t n) {
  Owner& list = at(owner);
  const int32_t prev = node(n).owner_prev;
  const int32_t next = node(n).owner_next;
  (prev == kNoNode ? list.head : node(prev).owner_next) = next;
  (next == kNoNode ? list.tail : node(next).owner_prev) = prev;
}

}  // namespace kvasir
