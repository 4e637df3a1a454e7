#include "env/affinity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "env/machine.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

TEST(CpuList, NumbersAndRangesInTheirOrder) {
  const std::vector<int> allowed = {0, 1, 2, 3, 8, 9};
  const auto parsed = [&](const char* text) {
    const auto cpus = ParseCpuList(text, allowed);
    EXPECT_TRUE(cpus.ok()) << cpus.status().ToString();
    return cpus.ok() ? *cpus : std::vector<int>();
  };
  EXPECT_EQ(parsed("0"), std::vector<int>({0}));
  EXPECT_EQ(parsed("8,0-2"), std::vector<int>({8, 0, 1, 2}));
  EXPECT_EQ(parsed("0-3,8-9"), allowed);
  for (const char* wrong : {"", ",", "0,", ",0", "0-", "-1", "3-1", "0--1", "a", "0 1", "0;1",
                            "0x1", "99999999999", "1048577", "0-1-2", "0,0", "0-2,1"}) {
    const auto cpus = ParseCpuList(wrong, allowed);
    ASSERT_FALSE(cpus.ok()) << wrong;
    EXPECT_EQ(cpus.status().code(), StatusCode::kInvalidArgument);
  }
  const auto foreign = ParseCpuList("2-4", allowed);
  ASSERT_FALSE(foreign.ok());
  EXPECT_NE(foreign.status().message().find("CPU 4 is not allowed"), std::string::npos);
  EXPECT_NE(foreign.status().message().find("0-3,8-9"), std::string::npos);
}

TEST(CpuList, TextAndBack) {
  for (const std::vector<int>& cpus :
       {std::vector<int>{0}, {0, 1}, {0, 2, 4}, {1, 2, 3, 7, 9, 10}}) {
    const auto back = ParseCpuList(CpuListText(cpus), cpus);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, cpus);
  }
  EXPECT_EQ(CpuListText({}), "");
}

TEST(Affinity, CoresFirstThenTheirSecondThreads) {
  const std::string root =
      (fs::temp_directory_path() / ("kvasir_affinity_" + std::to_string(getpid()))).string();
  // CPUs 0..3 are the first threads of cores 0, 0, 1, 1.
  for (int cpu = 0; cpu < 4; ++cpu) {
    const std::string folder =
        root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    fs::create_directories(folder);
    std::ofstream(folder + "physical_package_id") << "0\n";
    std::ofstream(folder + "core_id") << cpu / 2 << "\n";
  }
  const std::vector<int> cpus = {0, 1, 2, 3};
  EXPECT_EQ(internal::SpreadOverCores(root, cpus), std::vector<int>({0, 2, 1, 3}));
  const std::vector<int> back = {3, 2, 1};
  EXPECT_EQ(internal::SpreadOverCores(root, back), std::vector<int>({3, 1, 2}));
  fs::remove_all(root);
}

TEST(Affinity, ThisMachine) {
  const std::vector<int> allowed = AllowedCpus();
  ASSERT_FALSE(allowed.empty());
  EXPECT_TRUE(std::is_sorted(allowed.begin(), allowed.end()));
  EXPECT_GE(UsableCpus(), 1);
  EXPECT_LE(UsableCpus(), static_cast<int>(allowed.size()));
  EXPECT_GE(UsableCpus(), PhysicalCores());
  std::vector<int> spread = SpreadOverCores(allowed);
  std::sort(spread.begin(), spread.end());
  EXPECT_EQ(spread, allowed);
  std::thread bound([&] {
    ASSERT_TRUE(PinThisThread(allowed.back()));
    EXPECT_EQ(AllowedCpus(), std::vector<int>({allowed.back()}));
    EXPECT_EQ(PhysicalCores(), 1);
    EXPECT_FALSE(PinThisThread(-1));
    EXPECT_FALSE(PinThisThread(1 << 19));
  });
  bound.join();
  EXPECT_EQ(AllowedCpus(), allowed);
}

}  // namespace
}  // namespace kvasir
