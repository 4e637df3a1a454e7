// The scheduler against a naive one on random operations, where the whole plan of every step must
// be the same: one choice a request, order of arrival, nothing cached, preemption by recompute.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "scheduler/scheduler.h"

namespace kvasir {
namespace {

struct Shape {
  int32_t blocks, block_tokens, seats, budget, beside, max_len, watermark;
};

// Counts blocks, knows no ids; lists, no orders to keep.
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
    items_.clear();
    rows_ = 0;
    ++plan_;
    const bool preempted = Decode(ended);
    limit_ = shape_.budget;
    if (rows_ > 0 && shape_.beside > 0) limit_ = std::min(limit_, rows_ + shape_.beside);
    Prefill(preempted);
    if (!preempted || running_.empty()) Admit(ended);
    return items_;
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
  // True if somebody was preempted.
  bool Decode(std::set<uint64_t>& ended) {
    bool preempted = false;
    std::vector<uint64_t> decoding;
    for (const Sequence& s : running_) {
      if (s.computed >= s.target) decoding.push_back(s.id);
    }
    for (const uint64_t id : decoding) {
      if (Find(id) == nullptr) continue;
      const bool needs = Find(id)->computed == Find(id)->blocks * shape_.block_tokens;
      while (needs && free_ == 0 && Find(id) != nullptr) {
        if (running_.size() == 1) {
          Remove(id);
          ended.insert(id);
        } else {
          Preempt(id);
          preempted = true;
        }
      }
      Sequence* s = Find(id);
      if (s == nullptr) continue;
      if (needs) {
        --free_;
        ++s->blocks;
      }
      items_.push_back({id, s->computed, 1});
      ++rows_;
    }
    return preempted;
  }
  // Of those behind it the one with the least computed, of equals the last; else itself.
  void Preempt(uint64_t id) {
    auto victim = running_.end();
    bool behind = false;
    for (auto it = running_.begin(); it != running_.end(); ++it) {
      if (it->id == id) victim = it;
      if (behind && (victim->id == id || it->computed <= victim->computed)) victim = it;
      behind = behind || it->id == id;
    }
    Sequence s = *victim;
    running_.erase(victim);
    free_ += s.blocks;
    s.blocks = s.computed = 0;
    auto at = waiting_.begin();
    while (at != waiting_.end() && at->id < s.id) ++at;
    waiting_.insert(at, s);
  }
  void Prefill(bool preempted) {
    const int32_t room = limit_ - rows_, floor = std::min(16, std::max(1, room / 2));
    std::vector<Sequence*> todo;
    int32_t longest = 0;
    for (Sequence& s : running_) {
      if (s.computed >= s.target) continue;
      todo.push_back(&s);
      longest = std::max(longest, s.size - s.computed);
    }
    const int32_t quick = std::max({1, room / 4, longest / 4});
    for (size_t i = 0; i < todo.size() && rows_ < limit_; ++i) {
      const int32_t left = limit_ - rows_, rows = todo[i]->size - todo[i]->computed;
      int32_t most = left;
      if (rows > quick) {
        int32_t others = 0;
        for (size_t j = i + 1; j < todo.size(); ++j) {
          const int32_t r = todo[j]->size - todo[j]->computed;
          if (r <= quick) others += r;
        }
        int32_t ahead = 0;
        if (!preempted) others += Front(quick, room, todo[i]->id, ahead);
        most = std::max(left - std::max(std::min(room / 2, others), ahead), std::min(left, floor));
      }
      Chunk(*todo[i], most);
    }
  }
  // Rows of short ones at the head of the queue; in `ahead` those of a long one that is older.
  int32_t Front(int32_t quick, int32_t room, uint64_t id, int32_t& ahead) {
    int32_t rows = 0, seats = static_cast<int32_t>(running_.size()), visits = 0;
    for (const Sequence& s : waiting_) {
      if (++visits > 8 || rows >= room || ++seats > shape_.seats) break;
      if (StillBlocked(s)) break;
      if ((s.size > quick || visits == 1) && s.id < id) ahead = s.size;
      if (s.size > quick) break;
      rows += s.size;
    }
    return rows;
  }
  bool StillBlocked(const Sequence& s) const {
    return s.id == blocked_ && plan_ < until_ && !Fits(s);
  }
  int32_t Need(const Sequence& s) const {
    return (s.size + shape_.block_tokens - 1) / shape_.block_tokens;
  }
  bool Fits(const Sequence& s) const { return free_ - Need(s) >= shape_.watermark; }
  void Admit(std::set<uint64_t>& ended) {
    while (rows_ < limit_ && !waiting_.empty()) {
      Sequence s = waiting_.front();
      if (static_cast<int32_t>(running_.size()) >= shape_.seats) break;
      s.blocks = Need(s);
      if (running_.empty() && s.blocks > free_) {
        Remove(s.id);
        ended.insert(s.id);
        continue;
      }
      if (!running_.empty() && !Fits(s)) {
        if (s.id != blocked_ || plan_ >= until_) until_ = plan_ + 8;
        blocked_ = s.id;
        break;
      }
      waiting_.pop_front();
      free_ -= s.blocks;
      s.target = s.size;
      auto at = running_.begin();
      while (at != running_.end() && at->id < s.id) ++at;
      Chunk(*running_.insert(at, s), limit_ - rows_);
    }
  }
  Sequence* Find(uint64_t id) {
    for (Sequence& s : running_) {
      if (s.id == id) return &s;
    }
    return nullptr;
  }
  void Chunk(Sequence& s, int32_t most) {
    const int32_t count = std::min(s.size - s.computed, most);
    items_.push_back({s.id, s.computed, count});
    rows_ += count;
  }

