// How many blocks the pool gets: what was asked for, or a share of free memory.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace kvasir {

struct PoolRequest {
  uint64_t kv_bytes = 0;  // --kv-mem; 0: automatic
  int64_t kv_blocks = 0;  // --kv-blocks; wins if > 0
  uint64_t free_bytes = 0;
  uint64_t block_bytes = 0;
  int64_t most_tokens = 0;  // automatic: no more than all seats can use
  int32_t block_tokens = 16;
};

// At least one block. kOutOfMemory says what would fit.
Result<int32_t> PoolBlocks(const PoolRequest& request);

}  // namespace kvasir
