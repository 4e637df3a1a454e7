// The tensors a network needs, with their shapes, checked against a file. An architecture lists
// rows; nothing else knows names.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"

namespace kvasir::internal {

class TensorTable {
 public:
  explicit TensorTable(const GgufFile& file) : file_(file) {}

  // `dims` as in the file: row length first. A missing tensor or another shape is a failure naming
  // it.
  void Require(const std::string& name, std::vector<int64_t> dims);
  void Allow(const std::string& name, std::vector<int64_t> dims);  // may be absent
  // Known, and rightly not used.
  void Ignore(const std::string& name) { known_.insert(name); }

  // The tensors nobody asked for. Those inside a layer that is served would change what it
  // computes, so they are refused; the rest become notes.
  void CheckRest(int layers, std::vector<std::string>& notes);

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  void Check(const GgufTensor& tensor, const std::vector<int64_t>& dims);
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const GgufFile& file_;
  std::set<std::string, std::less<>> known_;
  Status status_;
};

}  // namespace kvasir::internal
