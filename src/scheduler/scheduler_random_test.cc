// Random operations against the promises of scheduler.h, on made-up machines of every kind: one and
// several groups of layers, tiny pools, all orders and ways to preempt. TestMachine verifies every
// byte; an oracle without a cache knows every token.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "scheduler/test_rig.h"

namespace kvasir {
namespace {

constexpr int64_t kMilli = 1'000'000;

struct Shape {
  KvCacheOptions cache;
  SchedulerOptions options;
  uint64_t arrival_one_in = 6;
};

int32_t Between(Rng& rng, int32_t low, int32_t high) {
  return low + static_cast<int32_t>(rng.Below(static_cast<uint64_t>(high - low + 1)));
}

Shape RandomShape(Rng& rng) {
  Shape shape;
  KvCacheOptions& cache = shape.cache;
  cache.block_tokens = rng.Below(2) == 0 ? 4 : 8;
  const int32_t blocks = Between(rng, 4, 40);
  const int32_t window = Between(rng, 1, 40);
  const KvGroup windowed{GroupRule::kWindow, window, 0, 0};
  const KvGroup chunked{GroupRule::kChunked, window, 0, 0};
  switch (rng.Below(6)) {
    case 0:
      cache.groups = {KvGroup{}, windowed};
      break;
    case 1:
      cache.groups = {KvGroup{}, chunked};
      break;
    case 2:
      cache.groups = {KvGroup{}, chunked, windowed};
      break;
    default:
      break;  // one that keeps everything
  }
  for (size_t g = 0; g < cache.groups.size(); ++g) {
    cache.blocks.push_back(g == 0 ? blocks : Between(rng, 4, 40));
  }
  cache.host_slots = rng.Below(3) == 0 ? 0 : Between(rng, 1, 60);
  cache.prefix_caching = rng.Below(8) != 0;
  SchedulerOptions& options = shape.options;
  options.max_num_batched_tokens = Between(rng, 1, 60);
  options.max_num_seqs = Between(rng, 1, 8);
  options.max_model_len = Between(rng, 20, 200);  // may be more than the pool holds
  options.reserve_blocks = 0.1 * static_cast<double>(rng.Below(3));
  options.growth_share = 0.5 * static_cast<double>(rng.Below(3));
  options.policy = static_cast<SchedulingPolicy>(rng.Below(3));
  options.preempt = static_cast<PreemptMode>(rng.Below(3));
  options.age_step_ns = 100 * kMilli;  // steps are a millisecond apart
  options.itl_target_ns = rng.Below(2) == 0 ? 0 : 20 * kMilli;
  options.prefill_beside_decodes = rng.Below(2) == 0 ? 0 : Between(rng, 1, 40);
  options.itl_floor_rows = Between(rng, 1, 16);
  options.join_lookahead = Between(rng, 0, 4);
  if (rng.Below(2) == 0) options.resume_tokens = 2 << rng.Below(5);
  shape.arrival_one_in = 2 + rng.Below(10);
  return shape;
}

struct Seen {
  uint64_t preempted = 0, swapped = 0, urgent = 0, joined = 0, found = 0, told = 0, exhausted = 0;
};

class PromiseCheck {
 public:
  PromiseCheck(uint64_t seed, int busy_steps)
      : busy_steps_(busy_steps),
        rng_(seed),
        shape_(RandomShape(rng_)),
        rig_(shape_.cache, shape_.options, 3, 40) {}

  void Run(Seen& seen) {
    for (int step = 0;; ++step) {
      const bool busy = step < busy_steps_;
      if (!busy && rig_.scheduler().idle()) break;
      // What came in too fast would take long; that all of it ends follows from CheckFirst.
      if (step == busy_steps_ + kDrainSteps) CancelAll();
      if (busy) {
        if (rng_.Below(shape_.arrival_one_in) == 0) Arrive();
        Leave();
      }
      rig_.now_ns += kMilli;
      rig_.cache().Expire(rig_.now_ns);
      Step(seen);
      if (::testing::Test::HasFailure()) break;
      CheckFirst(step);
    }
    EXPECT_TRUE(open_.empty());
    for (int32_t g = 0; g < rig_.cache().groups(); ++g) {
      EXPECT_EQ(rig_.cache().available(g), rig_.cache().total_blocks(g)) << "group " << g;
    }
    EXPECT_EQ(rig_.cache().free_host_slots(), rig_.host_slots());
    CheckTold(seen);
    const SchedulerCounts& counts = rig_.scheduler().counts();
    seen.preempted += counts.preemptions;
    seen.swapped += counts.preemptions_swap;
    seen.urgent += counts.preemptions_priority;
    seen.found += counts.found_tokens;
  }

