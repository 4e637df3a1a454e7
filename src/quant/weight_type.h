// Number formats of weights as GGUF files hold them (block layouts: the GGUF specification and
// ggml's public headers).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvasir {

// Values are GGUF's own type numbers.
enum class WeightType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBf16 = 30,
};

struct WeightTypeInfo {
  WeightType type;
  const char* name;    // "Q4_K"
  int block_elements;  // 1 for floats, 32, or 256
  int block_bytes;
};

// Null for a number that is not served.
const WeightTypeInfo* FindWeightType(uint32_t gguf_number);
const WeightTypeInfo& GetWeightType(WeightType type);
// The name ggml gives any type number it has ("IQ2_XXS"), "" if none: for messages about what is
// not served.
std::string_view GgmlTypeName(uint32_t gguf_number);
std::string WeightTypesServedList();  // "F32, F16, BF16, Q8_0, ..."

// Bytes of a row of `columns` elements; nullopt if columns is not a multiple of the block.
std::optional<size_t> WeightRowBytes(WeightType type, int64_t columns);

// The plain reference decoder: `columns` floats from one row. The oracle of every packed kernel.
void DequantizeRow(WeightType type, const std::byte* row, std::span<float> out);

}  // namespace kvasir
