#include "engine/cpu_arena.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace kvasir {

CpuArena::CpuArena(KvLayout layout, int32_t blocks, BigBuffer buffer)
    : layout_(std::move(layout)), blocks_(blocks), buffer_(std::move(buffer)) {}

Result<std::unique_ptr<CpuArena>> CpuArena::Make(KvLayout layout, int32_t blocks) {
  KVASIR_CHECK(blocks > 0);
  const size_t bytes = layout.block_bytes() * static_cast<size_t>(blocks);
  BigBuffer buffer = BigBuffer::Allocate(bytes);
  if (!buffer) return OutOfMemory("cannot allocate a KV pool of " + FormatSize(bytes));
  return std::unique_ptr<CpuArena>(new CpuArena(std::move(layout), blocks, std::move(buffer)));
}

void CpuArena::CopyBlock(BlockId from, BlockId to) {
  KVASIR_CHECK(from.value >= 0 && from.value < blocks_ && to.value >= 0 && to.value < blocks_);
  KVASIR_CHECK(from != to);
  const size_t bytes = layout_.block_bytes();
  std::memcpy(buffer_.data() + static_cast<size_t>(to.value) * bytes,
              buffer_.data() + static_cast<size_t>(from.value) * bytes, bytes);
}

}  // namespace kvasir
