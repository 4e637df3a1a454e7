// What a value becomes in i8, i4 and fp8: the plain reference that the kernels equal bit for bit
// (except inside NaN). Rounding is to nearest even throughout; codes are computed with the scale as
// it is stored, so nothing is lost by rounding the scale to f16.
//
//   i8  scale = f16(amax / 127), one step up if amax > 127.5 scale (subnormal scales only), at most
//       65504; code = round(x * (1 / scale)), held within -127..127. Value: code * scale.
//   i4  per group of at most 32 values, m the value of largest magnitude (the first of equals):
//   each
//       scale f16(m * a) for a of kKvI4Tries, within +-65504, is tried, and the first with the
//       smallest square error taken (summed in 16 parts, values i and i + 16 in part i, folded 8,
//       4, 2, 1); code = the entry of kKvI4Table nearest to x * (1 / scale), the lower of two.
//       Value: kKvI4Table[code] * scale. The table is the one with the least square error for
//       normal values under this very search (found by alternating the two, then rounded to
//       integers).
//   fp8_e4m3  scale = f16(amax / 448) as for i8, code = E4M3(x * (1 / scale)). Without a scale the
//       small values of V would fall among E4M3's subnormals (below 2^-6): four to five times the
//       error.
//   fp8_e5m2  E5M2(x), no scale: two bits fewer of fraction, the range of f16.
//
// A scale of 0 (all values below half the smallest scale) gives codes 0 and values 0. A group that
// holds NaN or infinity gets scale NaN and codes 0: every value of it is NaN and nothing else is.
#pragma once

#include <cstdint>

namespace kvasir {

inline constexpr int8_t kKvI4Table[16] = {-127, -103, -82, -65, -49, -36, -22, -10,
                                          2,    14,   26,  39,  52,  67,  85,  110};
inline constexpr float kKvI4Tries[5] = {-1.0F / 127, -1.0F / 117, -1.0F / 108, -1.0F / 138,
                                        1.0F / 112};
inline constexpr uint16_t kKvNanScale = 0x7E00;

// Codes of n values; returns the scale as f16 bits.
uint16_t EncodeI8(const float* x, int n, int8_t* codes);
uint16_t EncodeI4(const float* x, int n, uint8_t* codes);  // n <= 32; codes 0..15
uint16_t EncodeE4M3(const float* x, int n, uint8_t* codes);

uint8_t F32ToE4M3(float f);  // OCP E4M3: overflow to the largest finite, 448; NaN 0x7F
float E4M3ToF32(uint8_t code);
uint8_t F32ToE5M2(float f);  // overflow to infinity, NaN 0x7F: the upper byte of f16
float E5M2ToF32(uint8_t code);

// The scale steps above, for the kernels.
uint16_t ScaleFor(float amax, float largest);  // of i8 (127) and e4m3 (448); amax finite

}  // namespace kvasir
