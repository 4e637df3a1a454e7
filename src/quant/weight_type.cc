#include "quant/weight_type.h"

#include <cstring>
#include <limits>

#include "base/check.h"
#include "quant/block_codes.h"
#include "quant/float16.h"

namespace kvasir {
namespace {

// In the order messages list them.
constexpr WeightTypeInfo kTypes[] = {
    {WeightType::kF32, "F32", 1, 4},       {WeightType::kF16, "F16", 1, 2},
    {WeightType::kBf16, "BF16", 1, 2},     {WeightType::kQ8_0, "Q8_0", 32, 34},
    {WeightType::kQ4_0, "Q4_0", 32, 18},   {WeightType::kQ4_1, "Q4_1", 32, 20},
    {WeightType::kQ5_0, "Q5_0", 32, 22},   {WeightType::kQ5_1, "Q5_1", 32, 24},
    {WeightType::kQ4_K, "Q4_K", 256, 144}, {WeightType::kQ5_K, "Q5_K", 256, 176},
    {WeightType::kQ6_K, "Q6_K", 256, 210},
};

// By number (ggml.h, enum ggml_type). 4, 5, 31 to 33 and 36 to 38 were used by files of old and are
// free now.
constexpr std::string_view kGgmlNames[] = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0",
};

void DequantizeFloats(WeightType type, const std::byte* row, std::span<float> out) {
  if (type == WeightType::kF32) {
    std::memcpy(out.data(), row, out.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, row + 2 * i, 2);
    out[i] = type == WeightType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
  }
}

// The order of roundings is that of the `gguf` Python package: scale times code, then the min.
void DequantizeBlock(WeightType type, const CodeRules& rules, const BlockCodes& block,
                     std::span<float> out) {
  const float d = F16ToF32(block.d);
  const float m = F16ToF32(block.m);
  for (size_t i = 0; i < out.size(); ++i) {
    float scale = d;
    float min = m;
    const auto sixteen = i / 16;
    const auto thirty_two = i / 32;
    if (type == WeightType::kQ6_K) {
      scale = d * static_cast<float>(static_cast<int8_t>(block.scales[sixteen]));
    } else if (rules.has_scales) {
      scale = d * static_cast<float>(block.scales[thirty_two]);
      min = -(m * static_cast<float>(block.mins[thirty_two]));
    }
    const float value = scale * static_cast<float>(block.codes[i] - rules.zero);
    out[i] = rules.has_min ? value + min : value;
  }
}

}  // namespace

const WeightTypeInfo* FindWeightType(uint32_t gguf_number) {
  for (const WeightTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == gguf_number) return &info;
  }
  return nullptr;
}

const WeightTypeInfo& GetWeightType(WeightType type) {
  const WeightTypeInfo* info = FindWeightType(static_cast<uint32_t>(type));
  KVASIR_CHECK(info != nullptr);
  return *info;
}

std::string_view GgmlTypeName(uint32_t gguf_number) {
  return gguf_number < std::size(kGgmlNames) ? kGgmlNames[gguf_number] : std::string_view();
}

std::string WeightTypesServedList() {
  std::string list;
  for (const WeightTypeInfo& info : kTypes) {
    if (!list.empty()) list += ", ";
    list += info.name;
  }
  return list;
}

std::optional<size_t> WeightRowBytes(WeightType type, int64_t columns) {
  const WeightTypeInfo& info = GetWeightType(type);
  if (columns < 0 || columns % info.block_elements != 0) return std::nullopt;
  const auto blocks = static_cast<uint64_t>(columns / info.block_elements);
  const auto block_bytes = static_cast<uint64_t>(info.block_bytes);
  if (blocks > std::numeric_limits<size_t>::max() / block_bytes) return std::nullopt;
  return static_cast<size_t>(blocks * block_bytes);
}

void DequantizeRow(WeightType type, const std::byte* row, std::span<float> out) {
  if (IsFloatType(type)) return DequantizeFloats(type, row, out);
  const WeightTypeInfo& info = GetWeightType(type);
  const CodeRules rules = GetCodeRules(type);
  const auto elements = static_cast<size_t>(info.block_elements);
  KVASIR_CHECK(out.size() % elements == 0);
  BlockCodes block;
  for (size_t first = 0; first < out.size(); first += elements) {
    DecodeBlock(type, row, block);
    DequantizeBlock(type, rules, block, out.subspan(first, elements));
    row += info.block_bytes;
  }
}

}  // namespace kvasir
