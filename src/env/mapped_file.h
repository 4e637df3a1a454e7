// A file mapped read-only. The bytes are hostile until checked by who reads them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace kvasir {

class MappedFile {
 public:
  static Result<MappedFile> Open(
      const std::string& path);  // kNotFound, or kDataLoss for an empty or special file
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Tells the kernel that these bytes will not be read again soon, so that they do not count as
  // resident.
  void DropPages(size_t offset, size_t length) const;
  // Tells the kernel that these bytes will be read soon: it fetches from the disk what is not in
  // memory, meanwhile. Both are clipped to the file.
  void WillRead(size_t offset, size_t length) const;

 private:
  MappedFile() = default;
  void Advise(size_t offset, size_t length, int advice) const;
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvasir
