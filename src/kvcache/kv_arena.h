// KvArena: where the bytes of blocks are. One of the five seams; a GPU would bring its own.
#pragma once

#include <cstddef>
#include <span>

#include "base/ids.h"
#include "kvcache/kv_layout.h"

namespace kvasir {

class KvArena {
 public:
  virtual ~KvArena() = default;
  virtual const KvLayout& layout() const = 0;
  virtual int32_t blocks() const = 0;
  virtual std::byte* base() = 0;  // block b starts at base() + b * layout().block_bytes()
  // Copies the whole block's bytes. Two different blocks.
  virtual void CopyBlock(BlockId from, BlockId to) = 0;
  // A block's bytes to and from host memory outside the pool: layout().block_bytes() of them.
  virtual void Export(BlockId from, std::byte* to) = 0;
  virtual void Import(const std::byte* from, BlockId to) = 0;
};

}  // namespace kvasir
