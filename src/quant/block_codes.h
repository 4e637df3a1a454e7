// One block of a quantised weight row taken apart into whole numbers, without rounding: what the
// reference decoder and the kernels' packing share. Block layouts: ggml's public headers
// (ggml-common.h), summarised beside each decoder.
//
// The value of element i, with c = codes[i] as the file stores it (unsigned) and s = i / 32:
//   Q4_0  d * (c - 8)      Q5_0  d * (c - 16)     Q8_0  d * (c - 128)
//   Q4_1, Q5_1             d * c + m
//   Q4_K, Q5_K             (d * scales[s]) * c - m * mins[s]
//   Q6_K                   (d * int8(scales[i / 16])) * (c - 32)
// d and m are f16. d times a 6-bit or signed 8-bit scale has at most 19 significant bits: exact in
// f32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/weight_type.h"

namespace kvasir {

struct BlockCodes {
  uint8_t codes[256];  // 32 or 256 of them
  uint16_t d = 0;      // f16 bits
  uint16_t m = 0;      // f16 bits; the K types' dmin
  uint8_t scales[16];  // K types: 8, Q6_K: 16 (int8 bits)
  uint8_t mins[8];     // Q4_K, Q5_K
};

// How the codes of a type are to be read.
struct CodeRules {
  int bits;         // largest code + 1 = 1 << bits; 8 at most
  int zero;         // subtracted from a code
  bool has_min;     // m is used
  bool has_scales;  // scales is used: blocks of 256
};

bool IsFloatType(WeightType type);
// For the types that have codes (not float).
CodeRules GetCodeRules(WeightType type);
void DecodeBlock(WeightType type, const std::byte* block, BlockCodes& out);

}  // namespace kvasir
