// SwapSpace: host memory outside the pool for the blocks of preempted sequences. Which slot holds
// what is KvCache's business; here are the bytes. Pages are taken by the system when first written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "env/machine.h"

namespace kvasir {

class SwapSpace {
 public:
  // As many slots of block_bytes as fit into bytes; fewer than one: none. kOutOfMemory if the
  // address space cannot be had.
  static Result<std::unique_ptr<SwapSpace>> Make(uint64_t bytes, size_t block_bytes);

  int32_t slots() const { return slots_; }
  std::byte* slot(int32_t index) {
    return buffer_.data() + static_cast<size_t>(index) * block_bytes_;
  }

 private:
  SwapSpace() = default;
  int32_t slots_ = 0;
  size_t block_bytes_ = 0;
  BigBuffer buffer_;
};

// --swap-space 0: a quarter of the pool, at most 1 GiB.
uint64_t AutomaticSwapBytes(uint64_t pool_bytes);

}  // namespace kvasir
