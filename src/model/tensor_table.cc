#include "model/tensor_table.h"

#include <algorithm>
#include <charconv>

#include "model/gguf_text.h"

namespace kvasir::internal {
namespace {

constexpr size_t kMostNotes = 32;

std::string Shape(const std::vector<int64_t>& dims) {
  std::string text;
  for (const int64_t dim : dims) text += (text.empty() ? "" : " x ") + std::to_string(dim);
  return text;
}

// Trailing dimensions of 1 say nothing: some writers add them.
std::vector<int64_t> WithoutOnes(std::vector<int64_t> dims) {
  while (dims.size() > 1 && dims.back() == 1) dims.pop_back();
  return dims;
}

// The layer of "blk.N.rest", -1 for other names.
int64_t LayerOf(std::string_view name) {
  if (!name.starts_with("blk.")) return -1;
  int64_t layer = -1;
  const auto [rest, error] = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return error == std::errc() && rest != name.data() + name.size() && *rest == '.' ? layer : -1;
}

}  // namespace

void TensorTable::Check(const GgufTensor& tensor, const std::vector<int64_t>& dims) {
  if (WithoutOnes(tensor.dims) == WithoutOnes(dims)) return;
  Fail(DataLoss(file_.Complaint(
      tensor.name, "shape " + Shape(tensor.dims) + " where " + Shape(dims) + " is due")));
}

void TensorTable::Require(const std::string& name, std::vector<int64_t> dims) {
  known_.insert(name);
  if (!ok()) return;
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr)
    return Fail(
        DataLoss(file_.Complaint(name, "the tensor is missing (" + Shape(dims) + " is due)")));
  Check(*tensor, dims);
}

void TensorTable::Allow(const std::string& name, std::vector<int64_t> dims) {
  known_.insert(name);
  const GgufTensor* tensor = file_.FindTensor(name);
  if (ok() && tensor != nullptr) Check(*tensor, dims);
}

void TensorTable::CheckRest(int layers, std::vector<std::string>& notes) {
  if (!ok()) return;
  size_t unused = 0;
  for (const GgufTensor& tensor : file_.tensors()) {
    if (known_.contains(tensor.name)) continue;
    const int64_t layer = LayerOf(tensor.name);
    if (layer >= 0 && layer < layers) {
      return Fail(Unimplemented(file_.Complaint(tensor.name,
                                                "the tensor is no part of this architecture as "
                                                "served; without it the layer would be wrong")));
    }
    if (++unused <= kMostNotes)
      notes.push_back("tensor '" + Printable(tensor.name) + "' is not used");
  }
  if (unused > kMostNotes)
    notes.push_back("and " + std::to_string(unused - kMostNotes) + " more tensors are not used");
}

}  // namespace kvasir::internal
