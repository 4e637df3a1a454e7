// What this machine gives us: cores allowed (affinity and cgroup quota), memory free (cgroup limit
// included), big aligned allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir {

int PhysicalCores();  // allowed to this process: affinity mask, cgroup v1/v2 quota, hyper-threads
                      // counted once; >= 1
uint64_t FreeMemoryBytes();  // MemAvailable, no more than what the cgroup leaves
uint64_t ResidentBytes();    // of this process
uint64_t HugePageBytes();    // of them on huge pages; walks the page tables (milliseconds)
std::string CpuModelName();

// Zeroed anonymous memory, 2 MiB aligned, huge pages asked for with madvise. Null if the system
// refuses.
class BigBuffer {
 public:
  BigBuffer() = default;
  static BigBuffer Allocate(size_t bytes);
  BigBuffer(BigBuffer&& other) noexcept;
  BigBuffer& operator=(BigBuffer&& other) noexcept;
  ~BigBuffer();
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvasir
