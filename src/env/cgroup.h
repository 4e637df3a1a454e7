// Limits that control groups (v1 and v2) put on this process, and the machine's topology.
// Everything is read below a root folder, "/" for the real machine: tests give a made-up one.
//
// Formats: kernel documentation, admin-guide/cgroup-v2 (cpu.max, memory.max, memory.current,
// memory.stat) and cgroup-v1 (cpu.cfs_quota_us, cpu.cfs_period_us, memory.limit_in_bytes,
// memory.usage_in_bytes).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvasir::internal {

// The folders of this process's group for `controller` ("cpu", "memory") from the group up to the
// mount, in that order: a limit of any of them binds. Both versions; folders that are not there
// (another namespace's path) are left out.
std::vector<std::string> CgroupFolders(const std::string& root, const std::string& controller);

// Whole CPUs the quota allows, rounded up, at least 1; nullopt if there is no quota.
std::optional<int> CgroupCpus(const std::string& root);

// Bytes the group may still take before its limit; page cache that can be given back counts as
// free. nullopt: no limit.
std::optional<uint64_t> CgroupMemoryLeft(const std::string& root);

// MemAvailable of /proc/meminfo; 0 if unreadable.
uint64_t MemAvailableBytes(const std::string& root);

// The core of a logical CPU (/sys/devices/system/cpu/cpuN/topology): its package and number. A CPU
// whose topology cannot be read counts as a core of its own.
std::pair<int64_t, int64_t> CoreOf(const std::string& root, int cpu);

// How many different cores the given logical CPUs belong to.
int CountCores(const std::string& root, std::span<const int> cpus);

}  // namespace kvasir::internal
