#include "model/gguf_parser.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "model/gguf_text.h"

namespace kvasir {
namespace {

using internal::Printable;

// The least a record can take: bounds the counts by the file's size before anything is reserved for
// them.
constexpr uint64_t kLeastKeyBytes = 8 + 1 + 4 + 1;  // length, one character, type, one byte
constexpr uint64_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // ..., one dimension, type, offset

uint32_t SwapBytes(uint32_t x) {
  return __builtin_bswap32(x);
}

// Bytes of one element of a number type, 0 for strings, arrays and what is no type.
uint64_t ElementBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

// Positions of a list sorted by name: equal names stand side by side, the earlier first.
template <typename T>
std::vector<uint32_t> SortedByName(const std::vector<T>& list) {
  std::vector<uint32_t> order(list.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return list[a].name != list[b].name ? list[a].name < list[b].name : a < b;
  });
  return order;
}

}  // namespace

void GgufFile::BuildIndex() {
  keys_by_name_ = SortedByName(keys_);
  tensors_by_name_ = SortedByName(tensors_);
}

Result<GgufFile> GgufParser::ParseOne(std::span<const std::byte> bytes, const std::string& name) {
  GgufParser parser(bytes, name);
  uint64_t tensor_count = 0;
  uint64_t key_count = 0;
  parser.ReadHeader(tensor_count, key_count);
  if (!parser.cursor_.ok()) return parser.cursor_.status();
  parser.out_.keys_.resize(key_count);
  for (uint64_t i = 0; i < key_count && parser.cursor_.ok(); ++i)
    parser.ReadKey(parser.out_.keys_[i], i);
  if (parser.cursor_.ok()) parser.CheckKeyNames();
  const uint64_t alignment = parser.cursor_.ok() ? parser.ReadAlignment() : 0;
  if (parser.cursor_.ok()) {
    parser.out_.tensors_.resize(tensor_count);
    parser.info_offsets_.resize(tensor_count);
  }
  for (uint64_t i = 0; i < tensor_count && parser.cursor_.ok(); ++i) {
    parser.ReadTensor(parser.out_.tensors_[i], i);
  }
  if (parser.cursor_.ok()) parser.CheckTensorNames();
  if (parser.cursor_.ok()) parser.PlaceTensors(alignment);
  if (parser.cursor_.ok()) parser.CheckOverlap();
  if (!parser.cursor_.ok()) return parser.cursor_.status();
  parser.out_.path_ = name;
  parser.out_.file_bytes_ = bytes.size();
  return std::move(parser.out_);
}

void GgufParser::ReadHeader(uint64_t& tensor_count, uint64_t& key_count) {
  cursor_.Enter("magic");
  const auto magic = cursor_.Read<std::array<char, 4>>();
  if (cursor_.ok() && std::string_view(magic.data(), 4) != "GGUF") {
    cursor_.Fail(StatusCode::kDataLoss, 0,
                 "is '" + Printable({magic.data(), 4}) + "' where 'GGUF' is due: no GGUF file");
  }
  cursor_.Enter("version");
  const uint64_t at = cursor_.offset();
  const auto version = cursor_.Read<uint32_t>();
  if (cursor_.ok() && version != 2 && version != 3) {
    const uint32_t swapped = SwapBytes(version);
    std::string why = "version " + std::to_string(version) + " is unknown";
    if (version == 1) why = "version 1 (32-bit counts, retired) is not served";
    if (swapped >= 1 && swapped <= 3) {
      why = "version " + std::to_string(swapped) +
            " in big-endian byte order: byte-swapped files are not served";
    }
    cursor_.Fail(StatusCode::kUnimplemented, at, why + " (served: 2, 3)");
  }
  out_.version_ = version;

  const auto read_count = [this](const char* field, uint64_t least_bytes, uint64_t limit) {
    cursor_.Enter(field);
    const uint64_t start = cursor_.offset();
    const auto count = cursor_.Read<uint64_t>();
    if (!cursor_.ok()) return count;
    if (count > limit) {
      cursor_.Fail(StatusCode::kDataLoss, start,
                   std::to_string(count) + " (limit " + std::to_string(limit) + ")");
    } else if (count > cursor_.left() / least_bytes) {
      cursor_.FailShort(std::to_string(count) + " of them",
                        count * least_bytes);  // no overflow: count <= limit
    }
    return count;
  };
  tensor_count = read_count("tensor count", kLeastTensorBytes, kGgufMaxTensors);
  key_count = read_count("key count", kLeastKeyBytes, kGgufMaxKeys);
}

void GgufParser::ReadKey(GgufKey& key, uint64_t index) {
  cursor_.Enter("key " + std::to_string(index));
  const uint64_t start = cursor_.offset();
  key.name = cursor_.ReadString("key", kGgufMaxKeyBytes);
  if (!cursor_.ok()) return;
  if (key.name.empty())
    return cursor_.Fail(StatusCode::kDataLoss, start, "the key is empty (limit: 1 byte or more)");
  cursor_.Enter(Printable(key.name));
  const uint64_t type_offset = cursor_.offset();
  const auto type = cursor_.Read<uint32_t>();
  if (!cursor_.ok()) return;
  if (type > static_cast<uint32_t>(GgufType::kF64)) {
    return cursor_.Fail(StatusCode::kDataLoss, type_offset,
                        "value type " + std::to_string(type) + " is unknown (limit 12)");
  }
  key.type = static_cast<GgufType>(type);
  key.offset = cursor_.offset();
  ReadValue(key);
}

