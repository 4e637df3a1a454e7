// The scheduler against a naive one on random operations: for requests with one choice the whole
// plan of every step must be the same; for n > 1 the promises of scheduler.h are checked.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "scheduler/scheduler.h"

namespace kvasir {
namespace {

struct Shape {
  int32_t blocks, block_tokens, seats, budget, max_len, watermark;
};

// Counts blocks, knows no ids. One choice per request.
class NaiveScheduler {
 public:
  explicit NaiveScheduler(const Shape& shape) : shape_(shape), free_(shape.blocks) {}

  struct Item {
    uint64_t id;
    int32_t first, count;
    bool operator==(const Item&) const = default;
  };
  struct Sequence {
    uint64_t id;
    int32_t prompt, max_tokens;
    int32_t size, computed = 0, target = 0, blocks = 0;
  };

  void Add(uint64_t id, int32_t prompt, int32_t max_tokens) {
    waiting_.push_back({id, prompt, max_tokens, prompt});
  }
  void Remove(uint64_t id) {
    for (auto* list : {&running_, &waiting_}) {
      for (auto it = list->begin(); it != list->end(); ++it) {
        if (it->id != id) continue;
        free_ += it->blocks;
        list->erase(it);
        return;
      }
    }
  }
  std::vector<Item> Plan(std::set<uint64_t>& ended) {
    std::vector<Item> items;
    int32_t rows = 0;
    bool preempted = false;
    std::vector<uint64_t> decoding;
    for (const Sequence& s : running_) {
      if (s.computed >= s.target) decoding.push_back(s.id);
    }
    for (const uint64_t id : decoding) {
      Sequence* s = Find(id);
      if (s == nullptr) continue;
      const bool needs = s->computed == s->blocks * shape_.block_tokens;
      while (needs && free_ == 0 && Find(id) != nullptr) {
        if (running_.size() == 1) {
          Remove(id);
          ended.insert(id);
        } else {
          Sequence victim = running_.back();
          running_.pop_back();
          free_ += victim.blocks;
          victim.blocks = victim.computed = 0;
          auto at = waiting_.begin();
          while (at != waiting_.end() && at->id < victim.id) ++at;
          waiting_.insert(at, victim);
          preempted = true;
        }
      }
      s = Find(id);
      if (s == nullptr) continue;
      if (needs) {
        --free_;
        ++s->blocks;
      }
      items.push_back({id, s->computed, 1});
      ++rows;
    }
    for (Sequence& s : running_) {
      if (s.computed < s.target && rows < shape_.budget) Chunk(s, rows, items);
    }
    while (!preempted && rows < shape_.budget && !waiting_.empty()) {
      Sequence s = waiting_.front();
      s.blocks = (s.size + shape_.block_tokens - 1) / shape_.block_tokens;
      if (static_cast<int32_t>(running_.size()) >= shape_.seats) break;
      if (!running_.empty() && free_ - s.blocks < shape_.watermark) break;
      waiting_.pop_front();
      free_ -= s.blocks;
      s.target = s.size;
      running_.push_back(s);
      Chunk(running_.back(), rows, items);
    }
    return items;
  }
  // Ids that ended.
  std::set<uint64_t> Commit(const std::vector<Item>& items) {
    std::set<uint64_t> ended;
    for (const Item& item : items) {
      Sequence* s = Find(item.id);
      s->computed += item.count;
      if (s->computed < s->size) continue;
      ++s->size;
      if (s->size - s->prompt < s->max_tokens && s->size < shape_.max_len) continue;
      Remove(item.id);
      ended.insert(item.id);
    }
    return ended;
  }
  int32_t free() const { return free_; }

