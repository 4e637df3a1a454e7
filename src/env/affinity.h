// Which logical CPUs this process may use, and binding threads to them. Linux; elsewhere nothing is
// allowed but CPU 0 and binding fails.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir {

// The affinity mask (taskset, cpusets of containers), ascending; never empty.
std::vector<int> AllowedCpus();

// How many threads can run at once: allowed CPUs, hyper-threads counted, no more than the cgroup's
// quota; >= 1. PhysicalCores() (machine.h) counts cores.
int UsableCpus();

// "0-3,8": numbers and ranges, in this order. kInvalidArgument names what is wrong: syntax, a CPU
// twice, one that is not among `allowed` (the message lists those).
Result<std::vector<int>> ParseCpuList(std::string_view text, std::span<const int> allowed);

// "0-3,8" of ascending CPUs.
std::string CpuListText(std::span<const int> cpus);

// The first of `cpus` on each physical core, then the second ones: so many threads that are bound
// to them in this order share no core before they must.
std::vector<int> SpreadOverCores(std::span<const int> cpus);

// From now on the calling thread runs on this CPU only, threads that it starts too. False if the
// system refuses.
bool PinThisThread(int cpu);

namespace internal {
std::vector<int> SpreadOverCores(const std::string& root, std::span<const int> cpus);
}  // namespace internal

}  // namespace kvasir
