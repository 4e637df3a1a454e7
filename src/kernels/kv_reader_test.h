// For tests: one element of a block of the cache in any format, read the slow way.
#pragma once

#include <cstring>

#include "kernels/attention.h"
#include "quant/float16.h"
#include "quant/kv_codec.h"

namespace kvasir {

// A plane's format and place.
struct PlaneReader {
  KvType type;
  KvPlane plane;
  const std::byte* at;  // of head 0 in one block
  int heads;
  int block_tokens;

  float Scale(int head, int channel, int in_block) const {
    if (plane.scales == 0) return 1.0F;
    const int group = type == KvType::kI4 ? channel / kKvI4Group : 0;
    const auto index = static_cast<size_t>(group * block_tokens + in_block);
    uint16_t h;
    std::memcpy(&h,
                at + static_cast<size_t>(heads) * plane.codes +
                    static_cast<size_t>(head) * plane.scales + index * sizeof(h),
                sizeof(h));
    return F16ToF32(h);
  }
  const std::byte* Codes(int head) const { return at + static_cast<size_t>(head) * plane.codes; }
  float Element(int head, size_t index) const {
    const std::byte* codes = Codes(head);
    if (type == KvType::kF32) {
      float f;
      std::memcpy(&f, codes + index * 4, 4);
      return f;
    }
    if (type == KvType::kFp8E4M3) return E4M3ToF32(std::to_integer<uint8_t>(codes[index]));
    if (type == KvType::kFp8E5M2) return E5M2ToF32(std::to_integer<uint8_t>(codes[index]));
    uint16_t h;
    std::memcpy(&h, codes + index * 2, 2);
    return type == KvType::kF16 ? F16ToF32(h) : Bf16ToF32(h);
  }
  // offset: 128 where codes are stored with it.
  float Code(int head, KvCodePlace place, int offset) const {
    const auto byte = std::to_integer<uint8_t>(Codes(head)[place.byte]);
    if (type == KvType::kI4) return kKvI4Table[place.high ? byte >> 4 : byte & 15];
    return offset != 0 ? static_cast<float>(byte - offset)
                       : static_cast<float>(static_cast<int8_t>(byte));
  }
};

inline PlaneReader KeyPlaneOf(const PagedKv& kv, const std::byte* block) {
  return {kv.k_type, KvKeyPlane(kv.k_type, kv.block_tokens, kv.k_dim), block + kv.k_offset,
          kv.kv_heads, kv.block_tokens};
}
inline PlaneReader ValuePlaneOf(const PagedKv& kv, const std::byte* block) {
  return {kv.v_type, KvValuePlane(kv.v_type, kv.block_tokens, kv.v_dim), block + kv.v_offset,
          kv.kv_heads, kv.block_tokens};
}

inline float ReadKey(const PagedKv& kv, const std::byte* block, int in_block, int head,
                     int channel) {
  const PlaneReader plane = KeyPlaneOf(kv, block);
  const float value =
      KvTypeIsInteger(kv.k_type)
          ? plane.Code(head, KvKeyCode(kv.k_type, kv.block_tokens, kv.k_dim, in_block, channel),
                       128)
          : plane.Element(head, KvKeyIndex(kv.block_tokens, kv.k_dim, in_block, channel));
  return value * plane.Scale(head, channel, in_block);
}
inline float ReadValue(const PagedKv& kv, const std::byte* block, int in_block, int head,
                       int channel) {
  const PlaneReader plane = ValuePlaneOf(kv, block);
  const float value = KvTypeIsInteger(kv.v_type)
                          ? plane.Code(head, KvValueCode(kv.v_type, kv.v_dim, in_block, channel), 0)
                          : plane.Element(head, KvValueIndex(kv.v_dim, in_block, channel));
  return value * plane.Scale(head, channel, in_block);
}
inline float ReadValueScale(const PagedKv& kv, const std::byte* block, int in_block, int head,
                            int channel) {
  return ValuePlaneOf(kv, block).Scale(head, channel, in_block);
}

}  // namespace kvasir
