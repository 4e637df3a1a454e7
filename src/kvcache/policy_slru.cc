#include "kvcache/policy_slru.h"

namespace kvasir {

void SlruPolicy::Add(int32_t node) {
  CacheNode& n = nodes_[static_cast<size_t>(node)];
  n.queue = n.hits > 0 ? kProtected : kProbation;
  (n.hits > 0 ? protected_ : probation_).PushBack(node);
  if (protected_.size() > limit_) {
    const int32_t demoted = protected_.front();
    protected_.Erase(demoted);
    nodes_[static_cast<size_t>(demoted)].queue = kProbation;
    probation_.PushBack(demoted);
  }
}

void SlruPolicy::Remove(int32_t node) {
  const bool kept = nodes_[static_cast<size_t>(node)].queue == kProtected;
  (kept ? protected_ : probation_).Erase(node);
}

int32_t SlruPolicy::Victim() {
  for (const NodeList* list : {&probation_, &protected_}) {
    const int32_t leaf = FirstLeaf(nodes_, *list);
    if (leaf != kNoNode) return leaf;
  }
  return probation_.front() != kNoNode ? LeafBelow(nodes_, probation_.front())
                                       : LeafBelow(nodes_, protected_.front());
}

}  // namespace kvasir
