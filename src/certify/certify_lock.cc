#include "certify/certify_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kvasir {

Result<CertifyLock> CertifyLock::Take(const std::string& model_path) {
  const int file = open(model_path.c_str(), O_RDONLY | O_CLOEXEC);
  CertifyLock lock(file);
  if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Unavailable("another `kvasir certify` of " + model_path +
                       " is at work: wait for it, or give it all formats at once");
  }
  return lock;
}

CertifyLock::CertifyLock(CertifyLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

CertifyLock::~CertifyLock() {
  if (file_ >= 0) close(file_);
}

}  // namespace kvasir
