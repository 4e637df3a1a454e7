#include "env/clock.h"

#include <chrono>

namespace kvasir {

int64_t SteadyClock::NowNs() const {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace kvasir
