// Reads `ARCH.key` values of a GGUF file with their limits; the first failure is kept and
// everything after it gives the fallback, so a reader function may ask for all keys and check once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"

namespace kvasir::internal {

class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  const GgufFile& file() const { return file_; }
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  std::string Key(std::string_view key) const { return prefix_ + std::string(key); }

  int Int(std::string_view key, int64_t low, int64_t high);  // must be there
  int IntOr(std::string_view key, int64_t low, int64_t high, int fallback);
  double FloatOr(std::string_view key, double fallback);
  std::string StringOr(std::string_view key, std::string fallback);

  // A number, or an array of one number per layer whose members are all equal.
  int PerLayerOr(std::string_view key, int64_t low, int64_t high, int layers, int fallback);

  // Refuses a key that would change the arithmetic in a way that is not served, unless it says
  // `neutral`.
  void RefuseUnlessNeutral(std::string_view key, double neutral, std::string_view meaning);

 private:
  const GgufFile& file_;
  std::string prefix_;
  Status status_;
};

}  // namespace kvasir::internal
