// File blocks of the quantised types moved to their places in a packed tile (docs/kernels.md draws
// them), one row (lane) of one super-block at a time, in words instead of single codes: the file's
// nibbles are the tile's nibbles, reordered at most in whole bytes. File layouts:
// quant/block_codes.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/matmul_layout.h"

namespace kvasir::internal {

inline uint32_t Word(const uint8_t* p) {
  uint32_t v = 0;
  std::memcpy(&v, p, 4);
  return v;
}
inline void PutWord(uint8_t* p, uint32_t v) {
  std::memcpy(p, &v, 4);
}
inline void PutHalfWord(uint8_t* p, const uint8_t* from) {
  std::memcpy(p, from, 2);
}

// 16 bytes whose byte j holds codes j (low half) and j + 16 (high half), as Q4_0 to Q5_1 store
// them.
inline void PutNibbles(const uint8_t* qs, int lane, uint8_t* block) {
  for (int v = 0; v < 4; ++v) PutWord(block + 64 * v + 4 * lane, Word(qs + 4 * v));
}

// 32 bytes whose low halves are one block of 32 and whose high halves are another (K types).
inline void PutNibblePair(const uint8_t* qs, int lane, uint8_t* low, uint8_t* high) {
  for (int v = 0; v < 4; ++v) {
    const uint32_t a = Word(qs + 4 * v);
    const uint32_t b = Word(qs + 16 + 4 * v);
    PutWord(low + 64 * v + 4 * lane, (a & 0x0F0F0F0Fu) | ((b & 0x0F0F0F0Fu) << 4));
    PutWord(high + 64 * v + 4 * lane, ((a >> 4) & 0x0F0F0F0Fu) | (b & 0xF0F0F0F0u));
  }
}

// Bit 4 v + k of the file's word becomes bit v of byte k: two k at a time, each bit alone in a
// nibble, then pushed together.
inline uint32_t FifthBitsByLine(uint32_t bits) {
  const auto gather = [](uint64_t x) {
    x = (x | (x >> 3)) & 0x0303030303030303u;
    x = (x | (x >> 6)) & 0x000F000F000F000Fu;
    x = (x | (x >> 12)) & 0x000000FF000000FFu;
    return static_cast<uint32_t>(x | (x >> 24)) & 0xFFFFu;
  };
  const auto pair = [&](int k) {
    const uint64_t low = (bits >> k) & 0x11111111u;
    const uint64_t high = (bits >> (k + 1)) & 0x11111111u;
    return gather(low | (high << 32));
  };
  return pair(0) | (pair(2) << 16);
}

// 12 bytes of 6-bit scales and mins (the first four of each whole, of the others the low halves in
// bytes 8 to 11 and the top bits above the first four), each to a line of 16 rows.
inline void PutScalesAndMins(const uint8_t* p, int lane, uint8_t* scales) {
  const uint32_t a = Word(p);
  const uint32_t b = Word(p + 4);
  const uint32_t c = Word(p + 8);
  const uint32_t words[4] = {a & 0x3F3F3F3Fu, (c & 0x0F0F0F0Fu) | ((a >> 2) & 0x30303030u),
                             b & 0x3F3F3F3Fu, ((c >> 4) & 0x0F0F0F0Fu) | ((b >> 2) & 0x30303030u)};
  for (int i = 0; i < 16; ++i) {
    scales[16 * i + lane] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
}

inline void PackQ4K(const uint8_t* p, int lane, uint8_t* codes, uint8_t* scales) {
  constexpr int kBytes = TileFormatOf(WeightType::kQ4_K).code_bytes;
  for (int pair = 0; pair < 4; ++pair) {
    uint8_t* low = codes + 2 * pair * kBytes;
    PutNibblePair(p + 16 + 32 * pair, lane, low, low + kBytes);
  }
  PutScalesAndMins(p + 4, lane, scales);
}

inline void PackQ5K(const uint8_t* p, int lane, uint8_t* codes, uint8_t* scales) {
  constexpr int kBytes = TileFormatOf(WeightType::kQ5_K).code_bytes;
  uint32_t fifth[8] = {};
  for (int v = 0; v < 8; ++v) {
    const uint32_t bits = Word(p + 16 + 4 * v);  // bit s of each byte belongs to block s
    for (int s = 0; s < 8; ++s) fifth[s] |= ((bits >> s) & 0x01010101u) << v;
  }
  for (int pair = 0; pair < 4; ++pair) {
    uint8_t* low = codes + 2 * pair * kBytes;
    PutNibblePair(p + 48 + 32 * pair, lane, low, low + kBytes);
    PutWord(low + 256 + 4 * lane, fifth[2 * pair]);
    PutWord(low + kBytes + 256 + 4 * lane, fifth[2 * pair + 1]);
  }
  PutScalesAndMins(p + 4, lane, scales);
}

// Per half of 128 elements: block r of its four has the low halves (r < 2) or the high halves of 32
// bytes, and bits 2 r and 2 r + 1 of each of 32 others on top.
inline void PackQ6K(const uint8_t* p, int lane, uint8_t* codes, uint8_t* scales) {
  constexpr int kBytes = TileFormatOf(WeightType::kQ6_K).code_bytes;
  for (int half = 0; half < 2; ++half) {
    uint8_t* out = codes + 4 * half * kBytes;
    PutNibblePair(p + 64 * half, lane, out, out + 2 * kBytes);
    PutNibblePair(p + 64 * half + 32, lane, out + kBytes, out + 3 * kBytes);
    for (int g = 0; g < 2; ++g) {
      uint32_t top[4] = {};
      for (int u = 0; u < 4; ++u) {
        const uint32_t bits = Word(p + 128 + 32 * half + 16 * g + 4 * u);
        for (int r = 0; r < 4; ++r) top[r] |= ((bits >> (2 * r)) & 0x03030303u) << (2 * u);
      }
      for (int r = 0; r < 4; ++r) PutWord(out + r * kBytes + 256 + 64 * g + 4 * lane, top[r]);
    }
  }
  for (int s = 0; s < 16; ++s) scales[16 * s + lane] = p[192 + s];
  PutHalfWord(scales + 256 + 2 * lane, p + 208);
}

// d and m of a block, m also of the K types, whose sign is turned so that it is added.
template <WeightType kType>
void PackBlockScales(const uint8_t* p, int lane, uint8_t* scales) {
  constexpr TileFormat kFormat = TileFormatOf(kType);
  if constexpr (kType == WeightType::kQ6_K) return;
  constexpr int kAt = kFormat.super_blocks == 1 ? 0 : 256;
  PutHalfWord(scales + kAt + 2 * lane, p);
  if constexpr (kFormat.has_min) {
    uint16_t m = 0;
    std::memcpy(&m, p + 2, 2);
    if (kFormat.super_blocks == 8) m ^= 0x8000;
    std::memcpy(scales + kAt + 32 + 2 * lane, &m, 2);
  }
}

// One block of the file (32 or 256 codes) into lane `lane` of the tile's codes and scales.
template <WeightType kType>
void PackBlock(const uint8_t* p, int lane, uint8_t* codes, uint8_t* scales) {
  PackBlockScales<kType>(p, lane, scales);
  if constexpr (kType == WeightType::kQ4_0) {
    PutNibbles(p + 2, lane, codes);
  } else if constexpr (kType == WeightType::kQ4_1) {
    PutNibbles(p + 4, lane, codes);
  } else if constexpr (kType == WeightType::kQ5_0) {
    PutNibbles(p + 6, lane, codes);
    PutWord(codes + 256 + 4 * lane, FifthBitsByLine(Word(p + 2)));
  } else if constexpr (kType == WeightType::kQ5_1) {
    PutNibbles(p + 8, lane, codes);
    PutWord(codes + 256 + 4 * lane, FifthBitsByLine(Word(p + 4)));
  } else if constexpr (kType == WeightType::kQ8_0) {
    for (int v = 0; v < 8; ++v) {
      PutWord(codes + 64 * v + 4 * lane, Word(p + 2 + 4 * v) ^ 0x80808080u);
    }
  } else if constexpr (kType == WeightType::kQ4_K) {
    PackQ4K(p, lane, codes, scales);
  } else if constexpr (kType == WeightType::kQ5_K) {
    PackQ5K(p, lane, codes, scales);
  } else {
    PackQ6K(p, lane, codes, scales);
  }
}

}  // namespace kvasir::internal
