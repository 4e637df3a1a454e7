#include "base/big_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/sanitizer.h"

namespace kvasir {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlign = 64;

constexpr size_t RoundUp(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

class Region {
 public:
  // Address space for `size` bytes, a multiple of the huge page; pages come when first written.
  static std::shared_ptr<Region> Make(size_t size) {
    // mmap alone promises 4 KiB alignment: one huge page more, and the ends are given back.
    void* raw =
        mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    auto* base = static_cast<uint8_t*>(raw);
    const size_t head =
        RoundUp(reinterpret_cast<uintptr_t>(base), kHugePage) - reinterpret_cast<uintptr_t>(base);
    if (head > 0) munmap(base, head);
    if (head < kHugePage) munmap(base + head + size, kHugePage - head);
    madvise(base + head, size, MADV_HUGEPAGE);
    return std::shared_ptr<Region>(new Region(base + head, size));
  }
  ~Region() { munmap(base_, size_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Null if it is too full.
  uint8_t* Take(size_t bytes) {
    if (bytes > size_ - used_) return nullptr;
    uint8_t* piece = base_ + used_;
    used_ += bytes;
    return piece;
  }

 private:
  Region(uint8_t* base, size_t size) : base_(base), size_(size) {}
  uint8_t* base_;
  size_t size_;
  size_t used_ = 0;
};

}  // namespace

std::shared_ptr<uint8_t> TakeBigPages(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX / 2) return nullptr;
  const size_t size = RoundUp(bytes, kAlign);
#ifdef KVASIR_ASAN
  // Each alone, so that AddressSanitizer sees what reads past its end.
  if (size > size_t{1} << 40) return nullptr;
  auto* alone = static_cast<uint8_t*>(std::aligned_alloc(kAlign, size));
  if (alone != nullptr) std::memset(alone, 0, size);
  return std::shared_ptr<uint8_t>(alone, std::free);
#else
  constexpr size_t kRegion = size_t{32} << 20;
  static std::mutex mutex;
  static std::weak_ptr<Region> last;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Region> region = last.lock();
  uint8_t* piece = region == nullptr ? nullptr : region->Take(size);
  if (piece == nullptr) {
    region = Region::Make(std::max(kRegion, RoundUp(size, kHugePage)));
    if (region == nullptr) return nullptr;
    piece = region->Take(size);
    last = region;
  }
  return std::shared_ptr<uint8_t>(std::move(region), piece);
#endif
}

}  // namespace kvasir
