#include "env/cgroup.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

namespace kvasir::internal {
namespace {

std::optional<std::string> ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<int64_t> ToNumber(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest == text.data()) return std::nullopt;
  return value;
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  const auto line = ReadLine(path);
  return line ? ToNumber(*line) : std::nullopt;
}

// The number after `name` in a "name value" file.
std::optional<int64_t> ReadNamed(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  std::string value;
  while (file >> key >> value) {
    if (key == name) return ToNumber(value);
    std::getline(file, key);
  }
  return std::nullopt;
}

bool IsFolder(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool HasWord(const std::string& list, const std::string& word) {
  std::stringstream words(list);
  std::string one;
  while (std::getline(words, one, ',')) {
    if (one == word) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> CgroupFolders(const std::string& root, const std::string& controller) {
  std::vector<std::string> folders;
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // "hierarchy:controllers:path"
    const size_t a = line.find(':');
    const size_t b = a == std::string::npos ? a : line.find(':', a + 1);
    if (b == std::string::npos) continue;
    const std::string controllers = line.substr(a + 1, b - a - 1);
    std::vector<std::string> mounts;
    if (controllers.empty()) {
      mounts = {root + "/sys/fs/cgroup", root + "/sys/fs/cgroup/unified"};
    } else if (HasWord(controllers, controller)) {
      mounts = {root + "/sys/fs/cgroup/" + controllers, root + "/sys/fs/cgroup/" + controller};
    }
    for (const std::string& mount : mounts) {
      for (std::string path = line.substr(b + 1);; path.resize(path.find_last_of('/'))) {
        const std::string folder = path == "/" ? mount : mount + path;
        if (IsFolder(folder) &&
            std::find(folders.begin(), folders.end(), folder) == folders.end()) {
          folders.push_back(folder);
        }
        if (path.find('/') == std::string::npos) break;
      }
    }
  }
  return folders;
}

std::optional<int> CgroupCpus(const std::string& root) {
  std::optional<int> least;
  for (const std::string& folder : CgroupFolders(root, "cpu")) {
    std::optional<int64_t> quota;
    std::optional<int64_t> period;
    if (const auto line = ReadLine(folder + "/cpu.max")) {  // "max 100000" or "150000 100000"
      std::stringstream words(*line);
      std::string first;
      std::string second;
      words >> first >> second;
      quota = ToNumber(first);
      period = ToNumber(second);
    } else {
      quota = ReadNumber(folder + "/cpu.cfs_quota_us");
      period = ReadNumber(folder + "/cpu.cfs_period_us");
    }
    if (!quota || !period || *quota <= 0 || *period <= 0) continue;
    const int64_t whole = *quota / *period + (*quota % *period != 0 ? 1 : 0);
    const int cpus = static_cast<int>(std::clamp<int64_t>(whole, 1, 1 << 20));
    least = std::min(least.value_or(cpus), cpus);
  }
  return least;
}

std::optional<uint64_t> CgroupMemoryLeft(const std::string& root) {
  std::optional<uint64_t> least;
  for (const std::string& folder : CgroupFolders(root, "memory")) {
    const bool v2 = ReadLine(folder + "/memory.max").has_value();
    const auto limit = ReadNumber(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto used = ReadNumber(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit || !used || *limit < 0 || *used < 0) continue;  // "max" is no number
    if (*limit >= int64_t{1} << 60) continue;                  // v1's way of saying no limit
    const auto cache =
        ReadNamed(folder + "/memory.stat", v2 ? "inactive_file" : "total_inactive_file");
    const int64_t held = std::max<int64_t>(0, *used - cache.value_or(0));
    const auto left = static_cast<uint64_t>(std::max<int64_t>(0, *limit - held));
    least = std::min(least.value_or(left), left);
  }
  return least;
}

uint64_t MemAvailableBytes(const std::string& root) {
  const auto kib = ReadNamed(root + "/proc/meminfo", "MemAvailable:");
  return kib && *kib > 0 ? static_cast<uint64_t>(*kib) * 1024 : 0;
}

std::pair<int64_t, int64_t> CoreOf(const std::string& root, int cpu) {
  const std::string folder =
      root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology";
  const auto package = ReadNumber(folder + "/physical_package_id");
  const auto core = ReadNumber(folder + "/core_id");
  if (core && *core >= 0) return {package.value_or(0), *core};
  return {-2, cpu};
}

int CountCores(const std::string& root, std::span<const int> cpus) {
  std::set<std::pair<int64_t, int64_t>> cores;
  for (const int cpu : cpus) cores.insert(CoreOf(root, cpu));
  return static_cast<int>(cores.size());
}

}  // namespace kvasir::internal
