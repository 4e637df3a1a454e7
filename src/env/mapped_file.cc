#include "env/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvasir {
namespace {

std::string Because(const std::string& path, const char* what, int error) {
  return path + ": " + what + ": " + std::strerror(error);
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return NotFound(Because(path, "cannot open", errno));
  struct stat info = {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return NotFound(Because(path, "cannot stat", error));
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return DataLoss(path + ": is " + (S_ISDIR(info.st_mode) ? "a folder" : "not a regular file"));
  }
  if (info.st_size == 0) {
    close(fd);
    return DataLoss(path + ": offset 0: field 'size': the file is empty (actual size 0 bytes)");
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (data == MAP_FAILED) return OutOfMemory(Because(path, "cannot map", error));
  MappedFile file;
  file.path_ = path;
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Advise(size_t offset, size_t length, int advice) const {
  if (data_ == nullptr || offset >= size_) return;
  if (length > size_ - offset) length = size_ - offset;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = offset / page * page;
  const size_t last = offset + length;
  if (last > first) madvise(const_cast<std::byte*>(data_) + first, last - first, advice);
}

// Rounded outwards: a neighbour's bytes on the same page are read again from the page cache when
// needed.
void MappedFile::DropPages(size_t offset, size_t length) const {
  Advise(offset, length, MADV_DONTNEED);
}

void MappedFile::WillRead(size_t offset, size_t length) const {
  Advise(offset, length, MADV_WILLNEED);
}

}  // namespace kvasir
