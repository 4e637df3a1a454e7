// Takes tensors out of a file: packed matrices and float vectors, each with a hash of its bytes for
// the fingerprint. The mapped pages are dropped after each, so no second copy of the weights stays
// in memory. The first failure is kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "kernels/matmul.h"
#include "model/gguf.h"
#include "model/model.h"

namespace kvasir::internal {

class WeightLoader {
 public:
  WeightLoader(const GgufFile& file, Executor& executor, const LoadProgress& progress);

  // The tensors must be there: ReadModelConfig has checked names and shapes.
  PackedMatrix Matrix(const std::string& name);
  // Stacked in this order if their types agree, else one matrix each.
  std::vector<PackedMatrix> Stack(const std::vector<std::string>& names);
  std::vector<float> Vector(const std::string& name);
  std::vector<float> VectorIfThere(const std::string& name);  // empty if absent
  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  // Of everything loaded so far, in the order it was asked for.
  uint64_t Hash() const;

 private:
  const GgufTensor& Take(const std::string& name);  // enters its hash
  void HashFrom(size_t tensor);                     // it and those that follow it in the file
  void Done(const GgufTensor& tensor);              // drops its pages, reports progress
  PackedMatrix Pack(const std::vector<const GgufTensor*>& tensors);

  const GgufFile& file_;
  Executor& executor_;
  const LoadProgress& progress_;
  Status status_;
  std::vector<uint64_t> hashes_;
  std::vector<uint64_t> contents_;  // per tensor of the file: of its bytes, once `hashed_`
  std::vector<bool> hashed_;
  uint64_t bytes_done_ = 0;
  uint64_t bytes_all_ = 0;
};

}  // namespace kvasir::internal
