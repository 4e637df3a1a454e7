// For tests: a paged KV cache of its own, without pool and engine. Blocks of all sequences are
// scattered over one arena whose bytes start as NaN patterns, so reading a slot that was never
// written shows.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/hash.h"
#include "kernels/attention.h"
#include "model/model_config.h"
#include "quant/kv_type_spec.h"

namespace kvasir::testing {

class PagedCache {
 public:
  PagedCache(const ModelConfig& config, KvPair types, int block_tokens, int sequences,
             int max_tokens, uint64_t seed = 1) {
    size_t stride = 0;
    const auto take = [&](const KvPlane& plane) {
      const size_t at = stride;
      stride += plane.head() * static_cast<size_t>(config.kv_heads);
      stride = (stride + 63) / 64 * 64;
      return at;
    };
    for (int layer = 0; layer < config.layers; ++layer) {
      PagedKv kv;
      kv.k_offset = take(KvKeyPlane(types.k, block_tokens, config.k_dim));
      kv.v_offset = take(KvValuePlane(types.v, block_tokens, config.v_dim));
      kv.block_tokens = block_tokens;
      kv.kv_heads = config.kv_heads;
      kv.k_dim = config.k_dim;
      kv.v_dim = config.v_dim;
      kv.k_type = types.k;
      kv.v_type = types.v;
      layers_.push_back(kv);
    }
    blocks_ = (max_tokens + block_tokens - 1) / block_tokens;
    table_.resize(static_cast<size_t>(blocks_ * sequences));
    std::iota(table_.begin(), table_.end(), 0);
    Rng rng(seed);
    for (size_t i = table_.size(); i > 1; --i) std::swap(table_[i - 1], table_[rng.Below(i)]);
    bytes_.assign(stride * table_.size() + 64, std::byte{0xFF});
    auto* base = bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
    for (PagedKv& kv : layers_) {
      kv.base = base;
      kv.block_stride = stride;
    }
  }
  PagedCache(const PagedCache&) = delete;

  std::span<const PagedKv> layers() const { return layers_; }
  const int32_t* table(int sequence) const {
    return table_.data() + static_cast<size_t>(sequence * blocks_);
  }

 private:
  std::vector<PagedKv> layers_;
  std::vector<int32_t> table_;
  std::vector<std::byte> bytes_;
  int blocks_ = 0;
};

}  // namespace kvasir::testing
