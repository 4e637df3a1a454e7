// One `certify` of a model at a time: two would take parts of the same work file from each other.
#pragma once

#include <string>

#include "base/status.h"

namespace kvasir {

// Held until it goes, or the process ends. Where the file system has no locks there is none, and
// that is no error.
class CertifyLock {
 public:
  // kUnavailable if another process holds it.
  static Result<CertifyLock> Take(const std::string& model_path);
  CertifyLock(CertifyLock&& other) noexcept;
  CertifyLock& operator=(CertifyLock&&) = delete;
  ~CertifyLock();

 private:
  explicit CertifyLock(int file) : file_(file) {}
  int file_;  // the model file, open; or -1
};

}  // namespace kvasir
