#include "kernels/attention_fp8.h"

#include <bit>
#include <cstring>

#include "quant/float16.h"

namespace kvasir::internal {
namespace {

// As E4M3ToF32 and E5M2ToF32 (quant/kv_codec.h), in a form that compilers turn into vectors.
template <KvType kType>
inline float Decode(uint8_t code) {
  constexpr bool kFour = kType == KvType::kFp8E4M3;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t rest = code & 0x7Fu;
  const float finite =
      std::bit_cast<float>(sign | rest << (kFour ? 20 : 21)) * (kFour ? 0x1p120F : 0x1p112F);
  const uint32_t special = sign | 0x7F800000u | (rest & 3u) << 21;
  return rest >= (kFour ? 0x7Fu : 0x7Cu) ? std::bit_cast<float>(special) : finite;
}

// Tokens of a row of `n` values beside each other: K of one channel, kTile tokens.
template <KvType kType, int kTile>
void WidenTile(const uint8_t* codes, const float* scales, int channels, float* out) {
  for (int c = 0; c < channels; ++c, codes += kTile, out += kTile) {
    for (int t = 0; t < kTile; ++t) out[t] = Decode<kType>(codes[t]) * scales[t];
  }
}

template <KvType kType>
void WidenKeys(const std::byte* block, const float* scales, int tokens, int dim, float* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(block);
  const int tile = KvTile(tokens);
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
    for (int c = 0; c < dim; ++c) out[c] = Decode<kType>(codes[c]) * scale;
  }
}

void LoadScales(KvType type, const std::byte* at, int tokens, float* scales) {
  for (int t = 0; t < tokens; ++t) {
    scales[t] = 1.0F;
    if (type != KvType::kFp8E4M3) continue;
    uint16_t h;
    std::memcpy(&h, at + static_cast<size_t>(t) * sizeof(h), sizeof(h));
    scales[t] = F16ToF32(h);
  }
}

}  // namespace

void WidenSpan(const PagedKv& kv, SpanRows& in, float* scratch) {
  float scales[kAttentionSpan];
  const int tokens = kv.block_tokens;
  const size_t k_floats = static_cast<size_t>(tokens) * static_cast<size_t>(kv.k_dim);
  const size_t v_floats = static_cast<size_t>(tokens) * static_cast<size_t>(kv.v_dim);
  for (int i = 0; i < in.blocks && IsFp8(kv.k_type); ++i, scratch += k_floats) {
    LoadScales(kv.k_type, in.k[i] + in.k_scales, tokens, scales);
    auto* widen =
        kv.k_type == KvType::kFp8E4M3 ? &WidenKeys<KvType::kFp8E4M3> : &WidenKeys<KvType::kFp8E5M2>;
    widen(in.k[i], scales, tokens, kv.k_dim, scratch);
    in.k[i] = in.k_ahead[i] = reinterpret_cast<const std::byte*>(scratch);
  }
  for (int i = 0; i < in.blocks && IsFp8(kv.v_type); ++i, scratch += v_floats) {
    LoadScales(kv.v_type, in.v[i] + in.v_scales, tokens, scales);
    auto* widen = kv.v_type == KvType::kFp8E4M3 ? &WidenValues<KvType::kFp8E4M3>
                                                : &WidenValues<KvType::kFp8E5M2>;
    widen(in.v[i], scales, tokens, kv.v_dim, scratch);
    in.v[i] = in.v_ahead[i] = reinterpret_cast<const std::byte*>(scratch);
  }
}

}  // namespace kvasir::internal
