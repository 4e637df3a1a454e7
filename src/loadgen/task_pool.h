// Runs blocking jobs on threads of their own, a bounded number at once. Threads are made when
// needed and kept.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvasir {

class TaskPool {
 public:
  explicit TaskPool(size_t threads_max) : threads_max_(threads_max) {}
  ~TaskPool();  // waits for everything submitted
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // Starts the job at once if fewer than threads_max run, else returns false and does nothing.
  bool TryStart(std::function<void()> job);
  // Starts the job when a thread is free; waits for that.
  void Start(std::function<void()> job);
  void WaitAll();

 private:
  void StartLocked(std::function<void()> job);
  void Loop();

  const size_t threads_max_;
  std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  size_t busy_ = 0;  // jobs queued or running; never above threads_max_
  bool stopping_ = false;
};

}  // namespace kvasir
