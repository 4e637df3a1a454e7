#include "apps/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace kvasir {
namespace {

constexpr size_t kChunk = 1 << 20;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Status Refuse(std::string_view flag, const std::string& path, const std::string& why) {
  const std::string shown = path.empty() ? "\"\"" : path;
  return InvalidArgument(std::string(flag) + " " + shown + ": " + why, std::string(flag));
}

std::string Why(const char* what) {
  return std::string(what) + ": " + std::strerror(errno);
}

}  // namespace

Result<std::string> ReadInputFile(const std::string& path, std::string_view flag,
                                  uint64_t bytes_max) {
  const std::string too_long = "more than " + FormatSize(bytes_max) + ", the most that is read";
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) return Refuse(flag, path, Why("cannot be read"));
  struct stat found = {};
  if (fstat(file.fd(), &found) != 0) return Refuse(flag, path, Why("cannot be read"));
  if (S_ISDIR(found.st_mode)) return Refuse(flag, path, "is a folder, not a file");
  if (S_ISREG(found.st_mode) && static_cast<uint64_t>(found.st_size) > bytes_max)
    return Refuse(flag, path, too_long);
  std::string text;
  for (;;) {
    const size_t before = text.size();
    text.resize(before + kChunk);
    const ssize_t got = read(file.fd(), text.data() + before, kChunk);
    text.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Refuse(flag, path, Why("cannot be read"));
    if (got == 0) return text;
    if (text.size() > bytes_max) return Refuse(flag, path, too_long);
  }
}

Status CheckWritable(const std::string& path, std::string_view flag) {
  // A pipe that nobody reads yet (ENXIO) will be waited for.
  const Descriptor there(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (there.fd() >= 0 || errno == ENXIO) return Status::Ok();
  if (errno != ENOENT) return Refuse(flag, path, Why("cannot be written"));
  const Descriptor made(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (made.fd() < 0) return Refuse(flag, path, Why("cannot be written"));
  unlink(path.c_str());
  return Status::Ok();
}

}  // namespace kvasir
