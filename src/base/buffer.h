// Memory for what is written before it is read: unlike std::vector's, its elements start without a
// value, so that pages which are never used are never touched (a server that was sent a short
// prompt does not clear the rows of the longest one).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace kvasir {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) : data_(std::make_unique_for_overwrite<T[]>(size)), size_(size) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::span<T> span() { return {data_.get(), size_}; }

 private:
  std::unique_ptr<T[]> data_;
  size_t size_ = 0;
};

}  // namespace kvasir
