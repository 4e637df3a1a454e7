// For benchmarks: an executor whose threads do not sleep between calls, so that waking them is not
// measured.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "base/parallel.h"

namespace kvasir {

// The caller and workers - 1 threads that spin between calls.
class SpinExecutor final : public Executor {
 public:
  explicit SpinExecutor(int workers) {
    for (int w = 1; w < workers; ++w) threads_.emplace_back([this, w] { Loop(w); });
  }
  ~SpinExecutor() override {
    stop_ = true;
    ++round_;
    for (std::thread& thread : threads_) thread.join();
  }
  SpinExecutor(const SpinExecutor&) = delete;
  SpinExecutor& operator=(const SpinExecutor&) = delete;
  int workers() const override { return static_cast<int>(threads_.size()) + 1; }
  void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override {
    body_ = &body;
    parts_ = parts;
    next_ = 0;
    running_ = static_cast<int>(threads_.size());
    ++round_;
    Take(0);
    while (running_ != 0) _mm_pause();
  }

 private:
  void Take(int worker) {
    for (size_t part; (part = next_.fetch_add(1)) < parts_;) (*body_)(part, worker);
  }
  void Loop(int worker) {
    for (int seen = 0;;) {
      for (int spins = 0; round_ == seen; ++spins) {
        if (spins < 10000) {
          _mm_pause();
        } else {
          std::this_thread::yield();
        }
      }
      ++seen;
      if (stop_) return;
      Take(worker);
      --running_;
    }
  }

  FunctionRef<void(size_t part, int worker)>* body_ = nullptr;
  size_t parts_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<int> running_{0}, round_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace kvasir
