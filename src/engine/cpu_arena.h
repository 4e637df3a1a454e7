// CpuArena: the blocks' bytes in one big allocation of this process. Pages are taken by the system
// when first written.
#pragma once

#include <memory>

#include "base/status.h"
#include "env/machine.h"
#include "kvcache/kv_arena.h"

namespace kvasir {

class CpuArena final : public KvArena {
 public:
  // kOutOfMemory if the address space cannot be had.
  static Result<std::unique_ptr<CpuArena>> Make(KvLayout layout, int32_t blocks);

  const KvLayout& layout() const override { return layout_; }
  int32_t blocks() const override { return blocks_; }
  std::byte* base() override { return buffer_.data(); }
  void CopyBlock(BlockId from, BlockId to) override;
  void Export(BlockId from, std::byte* to) override;
  void Import(const std::byte* from, BlockId to) override;

 private:
  std::byte* At(BlockId block);
  CpuArena(KvLayout layout, int32_t blocks, BigBuffer buffer);
  KvLayout layout_;
  int32_t blocks_;
  BigBuffer buffer_;
};

}  // namespace kvasir
