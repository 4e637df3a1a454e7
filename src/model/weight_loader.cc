#include "model/weight_loader.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace kvasir::internal {
namespace {

constexpr size_t kHashChunk = size_t{1} << 20;  // part of the fingerprint's definition
constexpr uint64_t kReadAhead = uint64_t{64}
                                << 20;  // tensors are asked for about as the file has them

uint64_t HashBytes(std::span<const std::byte> bytes, Executor& executor) {
  std::vector<uint64_t> chunks((bytes.size() + kHashChunk - 1) / kHashChunk);
  executor.ParallelFor(chunks.size(), [&](size_t i, int) {
    const size_t first = i * kHashChunk;
    chunks[i] = Hash64(bytes.subspan(first, std::min(kHashChunk, bytes.size() - first)));
  });
  return Hash64(std::as_bytes(std::span(chunks)), bytes.size());
}

}  // namespace

WeightLoader::WeightLoader(const GgufFile& file, Executor& executor, const LoadProgress& progress)
    : file_(file), executor_(executor), progress_(progress) {
  for (const GgufTensor& tensor : file.tensors()) bytes_all_ += tensor.bytes;
}

const GgufTensor& WeightLoader::Take(const std::string& name) {
  const GgufTensor* tensor = file_.FindTensor(name);
  KVASIR_CHECK(tensor != nullptr);
  file_.WillRead(*tensor, kReadAhead);
  hashes_.push_back(Hash64(std::as_bytes(std::span(name))));
  hashes_.push_back(static_cast<uint64_t>(tensor->type));
  hashes_.push_back(static_cast<uint64_t>(tensor->columns()));
  hashes_.push_back(static_cast<uint64_t>(tensor->rows()));
  hashes_.push_back(HashBytes({tensor->data, tensor->bytes}, executor_));
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
