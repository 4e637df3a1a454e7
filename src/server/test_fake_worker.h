// For tests: a Worker that copies. Token p of a sequence is the token `distance` places before it,
// as COPY(L) fixtures give it; choice c > 0 adds c to ordinary tokens. One token per choice and
// step.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/worker.h"

namespace kvasir {

struct FakeWorkerOptions {
  int32_t vocab = 305;
  int32_t context = 4096;
  int32_t distance = 32;
  int32_t max_queue = 1024;
  int64_t step_us = 0;      // pause between steps
  int32_t fail_after = -1;  // tokens, then kError
  bool infinite_logprobs = false;
};

class FakeWorker : public Worker {
 public:
  explicit FakeWorker(FakeWorkerOptions options = {}) : options_(options) {
    info_.vocab = options.vocab;
    info_.max_model_len = options.context;
    info_.block_tokens = 16;
    info_.pool_blocks = 256;
    info_.kv_type_k = info_.kv_type_v = "f16";
    thread_ = std::thread([this] { Loop(); });
  }
  ~FakeWorker() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Status Submit(Request request, std::shared_ptr<EventSink> sink) override {
    const std::lock_guard lock(mutex_);
    if (static_cast<int32_t>(live_.size()) >= options_.max_queue)
      return ResourceExhausted("the queue is full");
    Live live;
    live.sink = std::move(sink);
    for (int32_t i = 0; i < request.n; ++i) live.choices.push_back({request.prompt, true});
    live.request = std::move(request);
    live_.emplace(live.request.id.value, std::move(live));
    ++submitted;
    wake_.notify_all();
    return Status::Ok();
  }
  void Cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled += live_.erase(id.value);
  }
  void FinishChoice(RequestId id, int32_t choice) override {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(id.value);
    if (found == live_.end()) return;
    found->second.choices[static_cast<size_t>(choice)].open = false;
    ++finished_choices;
    EraseIfDone(found);
  }
  void Cache(CacheRequest request, std::function<void(CacheReply)> done) override {
    const std::lock_guard lock(cache_mutex);
    cache_requests.push_back(std::move(request));
    done(cache_reply);
  }
  std::mutex cache_mutex;
  std::vector<CacheRequest> cache_requests;
  CacheReply cache_reply;  // what the next ones are answered
  const WorkerInfo& info() const override { return info_; }
  WorkerStats stats() const override {
    const std::lock_guard lock(mutex_);
    WorkerStats stats;
    (held_ ? stats.waiting : stats.running) = static_cast<int64_t>(live_.size());
    stats.books.total = info_.pool_blocks;
    stats.books.pinned = static_cast<int64_t>(live_.size());
    stats.books.free = info_.pool_blocks - stats.books.pinned;
    return stats;
  }
  void Drain(int64_t /*timeout_ns*/) override {}

  void Hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    wake_.notify_all();
  }

  std::atomic<uint64_t> submitted{0}, cancelled{0}, finished_choices{0};

 private:
  struct Choice {
    std::vector<TokenId> tokens;
    bool open;
  };
  struct Live {
    Request request;
    std::shared_ptr<EventSink> sink;
    std::vector<Choice> choices;
  };
  using Map = std::map<uint64_t, Live>;

  void EraseIfDone(Map::iterator it) {
    const auto& choices = it->second.choices;
    if (std::none_of(choices.begin(), choices.end(), [](const Choice& c) { return c.open; }))
      live_.erase(it);
  }

  std::unique_ptr<PositionLogprobs> Logprobs(TokenId token, int32_t top) const {
    auto out = std::make_unique<PositionLogprobs>();
    out->chosen = {token, -0.25F, 1};
    for (int32_t k = 0; k < top; ++k) {
      const bool last = options_.infinite_logprobs && k + 1 == top;
      out->top.push_back(
          {(token + k) % options_.vocab,
           last ? -std::numeric_limits<float>::infinity() : -0.25F - static_cast<float>(k), k + 1});
    }
    return out;
  }

  TokenEvent Next(Live* live, int32_t index) {
    Choice& choice = live->choices[static_cast<size_t>(index)];
    const SamplingParams& s = live->request.sampling;
    TokenEvent event;
    event.request = live->request.id;
    event.choice = index;
    const auto made = static_cast<int32_t>(choice.tokens.size() - live->request.prompt.size());
    if (options_.fail_after >= 0 && made >= options_.fail_after) {
      event.finish = FinishReason::kError;
      event.error = Internal("the logits are not finite");
      choice.open = false;
      return event;
    }
    if (made == 0 && s.prompt_logprobs >= 0 && index == 0) {
      event.prompt_logprobs = std::make_unique<std::vector<PositionLogprobs>>();
      for (size_t i = 1; i < live->request.prompt.size(); ++i)
        event.prompt_logprobs->push_back(
            std::move(*Logprobs(live->request.prompt[i], s.prompt_logprobs)));
    }
    if (s.max_tokens == 0) {
      event.finish = FinishReason::kLength;
      choice.open = false;
      return event;
    }
    const size_t back =
        std::min<size_t>(static_cast<size_t>(options_.distance), choice.tokens.size());
    event.token = choice.tokens[choice.tokens.size() - back];
    if (event.token < 256 && index > 0) event.token = (event.token + index) % 256;
    choice.tokens.push_back(event.token);
    if (s.logprobs >= 0) event.logprobs = Logprobs(event.token, s.logprobs);
    const auto in = [&](const std::vector<TokenId>& list) {
      return std::find(list.begin(), list.end(), event.token) != list.end();
    };
    if (made + 1 > s.min_tokens && (in(s.stop_tokens) || (!s.ignore_eos && in(s.end_tokens)))) {
      event.finish = FinishReason::kStop;
      event.stop_token = event.token;
    } else if (made + 1 >= s.max_tokens) {
      event.finish = FinishReason::kLength;
    }
    choice.open = event.finish == FinishReason::kNone;
    return event;
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      wake_.wait(lock, [this] { return ending_ || (!held_ && !live_.empty()); });
      std::vector<std::pair<std::shared_ptr<EventSink>, std::vector<TokenEvent>>> out;
      for (auto it = live_.begin(); !ending_ && it != live_.end();) {
        auto& [sink, events] = out.emplace_back(it->second.sink, std::vector<TokenEvent>{});
        for (int32_t c = 0; c < it->second.request.n; ++c)
          if (it->second.choices[static_cast<size_t>(c)].open)
            events.push_back(Next(&it->second, c));
        EraseIfDone(it++);
      }
      lock.unlock();
      for (auto& [sink, events] : out) sink->OnTokens(std::move(events));
      out.clear();
      if (options_.step_us > 0)
        std::this_thread::sleep_for(std::chrono::microseconds(options_.step_us));
      lock.lock();
    }
  }

  FakeWorkerOptions options_;
  WorkerInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Map live_;
  bool held_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace kvasir
