#include "model/weight_loader.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace kvasir::internal {
namespace {

constexpr size_t kHashChunk = size_t{1} << 20;  // part of the fingerprint's definition
constexpr uint64_t kReadAhead = uint64_t{64}
                                << 20;  // tensors are asked for about as the file has them

// Hashed at once, so that threads have pieces to share where a tensor is less than one.
constexpr size_t kHashTogether = size_t{8} << 20;

size_t HashPieces(const GgufTensor& tensor) {
  return (tensor.bytes + kHashChunk - 1) / kHashChunk;
}

}  // namespace

WeightLoader::WeightLoader(const GgufFile& file, Executor& executor, const LoadProgress& progress)
    : file_(file), executor_(executor), progress_(progress) {
  for (const GgufTensor& tensor : file.tensors()) bytes_all_ += tensor.bytes;
  contents_.resize(file.tensors().size());
  hashed_.resize(file.tensors().size());
}

void WeightLoader::HashFrom(size_t tensor) {
  const auto& tensors = file_.tensors();
  std::vector<std::span<const std::byte>> pieces;
  size_t end = tensor;
  for (size_t bytes = 0; end < tensors.size() && !hashed_[end]; ++end) {
    const GgufTensor& next = tensors[end];
    bytes += next.bytes;
    if (end > tensor && bytes > kHashTogether) break;
    const std::span<const std::byte> all(next.data, next.bytes);
    for (size_t i = 0; i < HashPieces(next); ++i) {
      const size_t first = i * kHashChunk;
      pieces.push_back(all.subspan(first, std::min(kHashChunk, all.size() - first)));
    }
  }
  std::vector<uint64_t> of_pieces(pieces.size());
  executor_.ParallelFor(pieces.size(), [&](size_t i, int) { of_pieces[i] = Hash64(pieces[i]); });
  std::span<const uint64_t> rest(of_pieces);
  for (size_t i = tensor; i < end; ++i) {
    const size_t count = HashPieces(tensors[i]);
    contents_[i] = Hash64(std::as_bytes(rest.first(count)), tensors[i].bytes);
    hashed_[i] = true;
    rest = rest.subspan(count);
  }
}

const GgufTensor& WeightLoader::Take(const std::string& name) {
  const GgufTensor* tensor = file_.FindTensor(name);
  KVASIR_CHECK(tensor != nullptr);
  file_.WillRead(*tensor, kReadAhead);
  hashes_.push_back(Hash64(std::as_bytes(std::span(name))));
  hashes_.push_back(static_cast<uint64_t>(tensor->type));
  hashes_.push_back(static_cast<uint64_t>(tensor->columns()));
  hashes_.push_back(static_cast<uint64_t>(tensor->rows()));
  const auto index = static_cast<size_t>(tensor - file_.tensors().data());
  if (!hashed_[index]) HashFrom(index);
  hashes_.push_back(contents_[index]);
  return *tensor;
}

void WeightLoader::Done(const GgufTensor& tensor) {
  file_.Forget(tensor);
  bytes_done_ += tensor.bytes;
  if (progress_)
    progress_(0.999 * static_cast<double>(bytes_done_) / static_cast<double>(bytes_all_));
}

PackedMatrix WeightLoader::Pack(const std::vector<const GgufTensor*>& tensors) {
  std::vector<WeightView> views;
  views.reserve(tensors.size());
  for (const GgufTensor* tensor : tensors) {
    views.push_back({tensor->type, tensor->data, tensor->rows(), tensor->columns()});
  }
  auto packed = PackedMatrix::Pack(views, executor_);
  for (const GgufTensor* tensor : tensors) Done(*tensor);
  if (packed.ok()) return std::move(*packed);
  const Status& why = packed.status();
  status_ = Status(why.code(), file_.Complaint(tensors[0]->name, why.message()));
  return {};
}

PackedMatrix WeightLoader::Matrix(const std::string& name) {
  return ok() ? Pack({&Take(name)}) : PackedMatrix();
}

std::vector<PackedMatrix> WeightLoader::Stack(const std::vector<std::string>& names) {
  std::vector<PackedMatrix> out;
  if (!ok()) return out;
  std::vector<const GgufTensor*> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) tensors.push_back(&Take(name));
  const bool agree = std::all_of(tensors.begin(), tensors.end(),
                                 [&](const GgufTensor* t) { return t->type == tensors[0]->type; });
  if (agree) {
    out.push_back(Pack(tensors));
  } else {
    for (const GgufTensor* tensor : tensors) {
      if (ok()) out.push_back(Pack({tensor}));
    }
  }
  return out;
}

std::vector<float> WeightLoader::Vector(const std::string& name) {
  if (!ok()) return {};
  const GgufTensor& tensor = Take(name);
  std::vector<float> out(static_cast<size_t>(tensor.columns() * tensor.rows()));
  DequantizeRow(tensor.type, tensor.data, out);  // vectors are one row: the shapes were checked
  Done(tensor);
  return out;
}

std::vector<float> WeightLoader::VectorIfThere(const std::string& name) {
  return Has(name) ? Vector(name) : std::vector<float>();
}

uint64_t WeightLoader::Hash() const {
  return Hash64(std::as_bytes(std::span(hashes_)));
}

}  // namespace kvasir::internal
