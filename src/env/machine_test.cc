#include "env/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "env/cgroup.h"
#include "env/clock.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// A made-up machine: files below a temporary folder.
class FakeRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = (fs::temp_directory_path() / ("kvasir_machine_" + std::to_string(getpid()))).string();
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void Put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(FakeRoot, NoGroupMeansNoLimit) {
  EXPECT_FALSE(internal::CgroupCpus(root_).has_value());
  EXPECT_FALSE(internal::CgroupMemoryLeft(root_).has_value());
  EXPECT_EQ(internal::MemAvailableBytes(root_), 0u);
}

TEST_F(FakeRoot, Version2TakesTheSmallestLimitOnTheWayUp) {
  Put("/proc/self/cgroup", "0::/pod/box\n");
  Put("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
  Put("/sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
  Put("/sys/fs/cgroup/pod/box/memory.max", "1000000\n");
  Put("/sys/fs/cgroup/pod/box/memory.current", "700000\n");
  Put("/sys/fs/cgroup/pod/box/memory.stat", "anon 500000\nfile 200000\ninactive_file 150000\n");
  Put("/sys/fs/cgroup/pod/memory.max", "max\n");
  Put("/sys/fs/cgroup/pod/memory.current", "900000\n");
  EXPECT_EQ(internal::CgroupCpus(root_), 3);  // 2.5 rounded up
  EXPECT_EQ(internal::CgroupMemoryLeft(root_), 1000000u - (700000u - 150000u));
}

TEST_F(FakeRoot, Version1AndPathsOfAnotherNamespace) {
  Put("/proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/\n");
  Put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  Put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  Put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096000\n");
  Put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5096000\n");
  EXPECT_EQ(internal::CgroupCpus(root_), 1);
  EXPECT_EQ(internal::CgroupMemoryLeft(root_),
            0u);  // over the limit: nothing left, not a wrapped number
  Put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  Put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(internal::CgroupCpus(root_).has_value());
  EXPECT_FALSE(internal::CgroupMemoryLeft(root_).has_value());
}

TEST_F(FakeRoot, BrokenFilesAreNoLimit) {
  Put("/proc/self/cgroup", "0::/\nnonsense\n:\n");
  Put("/sys/fs/cgroup/cpu.max", "zero\n");
  Put("/sys/fs/cgroup/memory.max", "\n");
  EXPECT_FALSE(internal::CgroupCpus(root_).has_value());
  EXPECT_FALSE(internal::CgroupMemoryLeft(root_).has_value());
}

TEST_F(FakeRoot, HyperThreadsCountOnce) {
  const std::vector<std::pair<int, int>> kPackageAndCore = {{0, 0}, {0, 1}, {0, 0}, {0, 1}, {1, 0}};
  for (size_t cpu = 0; cpu < kPackageAndCore.size(); ++cpu) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    Put(folder + "physical_package_id", std::to_string(kPackageAndCore[cpu].first) + "\n");
    Put(folder + "core_id", std::to_string(kPackageAndCore[cpu].second) + "\n");
  }
  EXPECT_EQ(internal::CountCores(root_, std::vector<int>{0, 1, 2, 3, 4}), 3);
  EXPECT_EQ(internal::CountCores(root_, std::vector<int>{0, 2}), 1);
  EXPECT_EQ(internal::CountCores(root_, std::vector<int>{8, 9}),
            2);  // unknown: each a core of its own
}

TEST_F(FakeRoot, MemAvailable) {
  Put("/proc/meminfo",
      "MemTotal:       8000 kB\nMemFree:        100 kB\nMemAvailable:   5000 kB\n");
  EXPECT_EQ(internal::MemAvailableBytes(root_), 5000u * 1024);
}

TEST(Machine, TheRealOneIsPlausible) {
  EXPECT_GE(PhysicalCores(), 1);
  EXPECT_LE(PhysicalCores(), sysconf(_SC_NPROCESSORS_CONF));
  EXPECT_GT(FreeMemoryBytes(), 0u);
  EXPECT_GT(ResidentBytes(), 100u * 1024);
  EXPECT_LE(HugePageBytes(), ResidentBytes());
  EXPECT_FALSE(CpuModelName().empty());
}

TEST(BigBuffer, IsZeroedAlignedAndGivesItsPagesBack) {
  const size_t size = (size_t{40} << 20) + 123;
  EXPECT_FALSE(BigBuffer::Allocate(0));
  EXPECT_FALSE(BigBuffer::Allocate(SIZE_MAX));
  BigBuffer buffer = BigBuffer::Allocate(size);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer.size(), size);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (2 << 20), 0u);
  for (size_t i = 0; i < size; i += 4093) ASSERT_EQ(buffer.data()[i], std::byte{0});
  std::memset(buffer.data(), 1, size);
  const uint64_t full = ResidentBytes();
  BigBuffer moved = std::move(buffer);
  EXPECT_FALSE(buffer);  // NOLINT(bugprone-use-after-move): a moved-from buffer is empty
  ASSERT_TRUE(moved);
  moved = BigBuffer();
  EXPECT_LT(ResidentBytes(), full - (size_t{30} << 20));
}

TEST(Clock, SteadyNeverGoesBackAndManualGoesByHand) {
  SteadyClock steady;
  int64_t last = steady.NowNs();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = steady.NowNs();
    ASSERT_GE(now, last);
    last = now;
  }
  ManualClock manual;
  EXPECT_EQ(manual.NowNs(), 0);
  manual.Advance(5);
  EXPECT_EQ(manual.NowNs(), 5);
}

}  // namespace
}  // namespace kvasir