  Shape shape_;
  int32_t free_;
  std::list<Sequence> running_, waiting_;  // in order of arrival
  std::vector<Item> items_;
  int32_t rows_ = 0, limit_ = 0;
  uint64_t plan_ = 0, blocked_ = 0, until_ = 0;
};

Shape RandomShape(Rng& rng) {
  Shape shape{};
  shape.block_tokens = 8;
  shape.blocks = 2 + static_cast<int32_t>(rng.Below(20));
  shape.budget = 1 + static_cast<int32_t>(rng.Below(60));
  shape.beside = static_cast<int32_t>(rng.Below(2) * rng.Below(40));  // 0: not bounded
  shape.seats = std::min(1 + static_cast<int32_t>(rng.Below(8)), shape.budget);
  shape.max_len = 20 + static_cast<int32_t>(rng.Below(200));  // may be more than the pool holds
  shape.watermark = static_cast<int32_t>(rng.Below(3));
  return shape;
}

SchedulerOptions OptionsOf(const Shape& shape) {
  SchedulerOptions options;
  options.max_model_len = shape.max_len;
  options.max_num_seqs = shape.seats;
  options.max_num_batched_tokens = shape.budget;
  options.prefill_beside_decodes = shape.beside;
  options.preempt = PreemptMode::kRecompute;
  options.growth_share = 0;
  // The middle of the step that rounds up to it.
  options.reserve_blocks = std::max(0.0, (shape.watermark - 0.5) / shape.blocks);
  return options;
}

struct Seen {
  uint64_t preemptions = 0, exhausted = 0;
};

class Comparison {
 public:
  explicit Comparison(uint64_t seed) : rng_(seed), shape_(RandomShape(rng_)), naive_(shape_) {
    KvCacheOptions options;
    options.block_tokens = shape_.block_tokens;
    options.blocks = {shape_.blocks};
    options.prefix_caching = false;
    cache_ = KvCache::Make(options).value();
    scheduler_ = std::make_unique<Scheduler>(OptionsOf(shape_), cache_.get());
  }

  void Run(Seen& seen) {
    for (int step = 0; step < 1500 && !::testing::Test::HasFailure(); ++step) {
      if (step < 1200 && rng_.Below(5) == 0) Arrive();
      if (rng_.Below(40) == 0 && !open_.empty()) Leave();
      Step(step, seen);
      scheduler_->CheckIntegrity();
    }
    seen.preemptions += scheduler_->counts().preemptions;
  }

 private:
  void Arrive() {
    const int32_t prompt = 1 + static_cast<int32_t>(rng_.Below(60));
    const int32_t max_tokens = 1 + static_cast<int32_t>(rng_.Below(60));
    if (!scheduler_->Admissible(prompt, 1).ok()) return;
    NewRequest request;
    request.id = RequestId(next_id_);
    request.prompt.assign(static_cast<size_t>(prompt), 0);
    request.max_tokens = max_tokens;
    request.space = cache_->OpenSpace("", "");
    scheduler_->Add(std::move(request), 0);
    naive_.Add(next_id_, prompt, max_tokens);
    open_.insert(next_id_++);
  }
  void Leave() {
    auto it = open_.begin();
    std::advance(it, rng_.Below(open_.size()));
    ASSERT_EQ(scheduler_->Cancel(RequestId(*it)).size(), 1u);
    naive_.Remove(*it);
    open_.erase(it);
  }
  static std::string Text(const std::vector<NaiveScheduler::Item>& items) {
    std::string text;
    for (const auto& item : items) {
      text += std::to_string(item.id) + "[" + std::to_string(item.first) + "+" +
              std::to_string(item.count) + "] ";
    }
    return text;
  }
  void Step(int step, Seen& seen) {
    std::set<uint64_t> full, got_full;
    const auto want = naive_.Plan(full);
    ScheduledBatch batch = scheduler_->Plan(0);
    std::vector<NaiveScheduler::Item> got;
    for (const ScheduledItem& item : batch.items) {
      got.push_back({item.sequence->request.value, item.first, item.count});
    }
    for (const ChoiceId& choice : batch.exhausted) got_full.insert(choice.request.value);
    EXPECT_TRUE(got == want && got_full == full)
        << "the plans of step " << step << " differ: " << Text(got) << " where the naive one has "
        << Text(want);
    seen.exhausted += full.size();
    for (const uint64_t id : full) open_.erase(id);
    if (batch.empty()) return;
    std::vector<ChoiceOutcome> outcomes;
    for (size_t i = 0; i < batch.items.size(); ++i) {
      if (batch.items[i].samples) outcomes.push_back({static_cast<int32_t>(i), 0, 1, false, false});
    }
    const auto ends = scheduler_->Commit(std::move(batch), outcomes);
    if (::testing::Test::HasFailure()) return;
    std::set<uint64_t> ended;
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] != ChoiceEnd::kGoesOn)
        ended.insert(got[static_cast<size_t>(outcomes[i].item)].id);
    }
    ASSERT_EQ(ended, naive_.Commit(want));
    for (const uint64_t id : ended) open_.erase(id);
    ASSERT_EQ(cache_->available(), naive_.free());
  }

  Rng rng_;
  Shape shape_;
  NaiveScheduler naive_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::set<uint64_t> open_;
  uint64_t next_id_ = 1;
};

TEST(SchedulerNaive, PlansAreThoseOfTheNaiveOne) {
  Seen seen;
  for (uint64_t seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Comparison(seed).Run(seen);
  }
  EXPECT_GT(seen.preemptions, 100u);
  EXPECT_GT(seen.exhausted, 10u);
}

}  // namespace
}  // namespace kvasir