 private:
  Sequence* Find(uint64_t id) {
    for (Sequence& s : running_) {
      if (s.id == id) return &s;
    }
    return nullptr;
  }
  void Chunk(Sequence& s, int32_t& rows, std::vector<Item>& items) {
    const int32_t count = std::min(s.size - s.computed, shape_.budget - rows);
    items.push_back({s.id, s.computed, count});
    rows += count;
  }
  Shape shape_;
  int32_t free_;
  std::list<Sequence> running_, waiting_;  // in order of arrival
};

std::vector<ChoiceOutcome> Outcomes(const Scheduler& scheduler, const ScheduledBatch& batch) {
  std::vector<ChoiceOutcome> outcomes;
  for (size_t i = 0; i < batch.items.size(); ++i) {
    if (!batch.items[i].samples) continue;
    for (const int32_t choice : scheduler.OpenChoices(batch.items[i])) {
      outcomes.push_back({static_cast<int32_t>(i), choice, 1, false, false});
    }
  }
  return outcomes;
}

Shape RandomShape(Rng& rng) {
  Shape shape{};
  shape.block_tokens = 8;
  shape.blocks = 2 + static_cast<int32_t>(rng.Below(20));
  shape.budget = 1 + static_cast<int32_t>(rng.Below(40));
  shape.seats = std::min(1 + static_cast<int32_t>(rng.Below(8)), shape.budget);
  shape.max_len = 20 + static_cast<int32_t>(rng.Below(200));  // may be more than the pool holds
  shape.watermark = static_cast<int32_t>(rng.Below(3));
  return shape;
}

SchedulerOptions OptionsOf(const Shape& shape) {
  SchedulerOptions options;
  options.block_tokens = shape.block_tokens;
  options.max_model_len = shape.max_len;
  options.max_num_seqs = shape.seats;
  options.max_num_batched_tokens = shape.budget;
  // The middle of the step that rounds up to it.
  options.reserve_blocks = std::max(0.0, (shape.watermark - 0.5) / shape.blocks);
  return options;
}

NewRequest MakeRequest(uint64_t id, int32_t prompt, int32_t max_tokens, int32_t choices) {
  NewRequest request;
  request.id = RequestId(id);
  request.prompt.assign(static_cast<size_t>(prompt), 0);
  request.max_tokens = max_tokens;
  request.choices = choices;
  return request;
}

void CompareWithNaive(uint64_t seed, uint64_t& preemptions, uint64_t& exhausted) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed);
  const Shape shape = RandomShape(rng);
  BlockPool pool(shape.blocks);
  Scheduler scheduler(OptionsOf(shape), &pool);
  NaiveScheduler naive(shape);
  std::set<uint64_t> open;
  uint64_t next_id = 1;
  for (int step = 0; step < 1500; ++step) {
    if (step < 1200 && rng.Below(5) == 0) {
      const int32_t prompt = 1 + static_cast<int32_t>(rng.Below(60));
      const int32_t max_tokens = 1 + static_cast<int32_t>(rng.Below(60));
      if (scheduler.Admissible(prompt, 1).ok()) {
        scheduler.Add(MakeRequest(next_id, prompt, max_tokens, 1), 0);
        naive.Add(next_id, prompt, max_tokens);
        open.insert(next_id++);
      }
    }
    if (rng.Below(40) == 0 && !open.empty()) {
      auto it = open.begin();
      std::advance(it, rng.Below(open.size()));
      ASSERT_EQ(scheduler.Cancel(RequestId(*it)).size(), 1u);
      naive.Remove(*it);
      open.erase(it);
    }
    std::set<uint64_t> full;
    const auto want = naive.Plan(full);
    ScheduledBatch batch = scheduler.Plan(0);
    std::vector<NaiveScheduler::Item> got;
    for (const ScheduledItem& item : batch.items) {
      got.push_back({item.sequence->request.value, item.first, item.count});
    }
    std::set<uint64_t> got_full;
    for (const ChoiceId& choice : batch.exhausted) got_full.insert(choice.request.value);
    const bool same = got == want && got_full == full;
    EXPECT_TRUE(same) << "the plans of step " << step << " differ";
    exhausted += full.size();
    for (const uint64_t id : full) open.erase(id);
    if (!batch.empty()) {
      std::vector<uint64_t> ids;
      for (const ScheduledItem& item : batch.items) ids.push_back(item.sequence->request.value);
      const auto outcomes = Outcomes(scheduler, batch);
      const auto ends = scheduler.Commit(std::move(batch), outcomes);
      std::set<uint64_t> ended;
      for (size_t i = 0; i < ends.size(); ++i) {
        if (ends[i] != ChoiceEnd::kGoesOn) ended.insert(ids[static_cast<size_t>(outcomes[i].item)]);
      }
      if (!same) return;
      ASSERT_EQ(ended, naive.Commit(want));
      for (const uint64_t id : ended) open.erase(id);
    }
    if (!same) return;
    ASSERT_EQ(pool.free_blocks(), naive.free());
    scheduler.CheckIntegrity();
  }
  preemptions += scheduler.counts().preemptions;
}

TEST(SchedulerRandom, PlansAreThoseOfTheNaiveOne) {
  uint64_t preemptions = 0, exhausted = 0;
  for (uint64_t seed = 1; seed <= 120 && !HasFailure(); ++seed)
    CompareWithNaive(seed, preemptions, exhausted);
  EXPECT_GT(preemptions, 100u);
  EXPECT_GT(exhausted, 10u);
}

// With choices: the budget holds, every decoding sequence is in every step, arrivals are admitted
// in order, work ends.
class PromiseCheck {
 public:
  explicit PromiseCheck(uint64_t seed)
      : rng_(seed),
        shape_(RandomShape(rng_)),
        pool_(shape_.blocks),
        scheduler_(OptionsOf(shape_), &pool_) {}

