// Sequences of known lengths through the real KvCache without a model: how many fit, what is
// wasted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "kvcache/kv_cache.h"
#include "trace_replay.h"

namespace kvasir {

struct Job {
  int32_t prompt = 0;
  int32_t output = 0;
  int32_t have = 0;  // tokens generated so far
  int32_t total() const { return prompt + output; }
};

// Lines of "timestamp,prompt,output" (Azure/AzurePublicDataset, CC-BY-4.0); empty if not there.
inline std::deque<Job> LoadLengths(const std::string& path) {
  std::deque<Job> jobs;
  for (const std::string& line : GzipLines(path)) {
    Job job;
    if (std::sscanf(line.c_str(), "%*[^,],%d,%d", &job.prompt, &job.output) != 2) continue;
    if (job.output > 0) jobs.push_back(job);
  }
  return jobs;
}

struct Sums {
  int64_t steps = 0, running = 0, tokens = 0, dropped = 0;
  double waste = 0, full = 0;  // sums over steps: of shares of memory taken, of all memory
};

// Continuous batching over `slots` tokens of memory: each step every running sequence gets a token,
// before it as many are admitted as fit, by prompt, with 2 % kept free. Where a token finds no
// block the sequence admitted last is dropped and waits again with what it has.
class Paged {
 public:
  Paged(int64_t slots, int32_t block_tokens, int32_t longest)
      : tokens_(static_cast<size_t>(longest) + 1) {
    KvCacheOptions options;
    options.block_tokens = block_tokens;
    options.blocks = {static_cast<int32_t>(slots / block_tokens)};
    options.prefix_caching = false;
    cache_ = std::move(KvCache::Make(options).value());
    space_ = cache_->OpenSpace("", "");
  }

  Sums Run(std::deque<Job> queue) {
    Sums sums;
    while (!queue.empty() || !live_.empty()) {
      while (!queue.empty() && Admit(queue.front())) queue.pop_front();
      KVASIR_CHECK(!live_.empty());
      for (size_t i = 0; i < live_.size(); ++i) {
        while (i < live_.size() && !Write(*live_[i], Length(live_[i]->job))) {
          ++sums.dropped;
          queue.push_front(live_.back()->job);
          Drop(*live_.back());
          live_.pop_back();
        }
        if (i < live_.size()) ++live_[i]->job.have;
      }
      const double allocated = static_cast<double>(cache_->slots_allocated());
      const double used = static_cast<double>(cache_->slots_used());
      ++sums.steps;
      sums.running += static_cast<int64_t>(live_.size());
      sums.tokens += static_cast<int64_t>(live_.size());
      sums.waste += 1 - used / allocated;
      sums.full += used / (double{1} * cache_->total_blocks() * cache_->block_tokens());
      std::erase_if(live_, [&](const std::unique_ptr<Live>& at) {
        if (at->job.have < at->job.output) return false;
        Drop(*at);
        return true;
      });
    }
    cache_->CheckIntegrity();
    return sums;
  }

 private:
  struct Live {
    Job job;
    SequenceKv kv;
    int32_t written = 0;
  };
  static int32_t Length(const Job& job) { return job.prompt + job.have + 1; }

  // With its next token, so that it is not dropped at once.
  bool Admit(const Job& job) {
    auto live = std::make_unique<Live>();
    live->job = job;
    CacheMatch match;
    match.space = space_;
    const int32_t keep = live_.empty() ? 0 : cache_->total_blocks() / 50;
    if (!cache_->Fits(match, live->kv, Length(job), Length(job), keep)) return false;
    BeginResult begun;
    KVASIR_CHECK(
        cache_->Begin(live->kv, match, {{}, 0, Length(job), Length(job), false}, moves_, &begun));
    if (Length(job) > 1) KVASIR_CHECK(Write(*live, Length(job) - 1));
    live_.push_back(std::move(live));
    return true;
  }
  bool Write(Live& live, int32_t to) {
    if (!cache_->Grow(live.kv, live.written, to, moves_)) return false;
    cache_->Publish(live.kv, tokens_, live.written, to);
    live.written = to;
    return true;
  }
  void Drop(Live& live) { cache_->Release(live.kv, tokens_, live.written, CacheHint{}); }

  std::vector<TokenId> tokens_;
  std::unique_ptr<KvCache> cache_;
  int32_t space_ = -1;
  std::vector<BlockMove> moves_;
  std::vector<std::unique_ptr<Live>> live_;
};

}  // namespace kvasir
