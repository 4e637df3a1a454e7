// KvLayout: which bytes of a block belong to which layer. The one description that the pool, the
// tiers, the planner and the kernels read.
//
// A block is one contiguous range holding all layers of its tokens: layer 0's K, layer 0's V, layer
// 1's K, ... Each K and each V range starts at a multiple of 64 bytes, and so does each block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "quant/kv_format.h"
#include "quant/kv_spec.h"
#include "quant/kv_type_spec.h"

namespace kvasir {

struct LayerSlot {
  LayerKv spec;
  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  size_t k_offset = 0;  // bytes from the start of a block; for kShared those of the layer it reads
  size_t v_offset = 0;
  size_t k_bytes = 0;  // 0 if the layer owns no bytes
  size_t v_bytes = 0;
};

class KvLayout {
 public:
  // block_tokens: a power of two, 8 to 256. Refuses kinds and formats that have no kernels yet, by
  // name. types: one per layer.
  static Result<KvLayout> Make(std::span<const LayerKv> layers, int block_tokens,
                               std::span<const KvPair> types);
  static Result<KvLayout> Make(std::span<const LayerKv> layers, int block_tokens, KvType k_type,
                               KvType v_type);

  int block_tokens() const { return block_tokens_; }
  size_t block_bytes() const { return block_bytes_; }  // with padding
  double bytes_per_token() const {
    return bytes_per_token_;
  }  // without padding between ranges; scales count
  const std::vector<LayerSlot>& layers() const { return layers_; }
  std::string Describe() const;  // one line a group of equal layers, for `inspect`

 private:
  KvLayout() = default;
  int block_tokens_ = 0;
  size_t block_bytes_ = 0;
  double bytes_per_token_ = 0;
  std::vector<LayerSlot> layers_;
};

}  // namespace kvasir
