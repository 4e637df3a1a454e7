// For tests: a cache, a scheduler and a TestMachine that runs the plans. The next token is a hash
// of the history, so an oracle without any cache knows it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "kvcache/kv_cache.h"
#include "scheduler/scheduler.h"
#include "scheduler/test_machine.h"

namespace kvasir {

struct RigRequest {
  uint64_t id = 0;
  std::vector<TokenId> prompt;
  int32_t max_tokens = 16;
  int32_t choices = 1;
  int32_t priority = 0;
  std::string salt;
  bool read_cache = true;
  CacheHint hint;
  int64_t deadline_ns = INT64_MAX;
};

class SchedulerRig {
 public:
  // vocab: of sampled tokens; few give many shared histories. stop_one_in: 0: never.
  SchedulerRig(const KvCacheOptions& cache_options, const SchedulerOptions& options,
               int32_t vocab = 1000, uint64_t stop_one_in = 0)
      : options_(options),
        host_slots_(cache_options.host_slots),
        vocab_(vocab),
        stop_one_in_(stop_one_in),
        cache_(KvCache::Make(cache_options).value()),
        machine_(cache_options, cache_.get()),
        scheduler_(options, cache_.get()) {}

  KvCache& cache() { return *cache_; }
  Scheduler& scheduler() { return scheduler_; }
  int32_t host_slots() const { return host_slots_; }
  int64_t now_ns = 0;
  std::map<std::pair<uint64_t, int32_t>, std::vector<TokenId>> told;  // tokens, per choice
  std::map<std::pair<uint64_t, int32_t>, ChoiceEnd> ended;

  void Add(const RigRequest& r) {
    NewRequest request;
    request.id = RequestId(r.id);
    request.prompt = r.prompt;
    request.choices = r.choices;
    request.max_tokens = r.max_tokens;
    request.deadline_ns = r.deadline_ns;
    request.space = cache_->OpenSpace("", r.salt);
    request.hint = r.hint;
    request.read_cache = r.read_cache;
    request.priority = r.priority;
    requests_[r.id] = r;
    scheduler_.Add(std::move(request), now_ns);
  }
  const RigRequest& request(uint64_t id) const { return requests_.at(id); }

  // What the choice must say, by an oracle that has no cache, and how it ends.
  std::pair<std::vector<TokenId>, ChoiceEnd> Oracle(uint64_t id, int32_t choice) const {
    const RigRequest& r = requests_.at(id);
    uint64_t hash = TestMachine::Hashes(r.salt, r.prompt).back();
    std::vector<TokenId> said;
    for (;;) {
      if (r.max_tokens == 0) return {said, ChoiceEnd::kLength};
      const auto [token, stop] = Sample(hash, choice);
      said.push_back(token);
      if (stop) return {said, ChoiceEnd::kStop};
      const size_t size = r.prompt.size() + said.size();
      if (said.size() >= static_cast<size_t>(r.max_tokens) ||
          size >= static_cast<size_t>(options_.max_model_len)) {
        return {said, ChoiceEnd::kLength};
      }
      hash = TestMachine::Next(hash, token);
    }
  }

  ScheduledBatch Plan() { return scheduler_.Plan(now_ns); }

  // Does the moves, verifies and writes every row.
  void Run(const ScheduledBatch& batch) {
    for (const BlockMove& move : batch.moves) machine_.Move(move);
    for (const SlotCopy& copy : batch.slot_copies) machine_.Copy(copy);
    const int32_t resume = options_.resume_tokens;
    for (const ScheduledItem& item : batch.items) {
      const std::vector<uint64_t> hashes = Hashes(*item.sequence);
      machine_.Read(item, hashes);
      machine_.ReadSlot(item, hashes, resume);
    }
    for (const ScheduledItem& item : batch.items) {
      const std::vector<uint64_t> hashes = Hashes(*item.sequence);
      machine_.Write(item, hashes);
      machine_.WriteSlot(item, hashes, resume);
    }
  }

  void Commit(ScheduledBatch batch) {
    std::vector<ChoiceOutcome> outcomes;
    std::vector<std::pair<uint64_t, int32_t>> who;
    for (size_t i = 0; i < batch.items.size(); ++i) {
      const ScheduledItem& item = batch.items[i];
      if (!item.samples) continue;
      const uint64_t id = item.sequence->request.value;
      const uint64_t hash = Hashes(*item.sequence).back();
      for (const int32_t choice : scheduler_.OpenChoices(item)) {
        ChoiceOutcome outcome{static_cast<int32_t>(i), choice, -1, false, false};
        if (requests_.at(id).max_tokens > 0) {
          std::tie(outcome.token, outcome.stop) = Sample(hash, choice);
          told[{id, choice}].push_back(outcome.token);
        }
        outcomes.push_back(outcome);
        who.push_back({id, choice});
      }
    }
    const auto ends = scheduler_.Commit(std::move(batch), outcomes);
    ASSERT_EQ(ends.size(), who.size());
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] != ChoiceEnd::kGoesOn) ended[who[i]] = ends[i];
    }
    scheduler_.CheckIntegrity();
  }

  // Plan, run, commit. A description of the plan: "1.0[0+32] 2.0[40+1]! " (! samples).
  std::string Step() {
    ScheduledBatch batch = Plan();
    std::string text = Describe(batch);
    if (batch.empty()) return text;
    Run(batch);
    Commit(std::move(batch));
    return text;
  }

  static std::string Describe(const ScheduledBatch& batch) {
    std::string text;
    for (const ScheduledItem& item : batch.items) {
      text += std::to_string(item.sequence->request.value) + "." +
              std::to_string(item.sequence->key.choice) + "[" + std::to_string(item.first) + "+" +
              std::to_string(item.count) + "]" + (item.samples ? "!" : "") + " ";
    }
    return text;
  }

 private:
  std::pair<TokenId, bool> Sample(uint64_t hash, int32_t choice) const {
    const uint64_t draw = CounterRandom(hash, 2, static_cast<uint64_t>(choice));
    return {static_cast<TokenId>(draw % static_cast<uint64_t>(vocab_)),
            stop_one_in_ > 0 && (draw >> 32) % stop_one_in_ == 0};
  }
  std::vector<uint64_t> Hashes(const Sequence& sequence) const {
    return TestMachine::Hashes(requests_.at(sequence.request.value).salt, sequence.tokens);
  }

  SchedulerOptions options_;
  int32_t host_slots_;
  int32_t vocab_;
  uint64_t stop_one_in_;
  std::unique_ptr<KvCache> cache_;
  TestMachine machine_;
  Scheduler scheduler_;
  std::map<uint64_t, RigRequest> requests_;
};

}  // namespace kvasir