 private:
  static constexpr int kDrainSteps = 6000;
  // Steps that the request ranked first may take to its end. What may run before it: the seats that
  // are taken, each to its end.
  static constexpr int kFirstSteps = 2500;
  using Choice = std::pair<uint64_t, int32_t>;

  void Arrive() {
    RigRequest request;
    request.id = next_id_;
    // Beginnings of a few long texts, then something of its own: many prompts share a part.
    const uint64_t text = rng_.Below(4);
    const int32_t shared = Between(rng_, 0, 50), own = Between(rng_, shared == 0 ? 1 : 0, 12);
    for (int32_t i = 0; i < shared; ++i) {
      request.prompt.push_back(
          static_cast<TokenId>(CounterRandom(9, text, static_cast<uint64_t>(i)) % 3));
    }
    for (int32_t i = 0; i < own; ++i) request.prompt.push_back(Between(rng_, 0, 2));
    request.choices = rng_.Below(3) == 0 ? Between(rng_, 1, 4) : 1;
    request.max_tokens = Between(rng_, 0, 40);
    request.priority = Between(rng_, -2, 2);
    request.salt = rng_.Below(4) == 0 ? "salt" : "";
    request.read_cache = rng_.Below(6) != 0;
    request.hint.retain = static_cast<Retain>(rng_.Below(5));
    request.hint.last_use = rng_.Below(10) == 0;
    if (rng_.Below(10) == 0) request.hint.expires_ns = rig_.now_ns + 50 * kMilli;
    if (rng_.Below(8) == 0) request.deadline_ns = rig_.now_ns + 30 * kMilli;
    const auto size = static_cast<int32_t>(request.prompt.size());
    if (!rig_.scheduler().Admissible(size, request.choices).ok()) return;
    rig_.Add(request);
    ++next_id_;
    arrived_[request.id] = rig_.now_ns;
    for (int32_t c = 0; c < request.choices; ++c) open_.insert({request.id, c});
  }

  void Leave() {
    for (const ExpiredRequest& expired : rig_.scheduler().Expire(rig_.now_ns)) {
      Close(expired.request.value, -1);
    }
    if (next_id_ == 1) return;
    const uint64_t id = 1 + rng_.Below(next_id_ - 1);
    if (rng_.Below(60) == 0) {
      rig_.scheduler().Cancel(RequestId(id));
      Close(id, -1);
    } else if (rng_.Below(40) == 0) {
      const auto choice = static_cast<int32_t>(rng_.Below(4));
      const bool was_open = open_.contains({id, choice});
      EXPECT_EQ(rig_.scheduler().FinishChoice(RequestId(id), choice), was_open);
      Close(id, choice);
    }
    rig_.scheduler().CheckIntegrity();
  }

  void CancelAll() {
    for (uint64_t id = 1; id < next_id_; ++id) {
      rig_.scheduler().Cancel(RequestId(id));
      Close(id, -1);
    }
  }

  // Ended from outside: what it said is a beginning of what it would have said.
  void Close(uint64_t id, int32_t choice) {
    std::erase_if(open_, [&](const Choice& c) {
      const bool match = c.first == id && (choice < 0 || c.second == choice);
      if (match) cut_.insert(c);
      if (match) decoding_.erase(c);
      return match;
    });
  }

  void CheckPlan(const ScheduledBatch& batch) {
    int32_t rows = 0, prefill_rows = 0;
    std::set<Choice> in_batch;
    for (const ScheduledItem& item : batch.items) {
      rows += item.count;
      prefill_rows += item.prefill ? item.count : 0;
      const Choice who{item.sequence->request.value, item.sequence->key.choice};
      EXPECT_TRUE(in_batch.insert(who).second) << "twice in a batch";
      EXPECT_EQ(item.first, item.sequence->computed);
      EXPECT_EQ(item.samples, item.first + item.count == item.sequence->size());
      EXPECT_TRUE(item.prefill || item.count == 1);
    }
    const SchedulerOptions& options = shape_.options;
    EXPECT_LE(rows, options.max_num_batched_tokens);
    EXPECT_EQ(rows, batch.rows);
    EXPECT_EQ(prefill_rows, batch.prefill_rows);
    EXPECT_LE(rig_.scheduler().counts().running, rig_.scheduler().seats());
    if (batch.preempted == 0 && batch.exhausted.empty()) {
      EXPECT_TRUE(
          std::includes(in_batch.begin(), in_batch.end(), decoding_.begin(), decoding_.end()))
          << "somebody who decodes was left out";
      if (options.itl_target_ns > 0 && !decoding_.empty()) {
        EXPECT_LE(prefill_rows,
                  rig_.scheduler().costs().PrefillRows(static_cast<int32_t>(decoding_.size()),
                                                       options.itl_floor_rows));
      } else if (options.prefill_beside_decodes > 0 && !decoding_.empty()) {
        EXPECT_LE(prefill_rows, options.prefill_beside_decodes);
      }
    }
    decoding_.clear();
  }

