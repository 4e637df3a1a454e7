#include "apps/cache_flags.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "apps/flag_values.h"
#include "base/units.h"

namespace kvasir {
namespace {

constexpr double kItlTargetMaxMs = 60'000;

// "--evict oldest: must be lru, fifo, …", and the list in --help.
CLI::Validator OneOf(std::vector<std::string> names) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i)
    list += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return CLI::Validator(
      [names = std::move(names), list](const std::string& text) {
        const bool known = std::find(names.begin(), names.end(), text) != names.end();
        return known ? std::string() : text + " is not one of them; choose " + list;
      },
      list, "one of");
}

// CLI::Range lets nan through.
CLI::Validator Between(double low, double high, const std::string& range) {
  return CLI::Validator(
      [low, high, range](const std::string& text) {
        double value = -1;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= low && value <= high ? std::string() : text + " is not " + range;
      },
      range, "between");
}

CLI::Validator Share() {
  return Between(0, 1, "a share from 0 to 1");
}

}  // namespace

Status CacheFlags::Apply(EngineOptions* engine) const {
  engine->prefix_caching = !no_prefix_caching;
  if (swap_space.empty()) return Status::Ok();
  KVASIR_ASSIGN_OR_RETURN(engine->swap_bytes, ParseSize(swap_space, "--swap-space"));
  if (engine->swap_bytes > 0) return Status::Ok();
  return InvalidArgument(
      "--swap-space " + swap_space + ": must be more than 0; --preempt recompute swaps nothing",
      "swap-space");
}

void AddCacheFlags(CLI::App* app, CacheFlags* flags, EngineOptions* engine) {
  app->add_flag("--no-prefix-caching", flags->no_prefix_caching,
                "compute every prompt in full and keep nothing of it (for comparisons)");
  app->add_option(
         "--evict", engine->evict,
         "what leaves a full cache first: cost weighs what recomputing would take, use seen "
         "and hints; lru and fifo go by age, slru and s3fifo try newcomers first")
      ->check(OneOf({"cost", "lru", "slru", "s3fifo", "fifo"}))
      ->capture_default_str();
}

void AddSharingFlags(CLI::App* app, CacheFlags* flags, EngineOptions* engine) {
  app->add_option("--pin-budget", engine->pin_budget,
                  "share of the KV pool that /v1/kvcache/pin may hold; a pin beyond is refused")
      ->check(Share())
      ->capture_default_str();
  app->add_option("--tenant-quota", engine->tenant_quota,
                  "share of the KV pool above which one tenant or cache_salt evicts its own blocks "
                  "first")
      ->check(Share())
      ->capture_default_str();
  app->add_option("--reserve-blocks", engine->reserve_blocks,
                  "share of the KV pool kept free for running sequences when admitting")
      ->check(Between(0, 0.9, "a share from 0 to 0.9"))
      ->capture_default_str();
  app->add_option("--preempt", engine->preempt,
                  "a running sequence that must give way: swap copies its blocks to host memory, "
                  "recompute drops them, auto takes the cheaper as measured")
      ->check(OneOf({"auto", "swap", "recompute"}))
      ->capture_default_str();
  app->add_option(
         "--swap-space", flags->swap_space,
         "host memory for swapped sequences, as 512MiB (default: a quarter of the KV pool, "
         "at most 1 GiB)")
      ->check(NotEmpty());
  app->add_option(
         "--scheduling-policy", engine->scheduling_policy,
         "who is admitted first: fcfs by arrival, priority by the request's priority (lower "
         "first), prefix by the longest cached prompt; waiting counts in all of them")
      ->check(OneOf({"fcfs", "priority", "prefix"}))
      ->capture_default_str();
  app->add_option("--itl-target", engine->itl_target_ms,
                  "milliseconds between two tokens of a running user that long prompts must leave "
                  "room for; 0: off")
      ->check(Between(0, kItlTargetMaxMs, "0 to 60000 milliseconds"))
      ->capture_default_str();
}

}  // namespace kvasir
