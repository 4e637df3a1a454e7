// What one ParallelFor costs when the workers are hot: microseconds a call for empty pieces.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "env/machine.h"
#include "env/thread_pool.h"

int main(int argc, char** argv) {
  const int workers = argc > 1 ? std::atoi(argv[1]) : kvasir::PhysicalCores();
  kvasir::ThreadPool pool(workers < 1 ? 1 : workers);
  for (const size_t parts : {size_t{2}, size_t{8}, size_t{64}}) {
    double best = 1e9;
    double sum = 0;
    constexpr int kRounds = 20;
    constexpr int kCalls = 2000;
    for (int round = 0; round < kRounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) pool.ParallelFor(parts, [](size_t, int) {});
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      best = took.count() / kCalls < best ? took.count() / kCalls : best;
      sum += took.count() / kCalls;
    }
    std::printf("%d workers, %3zu parts: best %.2f us, mean %.2f us a call\n", pool.workers(),
                parts, best, sum / kRounds);
  }
}