  void Step(Seen& seen) {
    ScheduledBatch batch = rig_.Plan();
    for (const ChoiceId& full : batch.exhausted) {
      Close(full.request.value, full.choice);
      ++seen.exhausted;
    }
    CheckPlan(batch);
    seen.joined += static_cast<uint64_t>(rig_.scheduler().counts().joining);
    if (batch.empty()) {
      EXPECT_TRUE(rig_.scheduler().idle());
      return;
    }
    StepCost cost{batch.prefill_rows, batch.rows - batch.prefill_rows, 0,
                  static_cast<int32_t>(batch.moves.size()), 0};
    cost.run_ns = 5 * kMilli + batch.rows * (kMilli / 2);
    cost.move_ns = cost.moved_blocks * Between(rng_, 1, 4) * kMilli;
    rig_.scheduler().Observe(cost);
    rig_.Run(batch);
    if (rng_.Below(70) == 0) {
      for (const ChoiceId& lost : rig_.scheduler().Abort(std::move(batch))) {
        Close(lost.request.value, lost.choice);
      }
      rig_.scheduler().CheckIntegrity();
      return;
    }
    std::vector<Choice> sampled;
    for (const ScheduledItem& item : batch.items) {
      if (!item.samples) continue;
      for (const int32_t choice : rig_.scheduler().OpenChoices(item)) {
        sampled.push_back({item.sequence->request.value, choice});
      }
    }
    rig_.Commit(std::move(batch));
    for (const Choice& who : sampled) {
      if (rig_.ended.contains(who)) {
        open_.erase(who);
      } else {
        decoding_.insert(who);
      }
    }
  }

  // Nobody starves: the open request ranked first ends within a bound, for every order.
  void CheckFirst(int step) {
    const SchedulerOptions& options = shape_.options;
    std::pair<int64_t, uint64_t> first{INT64_MAX, 0};
    for (const Choice& choice : open_) {
      int64_t rank = arrived_.at(choice.first);
      if (options.policy == SchedulingPolicy::kPriority) {
        rank += rig_.request(choice.first).priority * options.age_step_ns;
      }
      first = std::min(first, {rank, choice.first});
    }
    if (first.second != first_) {
      first_ = first.second;
      first_since_ = step;
    }
    EXPECT_LT(step - first_since_, kFirstSteps) << "request " << first_ << " starves";
  }

  void CheckTold(Seen& seen) {
    for (const auto& [who, said] : rig_.told) {
      const auto [want, end] = rig_.Oracle(who.first, who.second);
      seen.told += said.size();
      if (cut_.contains(who)) {
        EXPECT_LE(said.size(), want.size());
        EXPECT_TRUE(std::equal(said.begin(), said.end(), want.begin()));
      } else {
        EXPECT_EQ(said, want) << "request " << who.first;
        EXPECT_EQ(rig_.ended.at(who), end);
      }
    }
  }

  int busy_steps_;
  Rng rng_;
  const Shape shape_;
  SchedulerRig rig_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, int64_t> arrived_;
  std::set<Choice> open_, decoding_, cut_;
  uint64_t first_ = 0;
  int first_since_ = 0;
};

TEST(SchedulerRandom, PromisesHold) {
  Seen seen;
  for (uint64_t seed = 1; seed <= 400 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PromiseCheck(seed, 500).Run(seen);
  }
  // Everything was there.
  EXPECT_GT(seen.preempted, 1000u);
  EXPECT_GT(seen.swapped, 100u);
  EXPECT_GT(seen.urgent, 100u);
  EXPECT_GT(seen.joined, 300u);
  EXPECT_GT(seen.found, 10000u);
  EXPECT_GT(seen.told, 10000u);
  EXPECT_GT(seen.exhausted, 10u);
}

// Long enough under too much load to see who never gets a turn.
TEST(SchedulerRandom, NobodyStarvesUnderOverload) {
  Seen seen;
  for (uint64_t seed = 1001; seed <= 1012 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PromiseCheck(seed, 6000).Run(seen);
  }
}

}  // namespace
}  // namespace kvasir
