// Converting fp8 to f32 in the compilers' own vectors of 16 lanes (GNU vector extensions); compiled
// once per instruction set. Every step is exact but the last product, so all give the same bits.
// Calls no function of a shared header. A file that includes this says how 16 bytes become words.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_fp8.h"

namespace kvasir::internal {
namespace {

using Words16 = uint32_t __attribute__((vector_size(64)));
using Floats16 = float __attribute__((vector_size(64)));

void LoadCodes(const uint8_t* codes, Words16& words);  // 16 bytes, each to a word

// As E4M3ToF32 and E5M2ToF32 (quant/kv_codec.h).
template <KvType kType>
[[gnu::always_inline]] inline float DecodeFp8(uint8_t code) {
  constexpr bool kFour = kType == KvType::kFp8E4M3;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t rest = code & 0x7Fu;
  const uint32_t bits = sign | rest << (kFour ? 20 : 21);
  const uint32_t special = sign | 0x7F800000u | (rest & 3u) << 21;
  const float finite = __builtin_bit_cast(float, bits) * (kFour ? 0x1p120F : 0x1p112F);
  return rest >= (kFour ? 0x7Fu : 0x7Cu) ? __builtin_bit_cast(float, special) : finite;
}

// 16 codes times 16 scales.
template <KvType kType>
[[gnu::always_inline]] inline void Widen16(const uint8_t* codes, const Floats16& scales,
                                           float* out) {
  constexpr bool kFour = kType == KvType::kFp8E4M3;
  Words16 code;
  LoadCodes(codes, code);
  const Words16 sign = (code & 0x80u) << 24;
  const Words16 rest = code & 0x7Fu;
  const Words16 bits = sign | rest << (kFour ? 20 : 21);
  const Words16 special = sign | 0x7F800000u | (rest & 3u) << 21;
  const auto finite = (Words16)((Floats16)bits * (kFour ? 0x1p120F : 0x1p112F));
  const auto is_special = (Words16)(rest >= (kFour ? 0x7Fu : 0x7Cu));  // all ones where it is
  const auto value = (Floats16)((special & is_special) | (finite & ~is_special));
  const Floats16 scaled = value * scales;
  __builtin_memcpy(out, &scaled, sizeof(scaled));
}

// K of a tile: kTile tokens of each channel.
template <KvType kType, int kTile>
void WidenTile(const uint8_t* codes, const float* scales, int channels, float* out) {
  constexpr int kChannels = 16 / kTile;  // of a vector
  Floats16 factors;
  for (int i = 0; i < 16; ++i) factors[i] = scales[i % kTile];
  int c = 0;
  for (; c + kChannels <= channels; c += kChannels, codes += 16, out += 16) {
    Widen16<kType>(codes, factors, out);
  }
  if (c < channels) {
    for (int t = 0; t < kTile; ++t) out[t] = DecodeFp8<kType>(codes[t]) * scales[t];
  }
}

template <KvType kType>
void WidenKeys(const std::byte* block, const float* scales, int tokens, int dim, float* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(block);
  const int tile = tokens < kKvTileTokens ? tokens : kKvTileTokens;
  for (int t = 0; t < tokens; t += tile) {
    const size_t at = static_cast<size_t>(t) * static_cast<size_t>(dim);
    if (tile == 16) {
      WidenTile<kType, 16>(codes + at, scales + t, dim, out + at);
    } else {
      WidenTile<kType, 8>(codes + at, scales + t, dim, out + at);
    }
  }
}

template <KvType kType>
void WidenValues(const std::byte* block, const float* scales, int tokens, int dim, float* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(block);
  for (int t = 0; t < tokens; ++t, codes += dim, out += dim) {
    const float scale = scales[t];
    const Floats16 factors = scale - Floats16{};
    int c = 0;
    for (; c + 16 <= dim; c += 16) Widen16<kType>(codes + c, factors, out + c);
    for (; c < dim; ++c) out[c] = DecodeFp8<kType>(codes[c]) * scale;
  }
}

constexpr Fp8Kernels kFp8Kernels = {
    {&WidenKeys<KvType::kFp8E4M3>, &WidenKeys<KvType::kFp8E5M2>},
    {&WidenValues<KvType::kFp8E4M3>, &WidenValues<KvType::kFp8E5M2>}};

}  // namespace
}  // namespace kvasir::internal