  void Run() {
    int step = 0;
    for (; step < kStepsMax && !::testing::Test::HasFatalFailure(); ++step) {
      const bool busy = step < 600;
      if (!busy && scheduler_.idle()) break;
      if (busy) {
        Arrive();
        Leave();
      }
      Step();
      scheduler_.CheckIntegrity();
    }
    EXPECT_LT(step, kStepsMax) << "work did not end";
    EXPECT_EQ(pool_.free_blocks(), shape_.blocks);
  }

 private:
  static constexpr int kStepsMax = 20000;
  using Choice = std::pair<uint64_t, int32_t>;

  void Forget(uint64_t id) {
    never_ran_.erase(id);
    std::erase_if(decoding_, [&](const Choice& d) { return d.first == id; });
  }

  void Arrive() {
    if (rng_.Below(6) != 0) return;
    const int32_t prompt = 1 + static_cast<int32_t>(rng_.Below(40));
    const int32_t choices = 1 + static_cast<int32_t>(rng_.Below(4));
    if (!scheduler_.Admissible(prompt, choices).ok()) return;
    const int32_t max_tokens = 1 + static_cast<int32_t>(rng_.Below(40));
    scheduler_.Add(MakeRequest(next_id_, prompt, max_tokens, choices), 0);
    never_ran_.insert(next_id_++);
  }

  void Leave() {
    if (next_id_ == 1) return;
    if (rng_.Below(50) == 0) {
      const uint64_t id = 1 + rng_.Below(next_id_ - 1);
      scheduler_.Cancel(RequestId(id));
      Forget(id);
    }
    if (rng_.Below(20) != 0) return;
    const uint64_t id = 1 + rng_.Below(next_id_ - 1);
    const auto choice = static_cast<int32_t>(rng_.Below(4));
    if (scheduler_.FinishChoice(RequestId(id), choice)) decoding_.erase({id, choice});
    // Still in the queue, or was that its last choice? A request that is gone will not run.
    if (!scheduler_.scheduled_ns(RequestId(id))) {
      scheduler_.Cancel(RequestId(id));
      Forget(id);
    }
  }

  void CheckPlan(const ScheduledBatch& batch) {
    int32_t rows = 0;
    std::set<Choice> in_batch;
    for (const ScheduledItem& item : batch.items) {
      rows += item.count;
      const uint64_t id = item.sequence->request.value;
      in_batch.insert({id, item.sequence->key.choice});
      if (never_ran_.contains(id)) {
        EXPECT_EQ(*never_ran_.begin(), id) << "overtaken";
        never_ran_.erase(id);
      }
    }
    EXPECT_LE(rows, shape_.budget);
    EXPECT_EQ(rows, batch.rows);
    if (batch.preempted == 0 && batch.exhausted.empty()) {
      EXPECT_TRUE(
          std::includes(in_batch.begin(), in_batch.end(), decoding_.begin(), decoding_.end()));
    }
    decoding_.clear();
    for (const ScheduledItem& item : batch.items) {
      if (!item.samples) continue;
      for (const int32_t choice : scheduler_.OpenChoices(item)) {
        decoding_.insert({item.sequence->request.value, choice});
      }
    }
  }

  void Step() {
    ScheduledBatch batch = scheduler_.Plan(0);
    CheckPlan(batch);
    if (batch.empty()) {
      ASSERT_TRUE(scheduler_.idle() || !batch.exhausted.empty());
      return;
    }
    auto outcomes = Outcomes(scheduler_, batch);
    std::vector<Choice> who;
    for (ChoiceOutcome& outcome : outcomes) {
      who.push_back(
          {batch.items[static_cast<size_t>(outcome.item)].sequence->request.value, outcome.choice});
      outcome.stop = rng_.Below(25) == 0;
    }
    if (rng_.Below(60) == 0) {
      for (const ChoiceId& lost : scheduler_.Abort(std::move(batch)))
        decoding_.erase({lost.request.value, lost.choice});
      return;
    }
    const auto ends = scheduler_.Commit(std::move(batch), outcomes);
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] != ChoiceEnd::kGoesOn) decoding_.erase(who[i]);
    }
  }

  Rng rng_;
  const Shape shape_;
  BlockPool pool_;
  Scheduler scheduler_;
  uint64_t next_id_ = 1;
  std::set<uint64_t> never_ran_;
  std::set<Choice> decoding_;
};

TEST(SchedulerRandom, PromisesHoldWithChoices) {
  for (uint64_t seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PromiseCheck(seed).Run();
  }
}

}  // namespace
}  // namespace kvasir
