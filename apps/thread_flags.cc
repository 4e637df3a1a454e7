#include "apps/thread_flags.h"

#include <algorithm>
#include <utility>

#include "env/affinity.h"
#include "env/machine.h"

namespace kvasir {
namespace {

constexpr int32_t kThreadsMax = 1024;

std::string Plural(int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

}  // namespace

Result<ThreadPlan> ThreadFlags::Plan(std::span<const int> allowed, std::span<const int> spread,
                                     int usable, int cores) const {
  ThreadPlan plan;
  plan.threads = threads > 0 ? threads : cores;
  if (pin != "off" && pin != "cores") {
    auto listed = ParseCpuList(pin, allowed);
    if (!listed.ok()) {
      return InvalidArgument("--pin-threads " + listed.status().message() + " (or off, or cores)",
                             "pin-threads");
    }
    const auto count = static_cast<int32_t>(listed->size());
    if (threads > count) {
      return InvalidArgument("--threads " + std::to_string(threads) + ", but --pin-threads " + pin +
                                 " names " + Plural(count, "CPU") + ": one a thread is needed",
                             "pin-threads");
    }
    plan.cpus = std::move(listed).value();
    if (threads == 0) plan.threads = std::min(count, kThreadsMax);
  } else if (pin == "cores") {
    const auto count = static_cast<int32_t>(spread.size());
    if (plan.threads > count) {
      return InvalidArgument("--threads " + std::to_string(plan.threads) +
                                 " with --pin-threads cores: only " + Plural(count, "CPU") +
                                 (count == 1 ? " is" : " are") + " allowed to this process",
                             "pin-threads");
    }
    plan.cpus.assign(spread.begin(), spread.end());
  }
  if (!plan.cpus.empty()) plan.cpus.resize(static_cast<size_t>(plan.threads));
  if (plan.threads > usable) {
    plan.warning = Plural(plan.threads, "compute thread") + " on " + Plural(usable, "CPU") +
                   " (affinity and cgroup quota): they wait for each other; --threads " +
                   std::to_string(cores) + " is faster";
  }
  return plan;
}

Result<ThreadPlan> ThreadFlags::Plan() const {
  const std::vector<int> allowed = AllowedCpus();
  return Plan(allowed, SpreadOverCores(allowed), UsableCpus(), PhysicalCores());
}

void AddThreadFlags(CLI::App* app, ThreadFlags* flags) {
  app->add_option("--threads", flags->threads,
                  "compute threads (default: the physical cores allowed by affinity and cgroup "
                  "quota; more than there are CPUs is slower)")
      ->check(CLI::Range(1, kThreadsMax));
  app->add_option(
         "--pin-threads", flags->pin,
         "where compute threads run: off (the system moves them), cores (each stays on a physical "
         "core of its own; good on a machine of your own), or a list of CPUs, one a thread, as "
         "0-3,8 (two servers side by side: give each its half)")
      ->capture_default_str();
}

}  // namespace kvasir
