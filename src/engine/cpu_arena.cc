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

std::byte* CpuArena::At(BlockId block) {
  KVASIR_CHECK(block.value >= 0 && block.value < blocks_);
  return buffer_.data() + static_cast<size_t>(block.value) * layout_.block_bytes();
}

void CpuArena::CopyBlock(BlockId from, BlockId to) {
  KVASIR_CHECK(from != to);
  std::memcpy(At(to), At(from), layout_.block_bytes());
}

void CpuArena::Export(BlockId from, std::byte* to) {
  std::memcpy(to, At(from), layout_.block_bytes());
}

void CpuArena::Import(const std::byte* from, BlockId to) {
  std::memcpy(At(to), from, layout_.block_bytes());
}

}  // namespace kvasir
