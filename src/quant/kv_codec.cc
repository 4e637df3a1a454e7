#include "quant/kv_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "quant/float16.h"

namespace kvasir {
namespace {

constexpr float kRound = 12582912.0F;  // 1.5 * 2^23
constexpr uint16_t kLargestHalf = 0x7BFF;
constexpr int kParts = 16;

// The largest magnitude as bits: NaN above infinity above all else.
uint32_t AbsMaxBits(const float* x, int n) {
  uint32_t most = 0;
  for (int i = 0; i < n; ++i) {
    most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  }
  return most;
}

float RoundEven(float x) {
  return (x + kRound) - kRound;
}

// f16 within +-65504.
uint16_t FiniteHalf(float f) {
  const uint16_t h = F32ToF16(f);
  return (h & 0x7FFFu) > kLargestHalf ? static_cast<uint16_t>((h & 0x8000u) | kLargestHalf) : h;
}

int NearestEntry(float y) {
  int code = 0;
  for (int i = 0; i < 15; ++i) {
    const float middle = static_cast<float>(kKvI4Table[i] + kKvI4Table[i + 1]) * 0.5F;
    code += y > middle ? 1 : 0;
  }
  return code;
}

// The codes under one scale and their square error.
float Try(const float* x, int n, float scale, uint8_t* codes) {
  const float inverse = scale == 0 ? 0.0F : 1.0F / scale;
  float parts[kParts] = {};
  for (int i = 0; i < n; ++i) {
    const int code = NearestEntry(x[i] * inverse);
    codes[i] = static_cast<uint8_t>(code);
    const float off = std::fma(-scale, static_cast<float>(kKvI4Table[code]), x[i]);
    parts[i % kParts] = std::fma(off, off, parts[i % kParts]);
  }
  for (int width = kParts / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  }
  return parts[0];
}

}  // namespace

uint16_t ScaleFor(float amax, float largest) {
  const uint16_t h = FiniteHalf(amax / largest);
  const bool low = amax > (largest + 0.5F) * F16ToF32(h) && h < kLargestHalf;
  return static_cast<uint16_t>(h + (low ? 1 : 0));
}

uint16_t EncodeI8(const float* x, int n, int8_t* codes) {
  const uint32_t most = AbsMaxBits(x, n);
  if (most >= 0x7F800000u) {
    std::memset(codes, 0, static_cast<size_t>(n));
    return kKvNanScale;
  }
  const uint16_t half = ScaleFor(std::bit_cast<float>(most), 127.0F);
  const float scale = F16ToF32(half);
  const float inverse = scale == 0 ? 0.0F : 1.0F / scale;
  for (int i = 0; i < n; ++i) {
    const float held = std::min(std::max(x[i] * inverse, -127.0F), 127.0F);
    codes[i] = static_cast<int8_t>(RoundEven(held));
  }
  return half;
}

uint16_t EncodeI4(const float* x, int n, uint8_t* codes) {
  const uint32_t most = AbsMaxBits(x, n);
  if (most >= 0x7F800000u) {
    std::memset(codes, 0, static_cast<size_t>(n));
    return kKvNanScale;
  }
  float m = 0;
  for (int i = n - 1; i >= 0; --i) {
    if ((std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu) == most) m = x[i];
  }
  uint16_t best = 0;
  float least = 0;
  for (const float a : kKvI4Tries) {
    uint8_t tried[32];
    const uint16_t half = FiniteHalf(m * a);
    const float error = Try(x, n, F16ToF32(half), tried);
    if (a != kKvI4Tries[0] && !(error < least)) continue;
    best = half;
    least = error;
    std::memcpy(codes, tried, static_cast<size_t>(n));
  }
  return best;
}

uint16_t EncodeE4M3(const float* x, int n, uint8_t* codes) {
  const uint32_t most = AbsMaxBits(x, n);
  if (most >= 0x7F800000u) {
    std::memset(codes, 0, static_cast<size_t>(n));
    return kKvNanScale;
  }
  const uint16_t half = ScaleFor(std::bit_cast<float>(most), 448.0F);
  const float scale = F16ToF32(half);
  const float inverse = scale == 0 ? 0.0F : 1.0F / scale;
  for (int i = 0; i < n; ++i) codes[i] = F32ToE4M3(x[i] * inverse);
  return half;
}

uint8_t F32ToE4M3(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 448 and more
  if (magnitude < 0x3C800000u) {  // below 2^-6: round in units of 2^-9
    const float scaled = std::bit_cast<float>(magnitude) + 16384.0F;  // whose ulp is 2^-9
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x3C000000u) >> 20));
}

float E4M3ToF32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t rest = code & 0x7Fu;
  if (rest == 0x7Fu) return std::bit_cast<float>(sign | 0x7FC00000u);
  // As a float with the exponent of its own bits the value is 2^-120 times too small, exactly.
  return std::bit_cast<float>(sign | (rest << 20)) * 0x1p120F;
}

uint8_t F32ToE5M2(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x47700000u) return static_cast<uint8_t>(sign | 0x7Cu);  // 61440 and more
  if (magnitude < 0x38800000u) {  // below 2^-14: round in units of 2^-16
    const float scaled = std::bit_cast<float>(magnitude) + 128.0F;  // whose ulp is 2^-16
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x43000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFFFu + ((magnitude >> 21) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x38000000u) >> 21));
}

float E5M2ToF32(uint8_t code) {
  return F16ToF32(static_cast<uint16_t>(code << 8));
}

}  // namespace kvasir
