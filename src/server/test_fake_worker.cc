#include "server/test_fake_worker.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvasir {

FakeWorker::FakeWorker(FakeWorkerOptions options) : options_(options) {
  info_.vocab = options.vocab;
  info_.max_model_len = options.context;
  info_.block_tokens = 16;
  info_.pool_blocks = 256;
  info_.kv_type_k = info_.kv_type_v = "f16";
  info_.kv_verdict = options.kv_verdict;
  info_.kv_failed = !options.kv_verdict.empty();
  thread_ = std::thread([this] { Loop(); });
}

FakeWorker::~FakeWorker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Status FakeWorker::Submit(Request request, std::shared_ptr<EventSink> sink) {
  const std::lock_guard lock(mutex_);
  if (static_cast<int32_t>(live_.size()) >= options_.max_queue)
    return ResourceExhausted("the queue is full");
  Live live;
  live.sink = std::move(sink);
  for (int32_t i = 0; i < request.n; ++i) live.choices.push_back({request.prompt, true});
  requests_.push_back(request);
  live.request = std::move(request);
  live_.emplace(live.request.id.value, std::move(live));
  ++submitted;
  wake_.notify_all();
  return Status::Ok();
}

void FakeWorker::Cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancelled += live_.erase(id.value);
}

void FakeWorker::FinishChoice(RequestId id, int32_t choice) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(id.value);
  if (found == live_.end()) return;
  found->second.choices[static_cast<size_t>(choice)].open = false;
  ++finished_choices;
  EraseIfDone(found);
}

void FakeWorker::Cache(CacheRequest request, std::function<void(CacheReply)> done) {
  const std::lock_guard lock(cache_mutex);
  cache_requests.push_back(std::move(request));
  done(cache_reply);
}

WorkerStats FakeWorker::stats() const {
  const std::lock_guard lock(mutex_);
  WorkerStats stats = options_.stats;
  (held_ ? stats.waiting : stats.running) = static_cast<int64_t>(live_.size());
  stats.books.total = info_.pool_blocks;
  stats.books.pinned = static_cast<int64_t>(live_.size());
  stats.books.free = info_.pool_blocks - stats.books.pinned;
  return stats;
}

void FakeWorker::Hold(bool held) {
  const std::lock_guard lock(mutex_);
  held_ = held;
  wake_.notify_all();
}

std::vector<Request> FakeWorker::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::vector<CacheRequest> FakeWorker::commands() {
  const std::lock_guard lock(cache_mutex);
  return cache_requests;
}

void FakeWorker::EraseIfDone(Map::iterator it) {
  const auto& choices = it->second.choices;
  if (std::none_of(choices.begin(), choices.end(), [](const FakeChoice& c) { return c.open; }))
    live_.erase(it);
}

void FakeWorker::Loop() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    wake_.wait(lock, [this] { return ending_ || (!held_ && !live_.empty()); });
    std::vector<std::pair<std::shared_ptr<EventSink>, std::vector<TokenEvent>>> out;
    for (auto it = live_.begin(); !ending_ && it != live_.end();) {
      auto& [sink, events] = out.emplace_back(it->second.sink, std::vector<TokenEvent>{});
      for (int32_t c = 0; c < it->second.request.n; ++c)
        if (it->second.choices[static_cast<size_t>(c)].open)
          events.push_back(FakeNext(options_, it->second.request, c,
                                    &it->second.choices[static_cast<size_t>(c)]));
      EraseIfDone(it++);
    }
    lock.unlock();
    for (auto& [sink, events] : out) sink->OnTokens(events);
    out.clear();
    if (options_.step_us > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(options_.step_us));
    lock.lock();
  }
}

}  // namespace kvasir
