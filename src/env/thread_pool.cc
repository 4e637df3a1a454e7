#include "env/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "env/affinity.h"

namespace kvasir {
namespace {

// How long a thread looks for work before it sleeps. Longer than the serial gaps between the pieces
// of a step, shorter than what a neighbour on a shared host would mind.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesPerLook = 8;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as ready() is, false after kSpin.
template <typename Ready>
bool SpinUntil(Ready ready) {
  if (ready()) return true;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      Pause();
      if (ready()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// A job's tickets in one word: the high half says how many there are, the low half how many were
// taken. They travel together so that a thread which wakes late can never take a ticket of one job
// by the count of another.
constexpr uint64_t kTicketMax = uint64_t{1} << 30;
constexpr uint64_t Tickets(uint64_t count) {
  return count << 32;
}
constexpr uint64_t Count(uint64_t word) {
  return word >> 32;
}
constexpr uint64_t Taken(uint64_t word) {
  return word & 0xFFFFFFFFu;
}
constexpr bool HasWork(uint64_t word) {
  return Taken(word) < Count(word);
}

}  // namespace

// How a job passes: the caller writes body_, parts_ and grain_, then publishes the tickets
// (release). Whoever takes a real ticket (acquire) reads them; they cannot change before that
// ticket is counted in done_, because the caller waits for done_ == count. Sleepers: both sides use
// seq_cst, so either the publisher sees the sleeper counted, or the sleeper sees the tickets.
struct ThreadPool::Impl {
  Impl(int n, std::vector<int> bound_to) : workers(n), cpus(std::move(bound_to)) {
    threads.reserve(static_cast<size_t>(n - 1));
    for (int i = 1; i < n; ++i) {
      threads.emplace_back([this, i] {
        Bind(i);
        Loop(i);
      });
    }
  }

  void Bind(int worker) {
    if (cpus.empty() || PinThisThread(cpus[static_cast<size_t>(worker)])) return;
    refused.store(true);
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stop.store(true);
    }
    work_cv.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void Publish(uint64_t count) {
    done.store(0, std::memory_order_relaxed);
    tickets.store(Tickets(count));
    const int idle = sleepers.load();
    if (idle == 0) return;
    {
      std::lock_guard lock(mutex);
    }  // whoever is about to sleep is now asleep or has seen the tickets
    if (count - 1 >= static_cast<uint64_t>(idle)) {
      work_cv.notify_all();
    } else {
      for (uint64_t i = 0; i + 1 < count; ++i) work_cv.notify_one();
    }
  }

  // Takes tickets until there are none, and reports them done in one go.
  void Work(int worker) {
    uint64_t finished = 0;
    uint64_t count = 0;
    while (HasWork(tickets.load(std::memory_order_relaxed))) {
      const uint64_t word = tickets.fetch_add(1, std::memory_order_acq_rel);
      if (!HasWork(word)) break;
      count = Count(word);
      const size_t first = static_cast<size_t>(Taken(word)) * grain;
      const size_t last = std::min(parts, first + grain);
      for (size_t part = first; part < last; ++part) (*body)(part, worker);
      ++finished;
    }
    if (finished == 0) return;
    if (done.fetch_add(finished) + finished == count && caller_asleep.load()) {
      { std::lock_guard lock(mutex); }
      done_cv.notify_one();
    }
  }

  void Loop(int worker) {
    const auto ready = [this] {
      return HasWork(tickets.load(std::memory_order_relaxed)) || stop.load();
    };
    while (true) {
      if (!SpinUntil(ready)) {
        std::unique_lock lock(mutex);
        sleepers.fetch_add(1);
        work_cv.wait(lock, [this] { return HasWork(tickets.load()) || stop.load(); });
        sleepers.fetch_sub(1);
      }
      if (stop.load()) return;
      Work(worker);
    }
  }

  void WaitForOthers(uint64_t count) {
    const auto ready = [&] { return done.load(std::memory_order_acquire) == count; };
    if (SpinUntil(ready)) return;
    std::unique_lock lock(mutex);
    caller_asleep.store(true);
    done_cv.wait(lock, [&] { return done.load() == count; });
    caller_asleep.store(false);
  }

  const int workers;
  const std::vector<int> cpus;  // by worker; empty: not bound
  std::atomic<bool> refused{false};
  alignas(64) std::atomic<uint64_t> tickets{0};
  alignas(64) std::atomic<uint64_t> done{0};
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<bool> caller_asleep{false};
  std::atomic<bool> stop{false};
  std::atomic<bool> busy{false};
  const FunctionRef<void(size_t, int)>* body = nullptr;
  size_t parts = 0;
  size_t grain = 1;
  std::mutex mutex;
  std::condition_variable work_cv;
  std::condition_variable done_cv;
  std::vector<std::thread> threads;
};

ThreadPool::ThreadPool(int workers, std::vector<int> cpus) {
  KVASIR_CHECK(workers >= 1 && workers <= 4096);
  KVASIR_CHECK(cpus.empty() || cpus.size() == static_cast<size_t>(workers));
  impl_ = std::make_unique<Impl>(workers, std::move(cpus));
}

void ThreadPool::BindCaller() {
  impl_->Bind(0);
}

bool ThreadPool::pinned() const {
  return !impl_->cpus.empty() && !impl_->refused.load();
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::workers() const {
  return impl_->workers;
}

void ThreadPool::ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) {
  if (parts == 0) return;
  KVASIR_CHECK(!impl_->busy.exchange(true));  // one caller at a time, not re-entrant
  if (parts == 1 || impl_->workers == 1) {
    for (size_t part = 0; part < parts; ++part) body(part, 0);
  } else {
    impl_->body = &body;
    impl_->parts = parts;
    impl_->grain = (parts + kTicketMax - 1) / kTicketMax;
    const uint64_t count = (parts + impl_->grain - 1) / impl_->grain;
    impl_->Publish(count);
    impl_->Work(0);
    impl_->WaitForOthers(count);
  }
  impl_->busy.store(false);
}

}  // namespace kvasir
