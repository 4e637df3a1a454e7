// For tests: writes small GGUF files (v3, little-endian) into memory or onto disk, and
// random-weight llama models of a chosen shape and weight type. Nothing here is used by the server.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "quant/float16.h"
#include "quant/weight_type.h"

namespace kvasir::testing {

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // written as general.alignment unless it is 32

  template <typename T>
  static void Put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void PutString(std::string& out, std::string_view text) {
    Put<uint64_t>(out, text.size());
    out.append(text);
  }

  // payload: the value as the format lays it out.
  void Key(std::string_view name, uint32_t type, std::string payload) {
    std::string record;
    PutString(record, name);
    Put(record, type);
    keys_.push_back(record + payload);
  }
  template <typename T>
  void Number(std::string_view name, uint32_t type, T value) {
    std::string payload;
    Put(payload, value);
    Key(name, type, std::move(payload));
  }
  void U32(std::string_view name, uint32_t value) { Number(name, 4, value); }
  void I32(std::string_view name, int32_t value) { Number(name, 5, value); }
  void F32(std::string_view name, float value) { Number(name, 6, value); }
  void Bool(std::string_view name, bool value) { Number<uint8_t>(name, 7, value ? 1 : 0); }
  void String(std::string_view name, std::string_view value) {
    std::string payload;
    PutString(payload, value);
    Key(name, 8, std::move(payload));
  }
  void Strings(std::string_view name, const std::vector<std::string>& values) {
    std::string payload;
    Put<uint32_t>(payload, 8);
    Put<uint64_t>(payload, values.size());
    for (const std::string& value : values) PutString(payload, value);
    Key(name, 9, std::move(payload));
  }
  template <typename T>
  void Numbers(std::string_view name, uint32_t element, const std::vector<T>& values) {
    std::string payload;
    Put(payload, element);
    Put<uint64_t>(payload, values.size());
    for (const T& value : values) Put(payload, value);
    Key(name, 9, std::move(payload));
  }

  // dims as in the file: the row length first.
  void Tensor(std::string_view name, const std::vector<int64_t>& dims, uint32_t type,
              std::string data) {
    tensors_.push_back({std::string(name), dims, type, std::move(data)});
  }
  // Random blocks of any served type whose values have about the given standard deviation.
  void RandomTensor(std::string_view name, const std::vector<int64_t>& dims, WeightType type,
                    double deviation, Rng& rng);
  bool RemoveTensor(std::string_view name) {
    return std::erase_if(tensors_, [&](const Entry& entry) { return entry.name == name; }) > 0;
  }

  std::string Bytes() const;
  void Write(const std::string& path) const { std::ofstream(path, std::ios::binary) << Bytes(); }

 private:
  struct Entry {
    std::string name;
    std::vector<int64_t> dims;
    uint32_t type;
    std::string data;
  };
  std::vector<std::string> keys_;
  std::vector<Entry> tensors_;
};

inline std::string GgufWriter::Bytes() const {
  std::string out = "GGUF";
  Put(out, version);
  Put<uint64_t>(out, tensors_.size());
  Put<uint64_t>(out, keys_.size() + (alignment != 32 ? 1 : 0));
  if (alignment != 32) {
    PutString(out, "general.alignment");
    Put<uint32_t>(out, 4);
    Put(out, static_cast<uint32_t>(alignment));
  }
  for (const std::string& key : keys_) out += key;
  std::string data;
  for (const Entry& tensor : tensors_) {
    PutString(out, tensor.name);
    Put(out, static_cast<uint32_t>(tensor.dims.size()));
    for (const int64_t dim : tensor.dims) Put(out, dim);
    Put(out, tensor.type);
    Put<uint64_t>(out, data.size());
    data += tensor.data;
    data.append((alignment - data.size() % alignment) % alignment, '\0');
  }
  out.append((alignment - out.size() % alignment) % alignment, '\0');
  return out + data;
}

inline void GgufWriter::RandomTensor(std::string_view name, const std::vector<int64_t>& dims,
                                     WeightType type, double deviation, Rng& rng) {
  int64_t elements = 1;
  for (const int64_t dim : dims) elements *= dim;
  const WeightTypeInfo& info = GetWeightType(type);
  const auto blocks = static_cast<size_t>(elements / info.block_elements);
  std::string data(blocks * static_cast<size_t>(info.block_bytes), '\0');
  // Uniform numbers of this deviation: half-width sqrt(3) times it.
  const auto uniform = [&] {
    return static_cast<float>((2 * rng.Uniform() - 1) * std::sqrt(3.0) * deviation);
  };
  for (char& byte : data) byte = static_cast<char>(rng.Next());
  for (size_t b = 0; b < blocks; ++b) {
    char* block = data.data() + b * static_cast<size_t>(info.block_bytes);
    const auto put_half = [&](size_t at, double value) {
      const uint16_t half = F32ToF16(static_cast<float>(value));
      std::memcpy(block + at, &half, sizeof(half));
    };
    const double spread = deviation * (0.5 + rng.Uniform());
    switch (type) {
      case WeightType::kF32: {
        const float value = uniform();
        std::memcpy(block, &value, sizeof(value));
        break;
      }
      case WeightType::kF16:
        put_half(0, static_cast<double>(uniform()));
        break;
      case WeightType::kBf16: {
        const uint16_t half = F32ToBf16(uniform());
        std::memcpy(block, &half, sizeof(half));
        break;
      }
      // Uniform codes: q of 4 bits has deviation 4.6, of 5 bits 9.2, of 8 bits 74. K types: q times
      // a uniform 6-bit scale, less a uniform 6-bit minimum, has deviation 255 (527); a signed
      // 8-bit scale times 18.5 has 1,370.
      case WeightType::kQ4_0:
        put_half(0, spread / 4.6);
        break;
      case WeightType::kQ5_0:
        put_half(0, spread / 9.2);
        break;
      case WeightType::kQ8_0:
        put_half(0, spread / 74);
        break;
      case WeightType::kQ4_1:
        put_half(0, spread / 4.6), put_half(2, -7.5 * spread / 4.6);
        break;
      case WeightType::kQ5_1:
        put_half(0, spread / 9.2), put_half(2, -15.5 * spread / 9.2);
        break;
      case WeightType::kQ4_K:
        put_half(0, spread / 255);
        put_half(2, 7.5 * spread / 255);
        break;
      case WeightType::kQ5_K:
        put_half(0, spread / 527);
        put_half(2, 15.5 * spread / 527);
        break;
      case WeightType::kQ6_K:
        put_half(208, spread / 18.5 / 74);
        break;
    }
  }
  Tensor(name, dims, static_cast<uint32_t>(type), std::move(data));
}

}  // namespace kvasir::testing
