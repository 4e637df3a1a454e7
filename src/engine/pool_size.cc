#include "engine/pool_size.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/units.h"

namespace kvasir {

Result<int32_t> PoolBlocks(const PoolRequest& request) {
  KVASIR_CHECK(request.block_bytes > 0 && request.block_tokens > 0);
  constexpr uint64_t kMostBlocks = static_cast<uint64_t>(std::numeric_limits<int32_t>::max()) - 1;
  const uint64_t fit = request.free_bytes / request.block_bytes;
  const std::string block = "one block of " + std::to_string(request.block_tokens) +
                            " tokens takes " + FormatSize(request.block_bytes);
  if (request.kv_blocks < 0) {
    return InvalidArgument(
        "--kv-blocks is " + std::to_string(request.kv_blocks) + ", must be at least 1",
        "--kv-blocks");
  }
  if (request.kv_blocks > 0 || request.kv_bytes > 0) {
    const bool by_blocks = request.kv_blocks > 0;
    const uint64_t blocks = by_blocks ? static_cast<uint64_t>(request.kv_blocks)
                                      : request.kv_bytes / request.block_bytes;
    const std::string asked = by_blocks ? "--kv-blocks " + std::to_string(request.kv_blocks)
                                        : "--kv-mem " + FormatSize(request.kv_bytes);
    if (blocks == 0) return OutOfMemory(asked + " is too small: " + block);
    if (blocks > fit || blocks > kMostBlocks) {
      return OutOfMemory(
          asked + " does not fit: " + block + ", " + FormatSize(request.free_bytes) +
          " are free, at most " + std::to_string(std::min(fit, kMostBlocks)) + " blocks (" +
          FormatSize(std::min(fit, kMostBlocks) * request.block_bytes) + ") would fit");
    }
    return static_cast<int32_t>(blocks);
  }
  const uint64_t half = request.free_bytes / 2 / request.block_bytes;
  const uint64_t tokens = static_cast<uint64_t>(std::max<int64_t>(request.most_tokens, 1));
  const uint64_t block_tokens = static_cast<uint64_t>(request.block_tokens);
  const uint64_t useful = (tokens + block_tokens - 1) / block_tokens;
  const uint64_t blocks = std::min({half, useful, kMostBlocks});
  if (blocks == 0) {
    return OutOfMemory("no memory for the KV pool: " + block + ", half of the free memory is " +
                       FormatSize(request.free_bytes / 2));
  }
  return static_cast<int32_t>(blocks);
}

}  // namespace kvasir
