// The executor of the server: N-1 threads and the caller. Workers spin for a short while between
// the pieces of a step and sleep between steps, since these hosts are shared.
//
// With `cpus` worker i runs on cpus[i] only (the caller, worker 0, after BindCaller). What the
// system refuses is left unbound: pinned() says how it went.
#pragma once

#include <memory>
#include <vector>

#include "base/parallel.h"

namespace kvasir {

class ThreadPool final : public Executor {
 public:
  // The caller of ParallelFor is worker 0. cpus: empty, or one per worker (env/affinity.h).
  explicit ThreadPool(int workers, std::vector<int> cpus = {});
  ~ThreadPool() override;
  int workers() const override;
  void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override;
  void BindCaller() override;
  bool pinned() const;  // every thread that was to be bound is

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
