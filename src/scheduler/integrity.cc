// The scheduler's books, recounted.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace kvasir {

void Scheduler::CheckIntegrity() const {
  cache_->CheckIntegrity();
  std::vector<std::vector<int32_t>> references;
  references.reserve(static_cast<size_t>(cache_->groups()));
  for (int32_t g = 0; g < cache_->groups(); ++g) {
    references.emplace_back(static_cast<size_t>(cache_->total_blocks(g)), 0);
  }
  int32_t seats = 0;
  std::vector<char> slots(static_cast<size_t>(SlotsFor(seats_)), 0);
  const auto claim = [&](int32_t slot) {
    char& taken = slots.at(static_cast<size_t>(slot));
    KVASIR_CHECK(taken == 0);
    taken = 1;
  };
  for (const int32_t slot : free_slots_) claim(slot);
  int64_t waiting = 0, fresh = 0;
  size_t in_running = 0, in_queue = 0;
  for (const auto& [arrival, state] : requests_) {
    KVASIR_CHECK(state->open > 0 && arrivals_.at(state->id) == arrival);
    int32_t open = 0, queued = 0;
    for (int32_t c = 0; c < state->choices(); ++c) {
      open += state->ended[static_cast<size_t>(c)] ? 0 : 1;
      const Sequence* sequence = state->sequence(c);
      const bool expected = state->forked ? !state->ended[static_cast<size_t>(c)] : c == 0;
      KVASIR_CHECK((sequence != nullptr) == expected);
      if (sequence == nullptr) continue;
      KVASIR_CHECK(sequence->state == state.get() && sequence->key.arrival == arrival);
      const auto& tables = sequence->kv.tables();
      for (size_t g = 0; g < tables.size(); ++g) {
        for (const int32_t block : tables[g]) {
          if (block >= 0) ++references[g][static_cast<size_t>(block)];
        }
      }
      const bool keeps = options_.resume_tokens > 1 && sequence->kv.swapped();
      KVASIR_CHECK((sequence->slot >= 0) == (sequence->running || keeps));
      if (sequence->slot >= 0) claim(sequence->slot);
      if (sequence->running) {
        ++in_running;
        seats += state->seats();
        KVASIR_CHECK(std::find(running_.begin(), running_.end(), sequence) != running_.end());
        KVASIR_CHECK(sequence->computed < sequence->size() && !sequence->kv.swapped());
        KVASIR_CHECK(static_cast<int64_t>(tables.at(0).size()) * block_tokens_ >=
                     sequence->computed);
      } else {
        ++queued;
        KVASIR_CHECK(waiting_.at(sequence->key) == sequence);
        KVASIR_CHECK(tables.empty() && sequence->computed == 0);
      }
    }
    KVASIR_CHECK(open == state->open && queued == state->in_queue);
    in_queue += static_cast<size_t>(queued);
    waiting += queued > 0 ? 1 : 0;
    fresh += state->first ? 0 : 1;
  }
  KVASIR_CHECK(std::count(slots.begin(), slots.end(), 0) == 0);
  KVASIR_CHECK(in_running == running_.size() && in_queue == waiting_.size());
  KVASIR_CHECK(
      std::is_sorted(running_.begin(), running_.end(),
                     [](const Sequence* a, const Sequence* b) { return a->key < b->key; }));
  KVASIR_CHECK(seats == seats_used_ && seats <= seats_);
  KVASIR_CHECK(waiting == counts_.waiting && fresh == counts_.fresh);
  KVASIR_CHECK(arrivals_.size() == requests_.size());
  for (size_t g = 0; g < references.size(); ++g) {
    for (size_t b = 0; b < references[g].size(); ++b) {
      KVASIR_CHECK(cache_->RefCount(static_cast<int32_t>(g), static_cast<int32_t>(b)) ==
                   references[g][b]);
    }
  }
}

}  // namespace kvasir
