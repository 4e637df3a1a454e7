// What one layer's cache holds, as numbers. The model's config fills one row per layer, the KV
// layout turns the rows into bytes; neither knows the other. A new architecture adds rows here, not
// branches elsewhere.
#pragma once

#include <cstdint>

namespace kvasir {

enum class LayerCacheKind : uint8_t {
  kFull,       // K and V of every token (MHA, GQA, MQA; widths may differ)
  kWindow,     // the same, only the last `window` tokens are ever read
  kChunked,    // the same, only tokens of the current chunk of `window` tokens are read
  kLatent,     // one row per token of k_dim elements, V is its first v_dim (MLA); kv_heads = 1
  kShared,     // no cache of its own: reads layer `shared_with`
  kRecurrent,  // a state of `state_bytes` per sequence, no bytes per token
};

struct LayerKv {
  LayerCacheKind kind = LayerCacheKind::kFull;
  int kv_heads = 0;
  int k_dim = 0;  // elements per head
  int v_dim = 0;
  int window = 0;        // tokens, for kWindow and kChunked
  int shared_with = -1;  // layer, for kShared
  int64_t state_bytes = 0;
};

}  // namespace kvasir