void GgufParser::ReadValue(GgufKey& key) {
  switch (key.type) {
    case GgufType::kU8:
      key.value = uint64_t{cursor_.Read<uint8_t>()};
      break;
    case GgufType::kU16:
      key.value = uint64_t{cursor_.Read<uint16_t>()};
      break;
    case GgufType::kU32:
      key.value = uint64_t{cursor_.Read<uint32_t>()};
      break;
    case GgufType::kU64:
      key.value = cursor_.Read<uint64_t>();
      break;
    case GgufType::kI8:
      key.value = int64_t{cursor_.Read<int8_t>()};
      break;
    case GgufType::kI16:
      key.value = int64_t{cursor_.Read<int16_t>()};
      break;
    case GgufType::kI32:
      key.value = int64_t{cursor_.Read<int32_t>()};
      break;
    case GgufType::kI64:
      key.value = cursor_.Read<int64_t>();
      break;
    case GgufType::kF32:
      key.value = static_cast<double>(cursor_.Read<float>());
      break;
    case GgufType::kF64:
      key.value = cursor_.Read<double>();
      break;
    case GgufType::kBool: {
      const auto byte = cursor_.Read<uint8_t>();
      if (cursor_.ok() && byte > 1) {
        cursor_.Fail(StatusCode::kDataLoss, key.offset,
                     "bool " + std::to_string(byte) + " (limit 0 or 1)");
      }
      key.value = byte != 0;
      break;
    }
    case GgufType::kString:
      key.value = cursor_.ReadString("string", UINT64_MAX);
      break;
    case GgufType::kArray:
      ReadArray(key.value.emplace<GgufArray>());
      break;
  }
}

void GgufParser::ReadArray(GgufArray& array) {
  const uint64_t type_offset = cursor_.offset();
  const auto type = cursor_.Read<uint32_t>();
  const uint64_t count_offset = cursor_.offset();
  array.count = cursor_.Read<uint64_t>();
  if (!cursor_.ok()) return;
  if (type > static_cast<uint32_t>(GgufType::kF64)) {
    return cursor_.Fail(StatusCode::kDataLoss, type_offset,
                        "array element type " + std::to_string(type) + " is unknown (limit 12)");
  }
  array.element = static_cast<GgufType>(type);
  if (array.element == GgufType::kArray) {
    return cursor_.Fail(StatusCode::kUnimplemented, type_offset, "arrays of arrays are not served");
  }
  if (array.count > kGgufMaxArray) {
    return cursor_.Fail(StatusCode::kDataLoss, count_offset,
                        "array of " + std::to_string(array.count) + " (limit " +
                            std::to_string(kGgufMaxArray) + ")");
  }
  const std::string what = "array of " + std::to_string(array.count);
  if (array.element != GgufType::kString) {
    const uint64_t bytes = array.count * ElementBytes(array.element);
    if (bytes > cursor_.left()) return cursor_.FailShort(what, bytes);
    array.raw = cursor_.Take(bytes);
    return;
  }
  if (array.count > cursor_.left() / 8)
    return cursor_.FailShort(what + " strings", array.count * 8);
  const uint64_t start = cursor_.offset();
  for (uint64_t i = 0; i < array.count && cursor_.ok(); ++i)
    cursor_.ReadString("string", UINT64_MAX);
  if (cursor_.ok()) array.raw = bytes_.subspan(start, cursor_.offset() - start);
}

void GgufParser::CheckKeyNames() {
  const std::vector<uint32_t> order = SortedByName(out_.keys_);
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufKey& key = out_.keys_[order[i]];
    if (key.name != out_.keys_[order[i - 1]].name) continue;
    cursor_.Enter(Printable(key.name));
    return cursor_.Fail(StatusCode::kDataLoss, key.offset,
                        "the key stands twice (first value at offset " +
                            std::to_string(out_.keys_[order[i - 1]].offset) + ")");
  }
}

uint64_t GgufParser::ReadAlignment() {
  for (const GgufKey& key : out_.keys_) {
    if (key.name != "general.alignment") continue;
    cursor_.Enter("general.alignment");
    if (key.type != GgufType::kU32) {
      cursor_.Fail(StatusCode::kDataLoss, key.offset,
                   "is of type " + std::string(GgufTypeName(key.type)) + " where uint32 is due");
      return 0;
    }
    const uint64_t value = std::get<uint64_t>(key.value);
    if (value < kGgufMinAlignment || value > kGgufMaxAlignment || !std::has_single_bit(value)) {
      cursor_.Fail(StatusCode::kDataLoss, key.offset,
                   std::to_string(value) + " (limit: a power of two from " +
                       std::to_string(kGgufMinAlignment) + " to " +
                       std::to_string(kGgufMaxAlignment) + ")");
    }
    return value;
  }
  return 32;  // the format's default
}

}  // namespace kvasir
