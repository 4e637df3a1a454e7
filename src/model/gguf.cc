#include "model/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "model/gguf_parser.h"
#include "model/gguf_text.h"

namespace kvasir {
namespace {

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Calls visit(element) for every element of a number or bool array, with its own type.
template <typename Visit>
void ForEachNumber(const GgufArray& array, Visit visit) {
  const auto walk = [&]<typename T>(T) {
    for (uint64_t i = 0; i < array.count; ++i) visit(Load<T>(array.raw.data() + i * sizeof(T)));
  };
  switch (array.element) {
    case GgufType::kU8:
    case GgufType::kBool:
      walk(uint8_t{});
      break;
    case GgufType::kI8:
      walk(int8_t{});
      break;
    case GgufType::kU16:
      walk(uint16_t{});
      break;
    case GgufType::kI16:
      walk(int16_t{});
      break;
    case GgufType::kU32:
      walk(uint32_t{});
      break;
    case GgufType::kI32:
      walk(int32_t{});
      break;
    case GgufType::kU64:
      walk(uint64_t{});
      break;
    case GgufType::kI64:
      walk(int64_t{});
      break;
    case GgufType::kF32:
      walk(float{});
      break;
    case GgufType::kF64:
      walk(double{});
      break;
    case GgufType::kString:
    case GgufType::kArray:
      KVASIR_CHECK(false && "not an array of numbers");
      break;
  }
}

template <typename T>
const T* FindByName(const std::vector<T>& list, const std::vector<uint32_t>& order,
                    std::string_view name) {
  const auto at =
      std::lower_bound(order.begin(), order.end(), name,
                       [&](uint32_t i, std::string_view wanted) { return list[i].name < wanted; });
  return at != order.end() && list[*at].name == name ? &list[*at] : nullptr;
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  static constexpr std::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                "int32",  "float32", "bool",   "string", "array",
                                                "uint64", "int64",   "float64"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::vector<std::string_view> GgufArray::Strings() const {
  KVASIR_CHECK(element == GgufType::kString);
  std::vector<std::string_view> out;
  out.reserve(count);
  const std::byte* at = raw.data();
  for (uint64_t i = 0; i < count; ++i) {
    const auto length = Load<uint64_t>(at);
    out.emplace_back(reinterpret_cast<const char*>(at + 8), length);
    at += 8 + length;
  }
  return out;
}

std::vector<double> GgufArray::Numbers() const {
  std::vector<double> out;
  out.reserve(count);
  ForEachNumber(*this, [&](auto value) { out.push_back(static_cast<double>(value)); });
  return out;
}

std::vector<int64_t> GgufArray::Integers() const {
  KVASIR_CHECK(element != GgufType::kF32 && element != GgufType::kF64);
  std::vector<int64_t> out;
  out.reserve(count);
  ForEachNumber(*this, [&]<typename T>(T value) {
    if constexpr (std::is_same_v<T, uint64_t>)
      value = std::min<T>(value, std::numeric_limits<int64_t>::max());
    out.push_back(static_cast<int64_t>(value));
  });
  return out;
}

int64_t GgufTensor::rows() const {
  int64_t product = 1;
  for (size_t i = 1; i < dims.size(); ++i) product *= dims[i];
  return product;
}

Result<GgufFile> GgufFile::Open(const std::string& path) {
  return GgufParser::OpenSet(path);
}

Result<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, const std::string& name) {
  return GgufParser::ParseAlone(bytes, name);
}

const GgufKey* GgufFile::Find(std::string_view name) const {
  return FindByName(keys_, keys_by_name_, name);
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  return FindByName(tensors_, tensors_by_name_, name);
}

std::string GgufFile::Complaint(std::string_view name, const std::string& what) const {
  const GgufKey* key = Find(name);
  if (key != nullptr)
    return internal::GgufComplaint(path_, key->offset, internal::Printable(name), what);
  const GgufTensor* tensor = FindTensor(name);
  if (tensor != nullptr)
    return internal::GgufComplaint(path_, tensor->offset, internal::Printable(name), what);
  constexpr uint64_t kFirstKeyOffset = 24;
  return internal::GgufComplaint(path_, kFirstKeyOffset, internal::Printable(name), what);
}

Result<std::optional<int64_t>> GgufFile::Int(std::string_view name, int64_t low,
                                             int64_t high) const {
  const GgufKey* key = Find(name);
  if (key == nullptr) return std::optional<int64_t>();
  const auto limits = [&] {
    return " (limit " + std::to_string(low) + " to " + std::to_string(high) + ")";
  };
  int64_t value = 0;
  if (const auto* wide = std::get_if<uint64_t>(&key->value)) {
    if (*wide > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return DataLoss(Complaint(name, std::to_string(*wide) + limits()));
    }
    value = static_cast<int64_t>(*wide);
  } else if (const auto* narrow = std::get_if<int64_t>(&key->value)) {
    value = *narrow;
  } else {
    return DataLoss(Complaint(
        name, "is of type " + std::string(GgufTypeName(key->type)) + " where an integer is due"));
  }
  if (value < low || value > high)
    return DataLoss(Complaint(name, std::to_string(value) + limits()));
  return std::optional<int64_t>(value);
}

Result<std::optional<double>> GgufFile::Float(std::string_view name) const {
  const GgufKey* key = Find(name);
  if (key == nullptr) return std::optional<double>();
  const auto* value = std::get_if<double>(&key->value);
  if (value == nullptr) {
    return DataLoss(Complaint(
        name, "is of type " + std::string(GgufTypeName(key->type)) + " where a float is due"));
  }
  if (!std::isfinite(*value)) return DataLoss(Complaint(name, "is not a finite number"));
  return std::optional<double>(*value);
}

Result<std::optional<bool>> GgufFile::Bool(std::string_view name) const {
  const GgufKey* key = Find(name);
  if (key == nullptr) return std::optional<bool>();
  const auto* value = std::get_if<bool>(&key->value);
  if (value == nullptr) {
    return DataLoss(Complaint(
        name, "is of type " + std::string(GgufTypeName(key->type)) + " where a bool is due"));
  }
  return std::optional<bool>(*value);
}

Result<std::optional<std::string_view>> GgufFile::String(std::string_view name) const {
  const GgufKey* key = Find(name);
  if (key == nullptr) return std::optional<std::string_view>();
  const auto* value = std::get_if<std::string_view>(&key->value);
  if (value == nullptr) {
    return DataLoss(Complaint(
        name, "is of type " + std::string(GgufTypeName(key->type)) + " where a string is due"));
  }
  return std::optional<std::string_view>(*value);
}

Result<std::optional<GgufArray>> GgufFile::Array(std::string_view name, GgufType element) const {
  const GgufKey* key = Find(name);
  if (key == nullptr) return std::optional<GgufArray>();
  const auto* value = std::get_if<GgufArray>(&key->value);
  if (value == nullptr || value->element != element) {
    const std::string is = value == nullptr
                               ? std::string(GgufTypeName(key->type))
                               : "array of " + std::string(GgufTypeName(value->element));
    return DataLoss(Complaint(name, "is of type " + is + " where an array of " +
                                        std::string(GgufTypeName(element)) + " is due"));
  }
  return std::optional<GgufArray>(*value);
}

void GgufFile::WillRead(const GgufTensor& tensor, uint64_t ahead) const {
  if (static_cast<size_t>(tensor.shard) < shards_.size()) {
    shards_[static_cast<size_t>(tensor.shard)]->WillRead(tensor.offset, tensor.bytes + ahead);
  }
}

void GgufFile::Forget(const GgufTensor& tensor) const {
  if (static_cast<size_t>(tensor.shard) < shards_.size()) {
    shards_[static_cast<size_t>(tensor.shard)]->DropPages(tensor.offset, tensor.bytes);
  }
}

}  // namespace kvasir
