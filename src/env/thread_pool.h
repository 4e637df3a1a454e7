// The executor of the server: N-1 threads and the caller. Workers spin for a short while between
// the pieces of a step and sleep between steps, since these hosts are shared.
#pragma once

#include <memory>

#include "base/parallel.h"

namespace kvasir {

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int workers);  // the caller of ParallelFor is worker 0
  ~ThreadPool() override;
  int workers() const override;
  void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
