#include "env/affinity.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <utility>

#include "env/cgroup.h"

namespace kvasir {
namespace {

constexpr int kCpuMax = 1 << 20;

// The number at the front of text, which is cut off; -1 if there is none.
int TakeNumber(std::string_view* text) {
  int value = 0;
  const auto [rest, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || value < 0 || value > kCpuMax) return -1;
  text->remove_prefix(static_cast<size_t>(rest - text->data()));
  return value;
}

}  // namespace

std::vector<int> AllowedCpus() {
  // The mask must be at least as large as the kernel's; grow until it fits.
  for (int bits = 1024; bits <= kCpuMax; bits *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(bits));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(bits));
    std::vector<int> cpus;
    const bool fits = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; fits && cpu < bits; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (!cpus.empty()) return cpus;
  }
  return {0};
}

int UsableCpus() {
  const int allowed = static_cast<int>(AllowedCpus().size());
  return std::max(1, std::min(allowed, internal::CgroupCpus("").value_or(allowed)));
}

Result<std::vector<int>> ParseCpuList(std::string_view text, std::span<const int> allowed) {
  const auto wrong = [&](const std::string& why) {
    return InvalidArgument("\"" + std::string(text) + "\": " + why);
  };
  std::vector<int> cpus;
  std::string_view rest = text;
  for (;;) {
    const int first = TakeNumber(&rest);
    int last = first;
    if (!rest.empty() && rest.front() == '-') {
      rest.remove_prefix(1);
      last = TakeNumber(&rest);
    }
    if (first < 0 || last < first || (!rest.empty() && rest.front() != ','))
      return wrong("a list of CPUs is numbers and ranges, as 0-3,8");
    for (int cpu = first; cpu <= last; ++cpu) {
      if (std::find(allowed.begin(), allowed.end(), cpu) == allowed.end()) {
        return wrong("CPU " + std::to_string(cpu) +
                     " is not allowed to this process; allowed: " + CpuListText(allowed));
      }
      if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end())
        return wrong("CPU " + std::to_string(cpu) + " stands there twice");
      cpus.push_back(cpu);
    }
    if (rest.empty()) return cpus;
    rest.remove_prefix(1);
  }
}

std::string CpuListText(std::span<const int> cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (end - i > 1) text += "-" + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

std::vector<int> SpreadOverCores(std::span<const int> cpus) {
  return internal::SpreadOverCores("", cpus);
}

namespace internal {

std::vector<int> SpreadOverCores(const std::string& root, std::span<const int> cpus) {
  // A CPU's turn: how many of its core's stand before it.
  std::vector<std::pair<int, int>> turns;
  std::map<std::pair<int64_t, int64_t>, int> seen;
  for (const int cpu : cpus) turns.emplace_back(seen[CoreOf(root, cpu)]++, cpu);
  std::stable_sort(turns.begin(), turns.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<int> order;
  order.reserve(turns.size());
  for (const auto& [turn, cpu] : turns) order.push_back(cpu);
  return order;
}

}  // namespace internal

bool PinThisThread(int cpu) {
  if (cpu < 0 || cpu > kCpuMax) return false;
  const auto bits = static_cast<size_t>(cpu) + 1;
  cpu_set_t* set = CPU_ALLOC(bits);
  const size_t bytes = CPU_ALLOC_SIZE(bits);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  const bool done = sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return done;
}

}  // namespace kvasir
