// Number formats of the KV cache, and how a tile of them lies in memory.
//
// A block of B tokens holds, for each layer, the K of its B tokens and then the V of its B tokens.
// Inside:
//
//   K of one head:  B / T tiles of T = min(B, 16) tokens, a tile being [k_dim][T]: the T values of
//   one channel are
//                   neighbours, so a vector lane is a token and a dot product needs no horizontal
//                   sum.
//   V of one head:  [B][v_dim]: the channels of one token are neighbours.
//   Heads one after the other. For f32, f16 and bf16 there are no scales. All in native
//   (little-endian) byte order.
//
// Formats that carry scales (i8, i4, fp8) are named here and refused by KvTypeServed until they
// have kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvasir {

enum class KvType : uint8_t { kF32, kF16, kBf16, kI8, kI4, kFp8E4M3, kFp8E5M2 };

std::string_view KvTypeName(KvType type);  // "f32" "f16" "bf16" "i8" "i4" "fp8_e4m3" "fp8_e5m2"
Result<KvType> ParseKvType(std::string_view name,
                           std::string_view field);  // also q8_0, q4_0, fp8; lists what is known
bool KvTypeServed(KvType type);                      // are there kernels for it
std::string KvTypesServedList();                     // "f32, f16, bf16"
size_t KvElementBits(KvType type);

inline constexpr int kKvTileTokens = 16;

// Index (in elements) of K channel `channel` of token `token` (0 <= token < block_tokens) inside
// one head's K.
inline size_t KvKeyIndex(int block_tokens, int k_dim, int token, int channel) {
  const int t = block_tokens < kKvTileTokens ? block_tokens : kKvTileTokens;
  return static_cast<size_t>(token / t) * static_cast<size_t>(k_dim) * static_cast<size_t>(t) +
         static_cast<size_t>(channel) * static_cast<size_t>(t) + static_cast<size_t>(token % t);
}
// The same for V.
inline size_t KvValueIndex(int v_dim, int token, int channel) {
  return static_cast<size_t>(token) * static_cast<size_t>(v_dim) + static_cast<size_t>(channel);
}

}  // namespace kvasir
