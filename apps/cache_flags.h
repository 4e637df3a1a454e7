// The flags about what stays in the cache and who runs when.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "engine/engine.h"

namespace kvasir {

struct CacheFlags {
  bool no_prefix_caching = false;
  std::string swap_space;  // "": the engine's default

  // Into *engine what is not there yet. Names the flag.
  Status Apply(EngineOptions* engine) const;
};

// --no-prefix-caching, --evict: for every command that runs a model.
void AddCacheFlags(CLI::App* app, CacheFlags* flags, EngineOptions* engine);
// The rest, which need several users: --pin-budget, --tenant-quota, --preempt, --swap-space,
// --scheduling-policy, --itl-target, --reserve-blocks.
void AddSharingFlags(CLI::App* app, CacheFlags* flags, EngineOptions* engine);

}  // namespace kvasir
