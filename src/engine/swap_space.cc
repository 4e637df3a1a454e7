#include "engine/swap_space.h"

#include <algorithm>

#include "base/units.h"

namespace kvasir {

Result<std::unique_ptr<SwapSpace>> SwapSpace::Make(uint64_t bytes, size_t block_bytes) {
  std::unique_ptr<SwapSpace> space(new SwapSpace());
  space->block_bytes_ = block_bytes;
  space->slots_ = static_cast<int32_t>(std::min<uint64_t>(bytes / block_bytes, INT32_MAX / 2));
  if (space->slots_ == 0) return space;
  space->buffer_ = BigBuffer::Allocate(static_cast<size_t>(space->slots_) * block_bytes);
  if (!space->buffer_)
    return OutOfMemory("cannot allocate a swap space of " + FormatSize(bytes) + " (--swap-space)");
  return space;
}

uint64_t AutomaticSwapBytes(uint64_t pool_bytes) {
  return std::min<uint64_t>(pool_bytes / 4, uint64_t{1} << 30);
}

}  // namespace kvasir
