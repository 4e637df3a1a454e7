// The tensor headers of a GGUF file: names, shapes, types, and where their bytes lie.
#include <algorithm>
#include <numeric>

#include "model/gguf_parser.h"
#include "model/gguf_text.h"

namespace kvasir {
namespace {

using internal::Printable;

constexpr uint32_t kMaxDims = 4;

std::string TypeComplaint(uint32_t number) {
  const std::string_view name = GgmlTypeName(number);
  return "tensor type " + std::to_string(number) +
         (name.empty() ? " (unknown)" : " (" + std::string(name) + ")") +
         " is not served (served: " + WeightTypesServedList() + ")";
}

}  // namespace

void GgufParser::ReadDims(GgufTensor& tensor) {
  const uint64_t start = cursor_.offset();
  const auto count = cursor_.Read<uint32_t>();
  if (!cursor_.ok()) return;
  if (count < 1 || count > kMaxDims) {
    return cursor_.Fail(StatusCode::kDataLoss, start,
                        std::to_string(count) + " dimensions (limit 1 to 4)");
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = cursor_.offset();
    const auto dim = cursor_.Read<uint64_t>();
    if (!cursor_.ok()) return;
    if (dim < 1 || dim > kGgufMaxDim) {
      return cursor_.Fail(StatusCode::kDataLoss, at,
                          "dimension " + std::to_string(i) + " is " + std::to_string(dim) +
                              " (limit 1 to " + std::to_string(kGgufMaxDim) + ")");
    }
    if (elements > (uint64_t{1} << 60) / dim) {
      return cursor_.Fail(StatusCode::kDataLoss, start, "the dimensions' product is above 2^60");
    }
    elements *= dim;
    tensor.dims.push_back(static_cast<int64_t>(dim));
  }
}

void GgufParser::ReadTensor(GgufTensor& tensor, uint64_t index) {
  cursor_.Enter("tensor " + std::to_string(index));
  const uint64_t start = cursor_.offset();
  info_offsets_[index] = start;
  tensor.name = cursor_.ReadString("name", kGgufMaxNameBytes);
  if (!cursor_.ok()) return;
  if (tensor.name.empty()) return cursor_.Fail(StatusCode::kDataLoss, start, "the name is empty");
  cursor_.Enter(Printable(tensor.name));
  ReadDims(tensor);
  const uint64_t type_offset = cursor_.offset();
  const auto number = cursor_.Read<uint32_t>();
  if (!cursor_.ok()) return;
  const WeightTypeInfo* info = FindWeightType(number);
  if (info == nullptr)
    return cursor_.Fail(StatusCode::kUnimplemented, type_offset, TypeComplaint(number));
  tensor.type = info->type;
  const std::optional<size_t> row_bytes = WeightRowBytes(info->type, tensor.columns());
  if (!row_bytes) {
    return cursor_.Fail(StatusCode::kDataLoss, start,
                        "rows of " + std::to_string(tensor.columns()) +
                            " elements are no multiple of the " +
                            std::to_string(info->block_elements) + " in a block of " + info->name);
  }
  // At most 2^60 elements of at most 4 bytes: fits.
  tensor.bytes = static_cast<uint64_t>(*row_bytes) * static_cast<uint64_t>(tensor.rows());
  tensor.offset = cursor_.Read<uint64_t>();  // relative to the data section until PlaceTensors
}

void GgufParser::CheckTensorNames() {
  std::vector<uint32_t> order(out_.tensors_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
    const std::string_view x = out_.tensors_[a].name;
    const std::string_view y = out_.tensors_[b].name;
    return x != y ? x < y : a < b;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (out_.tensors_[order[i]].name != out_.tensors_[order[i - 1]].name) continue;
    cursor_.Enter(Printable(out_.tensors_[order[i]].name));
    return cursor_.Fail(StatusCode::kDataLoss, info_offsets_[order[i]],
                        "two tensors have this name");
  }
}

void GgufParser::PlaceTensors(uint64_t alignment) {
  const uint64_t padding = (alignment - cursor_.offset() % alignment) % alignment;
  const uint64_t data_start = cursor_.offset() + padding;
  const uint64_t data_bytes = bytes_.size() > data_start ? bytes_.size() - data_start : 0;
  // The size a whole file would have, for the message about a cut one; tensors that wrap are
  // reported first.
  uint64_t whole = 0;
  for (size_t i = 0; i < out_.tensors_.size(); ++i) {
    GgufTensor& tensor = out_.tensors_[i];
    cursor_.Enter(Printable(tensor.name) + " offset");
    if (tensor.offset % alignment != 0) {
      return cursor_.Fail(StatusCode::kDataLoss, info_offsets_[i],
                          std::to_string(tensor.offset) + " is no multiple of the alignment " +
                              std::to_string(alignment));
    }
    if (tensor.offset > UINT64_MAX - data_start ||
        tensor.bytes > UINT64_MAX - data_start - tensor.offset) {
      return cursor_.Fail(StatusCode::kDataLoss, info_offsets_[i],
                          std::to_string(tensor.offset) + " and its " +
                              std::to_string(tensor.bytes) + " bytes end above 2^64 (actual size " +
                              std::to_string(bytes_.size()) + ")");
    }
    whole = std::max(whole, data_start + tensor.offset + tensor.bytes);
  }
  for (size_t i = 0; i < out_.tensors_.size(); ++i) {
    GgufTensor& tensor = out_.tensors_[i];
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      cursor_.Enter(Printable(tensor.name) + " offset");
      return cursor_.Fail(
          StatusCode::kDataLoss, info_offsets_[i],
          std::to_string(tensor.offset) + " and its " + std::to_string(tensor.bytes) +
              " bytes end after the file (expected size at least " + std::to_string(whole) +
              " bytes, actual size " + std::to_string(bytes_.size()) + "): cut off or broken");
    }
    tensor.offset += data_start;
    tensor.data = bytes_.data() + tensor.offset;
  }
}

void GgufParser::CheckOverlap() {
  std::vector<uint32_t> order(out_.tensors_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
    const GgufTensor& x = out_.tensors_[a];
    const GgufTensor& y = out_.tensors_[b];
    return x.offset != y.offset ? x.offset < y.offset : a < b;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = out_.tensors_[order[i - 1]];
    const GgufTensor& tensor = out_.tensors_[order[i]];
    if (tensor.offset - before.offset >= before.bytes) continue;
    cursor_.Enter(Printable(tensor.name) + " offset");
    return cursor_.Fail(StatusCode::kDataLoss, info_offsets_[order[i]],
                        "its bytes at " + std::to_string(tensor.offset) + " overlap those of '" +
                            Printable(before.name) + "' (" + std::to_string(before.offset) +
                            " to " + std::to_string(before.offset + before.bytes) + ")");
  }
}

}  // namespace kvasir
