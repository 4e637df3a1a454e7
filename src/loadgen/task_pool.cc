#include "loadgen/task_pool.h"

#include <utility>

namespace kvasir {

TaskPool::~TaskPool() {
  WaitAll();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool TaskPool::TryStart(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (busy_ >= threads_max_) return false;
  StartLocked(std::move(job));
  return true;
}

void TaskPool::Start(std::function<void()> job) {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return busy_ < threads_max_; });
  StartLocked(std::move(job));
}

void TaskPool::StartLocked(std::function<void()> job) {
  ++busy_;
  jobs_.push_back(std::move(job));
  if (threads_.size() < busy_) threads_.emplace_back([this] { Loop(); });
  work_.notify_one();
}

void TaskPool::WaitAll() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return busy_ == 0; });
}

void TaskPool::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
    --busy_;
    idle_.notify_all();
  }
}

}  // namespace kvasir
