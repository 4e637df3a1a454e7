// Time, behind an interface: steady in the server, simulated in the simulator and in tests.
#pragma once

#include <cstdint>

namespace kvasir {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds from an arbitrary start; never goes back.
  virtual int64_t NowNs() const = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override;
};

// Moved by hand.
class ManualClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void Advance(int64_t ns) { now_ns_ += ns; }

 private:
  int64_t now_ns_ = 0;
};

}  // namespace kvasir
