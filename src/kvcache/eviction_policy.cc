#include "kvcache/eviction_policy.h"

#include "base/check.h"
#include "kvcache/policy_cost.h"
#include "kvcache/policy_fifo.h"
#include "kvcache/policy_lru.h"
#include "kvcache/policy_s3fifo.h"
#include "kvcache/policy_slru.h"

namespace kvasir {

Result<std::unique_ptr<EvictionPolicy>> EvictionPolicy::Make(const std::string& name,
                                                             CacheNode* nodes, int32_t capacity) {
  KVASIR_CHECK(capacity >= 0);
  std::unique_ptr<EvictionPolicy> policy;
  if (name == "lru") policy = std::make_unique<LruPolicy>(nodes);
  if (name == "fifo") policy = std::make_unique<FifoPolicy>(nodes, capacity);
  if (name == "slru") policy = std::make_unique<SlruPolicy>(nodes, capacity);
  if (name == "s3fifo") policy = std::make_unique<S3FifoPolicy>(nodes, capacity);
  if (name == "cost") policy = std::make_unique<CostPolicy>(nodes, capacity);
  if (policy == nullptr) {
    return InvalidArgument(
        "no eviction policy \"" + name + "\"; there are: lru fifo slru s3fifo cost", "evict");
  }
  return policy;
}

}  // namespace kvasir
