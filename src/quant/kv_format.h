// Number formats of the KV cache, and how a tile of them lies in memory. docs/kv-formats.md has the
// same in pictures, with what each format costs and keeps.
//
// A block of B tokens holds, for each layer, the K of its B tokens and then the V of its B tokens.
// K (and V) is a plane: the codes of head 0, of head 1, ...; then the scales of head 0, of head 1,
// ... T = min(B, 16). All in native (little-endian) byte order.
//
//   f32 f16 bf16  K [B / T][k_dim][T] elements: the T tokens of one channel are neighbours, so a
//                 vector lane is a token and a dot product needs no horizontal sum.
//                 V [B][v_dim]: the channels of one token are neighbours. No scales.
//   fp8_*         the same with one byte an element; e4m3 has one f16 scale per token and head.
//   i8            K [B / T][ceil(k_dim / 4)][T][4] bytes, code + 128: 64 bytes are 4 channels of 16
//                 tokens, what one vpdpbusd multiplies. V [B / 4][v_dim][4] bytes, signed: 64 bytes
//                 are 4 tokens of 16 channels. One f16 scale per token and head.
//   i4            K [B / T][ceil(k_dim / 8)][T][4] bytes: channels 8 l .. 8 l + 3 in the low
//   halves,
//                 8 l + 4 .. 8 l + 7 in the high ones. V [B / 4][groups of 32 channels][h][4]
//                 bytes, h half the group's channels: channel c of the group in the low halves if c
//                 < h, else in the high ones. So no byte is shared by two tokens. One f16 scale per
//                 token, head and group of 32 channels. A code names an entry of kKvI4Table.
//   scales        [head][group][B], f16; one group unless i4.
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
bool KvTypeServed(KvType type);                      // are there kernels for it in some pair
// Are there kernels for K in one format and V in the other. i8 and i4 are computed as integers:
// i8/i8, i8/i4, i4/i4 (K/V); the others mix freely among themselves.
bool KvPairServed(KvType k_type, KvType v_type);
std::string KvTypesServedList();    // "f32, f16, bf16, i8, ..."
std::string KvPairsServedList();    // one sentence for messages
bool KvTypeIsInteger(KvType type);  // i8, i4

inline constexpr int kKvTileTokens = 16;
inline constexpr int kKvI4Group = 32;  // channels that share a scale

// Bytes of one head's K or V in one block.
struct KvPlane {
  size_t codes = 0;   // bytes per head
  size_t scales = 0;  // bytes per head, after the codes of all heads
  size_t head() const { return codes + scales; }
};
KvPlane KvKeyPlane(KvType type, int block_tokens, int k_dim);
KvPlane KvValuePlane(KvType type, int block_tokens, int v_dim);
int KvScaleGroups(KvType type, int dim);  // scales per token and head: 0, 1, or ceil(dim / 32)
size_t KvElementBytes(KvType type);       // of f32, f16, bf16, fp8_*

inline int KvTile(int block_tokens) {
  return block_tokens < kKvTileTokens ? block_tokens : kKvTileTokens;
}
// Index (in elements) of K channel `channel` of token `token` (0 <= token < block_tokens) inside
// one head's K, for the formats with one element after the other.
inline size_t KvKeyIndex(int block_tokens, int k_dim, int token, int channel) {
  const int t = KvTile(block_tokens);
  return static_cast<size_t>(token / t) * static_cast<size_t>(k_dim) * static_cast<size_t>(t) +
         static_cast<size_t>(channel) * static_cast<size_t>(t) + static_cast<size_t>(token % t);
}
// The same for V.
inline size_t KvValueIndex(int v_dim, int token, int channel) {
  return static_cast<size_t>(token) * static_cast<size_t>(v_dim) + static_cast<size_t>(channel);
}
// The same for i8 and i4: the byte, and whether the code is its high half (i4).
struct KvCodePlace {
  size_t byte = 0;
  bool high = false;
};
KvCodePlace KvKeyCode(KvType type, int block_tokens, int k_dim, int token, int channel);
KvCodePlace KvValueCode(KvType type, int v_dim, int token, int channel);

}  // namespace kvasir
