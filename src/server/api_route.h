// The paths of the API, for the files that Api is written in.
#pragma once

#include <cstdint>

#include "server/api.h"

namespace kvasir {

// Up to kDetokenize they take POST; up to kWarm they give the engine work and end when it drains.
enum class Api::Route : uint8_t {
  kChat,
  kCompletions,
  kWarm,
  kPin,
  kUnpin,
  kReset,
  kTokenize,
  kDetokenize,
  kCacheState,
  kModels,
  kHealth,
  kMetrics,
  kVersion,
  kPage,
};

}  // namespace kvasir
