// SIGTERM and SIGINT for `serve`: the first asks for a clean end, the second ends the process at
// once.
#pragma once

#include <memory>
#include <thread>

namespace kvasir {

// Make it before any other thread, so that all threads inherit the blocked signals. Until Ready is
// called a signal ends the process at once with exit code 0: there is nothing to finish yet.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void Ready();
  int Wait();  // until the first signal; which one it was

 private:
  void Watch();
  struct State;
  std::unique_ptr<State> state_;
  std::thread watcher_;
};

}  // namespace kvasir
