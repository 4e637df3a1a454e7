#include "env/machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "env/affinity.h"
#include "env/cgroup.h"

namespace kvasir {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

int PhysicalCores() {
  const std::vector<int> cpus = AllowedCpus();
  const int cores = internal::CountCores("", cpus);
  return std::max(1, std::min(cores, internal::CgroupCpus("").value_or(cores)));
}

uint64_t FreeMemoryBytes() {
  const uint64_t available = internal::MemAvailableBytes("");
  return std::min(available, internal::CgroupMemoryLeft("").value_or(available));
}

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t HugePageBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  uint64_t kib = 0;
  while (file >> word) {
    if (word == "AnonHugePages:" && file >> kib) return kib * 1024;
  }
  return 0;
}

std::string CpuModelName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) {
      const size_t start = line.find_first_not_of(' ', colon + 1);
      return start == std::string::npos ? "unknown" : line.substr(start);
    }
  }
  return "unknown";
}

BigBuffer BigBuffer::Allocate(size_t bytes) {
  BigBuffer buffer;
  if (bytes == 0 || bytes > SIZE_MAX - 2 * kHugePage) return buffer;
  const size_t size = RoundUp(bytes, kHugePage);
  // One huge page more than needed, then the ends are given back: mmap alone promises 4 KiB
  // alignment only.
  void* raw =
      mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return buffer;
  auto* base = static_cast<std::byte*>(raw);
  const size_t head =
      RoundUp(reinterpret_cast<uintptr_t>(base), kHugePage) - reinterpret_cast<uintptr_t>(base);
  if (head > 0) munmap(base, head);
  if (head < kHugePage) munmap(base + head + size, kHugePage - head);
  madvise(base + head, size, MADV_HUGEPAGE);  // a wish: without it everything still works
  buffer.data_ = base + head;
  buffer.size_ = bytes;
  return buffer;
}

BigBuffer::BigBuffer(BigBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

BigBuffer& BigBuffer::operator=(BigBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

BigBuffer::~BigBuffer() {
  if (data_ != nullptr) munmap(data_, RoundUp(size_, kHugePage));
}

}  // namespace kvasir
