#include "quant/block_codes.h"

#include <cstring>

#include "base/check.h"

namespace kvasir {
namespace {

uint16_t LoadU16(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] | (p[1] << 8));
}

uint32_t LoadU32(const uint8_t* p) {
  return static_cast<uint32_t>(LoadU16(p)) | (static_cast<uint32_t>(LoadU16(p + 2)) << 16);
}

// 16 bytes: byte j holds element j in its low half and element j + 16 in its high half.
void Nibbles(const uint8_t* qs, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = qs[j] & 0xF;
    codes[j + 16] = static_cast<uint8_t>(qs[j] >> 4);
  }
}

// Bit i of a 32-bit word is the fifth bit of element i.
void FifthBits(uint32_t high, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] | (((high >> i) & 1u) << 4));
  }
}

// 12 bytes hold 8 scales and 8 mins of 6 bits: the first four of each in the low 6 bits of bytes
// 0..3 and 4..7; the other four have their low 4 bits in bytes 8..11 (scale low half, min high
// half) and their top 2 bits on top of bytes 0..7.
void ScalesAndMins(const uint8_t* p, BlockCodes& out) {
  for (int j = 0; j < 4; ++j) {
    out.scales[j] = p[j] & 63;
    out.mins[j] = p[j + 4] & 63;
    out.scales[j + 4] = static_cast<uint8_t>((p[j + 8] & 0xF) | ((p[j] >> 6) << 4));
    out.mins[j + 4] = static_cast<uint8_t>((p[j + 8] >> 4) | ((p[j + 4] >> 6) << 4));
  }
}

// 128 bytes: each 32 of them hold 32 elements in the low halves and the next 32 in the high halves.
void KNibbles(const uint8_t* qs, uint8_t* codes) {
  for (int pair = 0; pair < 4; ++pair) {
    for (int j = 0; j < 32; ++j) {
      codes[64 * pair + j] = qs[32 * pair + j] & 0xF;
      codes[64 * pair + 32 + j] = static_cast<uint8_t>(qs[32 * pair + j] >> 4);
    }
  }
}

// ql[128], qh[64], scales[16], d. Per half of 128 elements: 64 bytes of low nibbles (elements
// 0..63, then 64..127 in the high halves) and 32 bytes of top bits, two for each of the four runs
// of 32.
void DecodeQ6K(const uint8_t* p, BlockCodes& out) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = p + 64 * half;
    const uint8_t* high = p + 128 + 32 * half;
    uint8_t* codes = out.codes + 128 * half;
    for (int j = 0; j < 32; ++j) {
      const int h = high[j];
      codes[j] = static_cast<uint8_t>((low[j] & 0xF) | ((h & 3) << 4));
      codes[j + 32] = static_cast<uint8_t>((low[j + 32] & 0xF) | (((h >> 2) & 3) << 4));
      codes[j + 64] = static_cast<uint8_t>((low[j] >> 4) | (((h >> 4) & 3) << 4));
      codes[j + 96] = static_cast<uint8_t>((low[j + 32] >> 4) | ((h >> 6) << 4));
    }
  }
  std::memcpy(out.scales, p + 192, 16);
  out.d = LoadU16(p + 208);
}

}  // namespace

bool IsFloatType(WeightType type) {
  return type == WeightType::kF32 || type == WeightType::kF16 || type == WeightType::kBf16;
}

CodeRules GetCodeRules(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return {4, 8, false, false};
    case WeightType::kQ4_1:
      return {4, 0, true, false};
    case WeightType::kQ5_0:
      return {5, 16, false, false};
    case WeightType::kQ5_1:
      return {5, 0, true, false};
    case WeightType::kQ8_0:
      return {8, 128, false, false};
    case WeightType::kQ4_K:
      return {4, 0, true, true};
    case WeightType::kQ5_K:
      return {5, 0, true, true};
    case WeightType::kQ6_K:
      return {6, 32, false, true};
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16:
      break;
  }
  KVASIR_CHECK(false && "a float type has no codes");
  return {};
}

void DecodeBlock(WeightType type, const std::byte* block, BlockCodes& out) {
  const auto* p = reinterpret_cast<const uint8_t*>(block);
  out.d = LoadU16(p);
  switch (type) {
    case WeightType::kQ4_0:  // d, qs[16]
      return Nibbles(p + 2, out.codes);
    case WeightType::kQ4_1:  // d, m, qs[16]
      out.m = LoadU16(p + 2);
      return Nibbles(p + 4, out.codes);
    case WeightType::kQ5_0:  // d, qh[4], qs[16]
      Nibbles(p + 6, out.codes);
      return FifthBits(LoadU32(p + 2), out.codes);
    case WeightType::kQ5_1:  // d, m, qh[4], qs[16]
      out.m = LoadU16(p + 2);
      Nibbles(p + 8, out.codes);
      return FifthBits(LoadU32(p + 4), out.codes);
    case WeightType::kQ8_0:  // d, int8 qs[32]; here shifted to be unsigned
      for (int i = 0; i < 32; ++i) out.codes[i] = p[2 + i] ^ 0x80;
      return;
    case WeightType::kQ4_K:  // d, dmin, scales[12], qs[128]
      out.m = LoadU16(p + 2);
      ScalesAndMins(p + 4, out);
      return KNibbles(p + 16, out.codes);
    case WeightType::kQ5_K:  // d, dmin, scales[12], qh[32], qs[128]; bit s of qh[j] belongs to
                             // element 32 s + j
      out.m = LoadU16(p + 2);
      ScalesAndMins(p + 4, out);
      KNibbles(p + 48, out.codes);
      for (int i = 0; i < 256; ++i) {
        out.codes[i] =
            static_cast<uint8_t>(out.codes[i] | (((p[16 + i % 32] >> (i / 32)) & 1) << 4));
      }
      return;
    case WeightType::kQ6_K:
      return DecodeQ6K(p, out);
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16:
      break;
  }
  KVASIR_CHECK(false && "a float type has no blocks");
}

}  // namespace kvasir
