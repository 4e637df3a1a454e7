#include "apps/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <mutex>

namespace kvasir {
namespace {

constexpr int kQuit = SIGUSR1;  // ends the watching thread

sigset_t Watched() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, kQuit);
  return set;
}

}  // namespace

struct StopSignals::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  bool quitting = false;  // the destructor's: a SIGUSR1 from elsewhere means nothing
  int signal = 0;
};

StopSignals::StopSignals() : state_(new State()) {
  const sigset_t set = Watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  watcher_ = std::thread([this] { Watch(); });
}

StopSignals::~StopSignals() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->quitting = true;
  }
  pthread_kill(watcher_.native_handle(), kQuit);
  watcher_.join();
}

void StopSignals::Ready() {
  const std::lock_guard lock(state_->mutex);
  state_->ready = true;
}

int StopSignals::Wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->signal != 0; });
  return state_->signal;
}

void StopSignals::Watch() {
  const sigset_t set = Watched();
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    const std::lock_guard lock(state_->mutex);
    if (signal == kQuit) {
      if (state_->quitting) return;
      continue;
    }
    if (!state_->ready) _exit(0);
    if (state_->signal != 0) _exit(1);
    state_->signal = signal;
    state_->changed.notify_all();
  }
}

}  // namespace kvasir
