// --threads and --pin-threads: how many compute threads, and where they run.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvasir {

struct ThreadPlan {
  int32_t threads = 0;    // >= 1
  std::vector<int> cpus;  // one a thread; empty: the system moves them
  std::string warning;    // one line for the log; empty: none
};

struct ThreadFlags {
  int32_t threads = 0;  // 0: the physical cores allowed; with a list, as many as it names
  std::string pin = "off";

  // On a machine that allows these CPUs, of which so many threads can run at once (cgroup quota)
  // on so many cores. spread: the CPUs in the order of SpreadOverCores.
  Result<ThreadPlan> Plan(std::span<const int> allowed, std::span<const int> spread, int usable,
                          int cores) const;
  Result<ThreadPlan> Plan() const;  // on this one
};

void AddThreadFlags(CLI::App* app, ThreadFlags* flags);

}  // namespace kvasir
