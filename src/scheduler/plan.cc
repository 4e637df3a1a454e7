// The plan of a step: see scheduler.h for the order and the rules.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace kvasir {
namespace {

constexpr int32_t kFrontVisits = 8;   // of the queue looked at beside a long prompt
constexpr uint64_t kFrontPlans = 16;  // plans for which a look-up of theirs is good

}  // namespace

ScheduledBatch Scheduler::Plan(int64_t now_ns) {
  KVASIR_CHECK(!batch_open_);
  ScheduledBatch batch;
  ++plan_;
  now_ns_ = now_ns;
  growth_known_ = false;
  first_admitted_ = 0;
  batch.items = std::exchange(spare_items_, {});
  batch.moves = std::exchange(spare_moves_, {});
  Reestimate();
  PlanUrgent(batch);
  const int32_t urgent = batch.preempted;
  PlanDecodes(batch);
  prefill_budget_ = options_.max_num_batched_tokens;
  prefill_spent_ = 0;
  by_depth_ = options_.itl_target_ns > 0 && batch.rows > 0;
  if (by_depth_) {
    prefill_budget_ = std::max(1, costs_.PrefillRows(batch.rows, options_.itl_floor_rows));
  } else if (options_.prefill_beside_decodes > 0 && batch.rows > 0) {
    prefill_budget_ = options_.prefill_beside_decodes;
  }
  const bool admits = batch.preempted == urgent;
  PlanPrefills(admits, batch);
  counts_.joining = 0;
  if (admits || running_.empty()) Admit(now_ns, batch);
  if (counts_.joining == 0) KeepJoining();
  pace_.Planned(now_ns, first_admitted_, counts_.fresh);
  if (!batch.items.empty()) {
    batch.slot_copies = std::exchange(slot_copies_, {});
    batch.open_ = true;
    batch_open_ = true;
  } else {
    // Whoever waits while nobody runs is admitted or ends. Only victims of a plan that then ended
    // everybody have moved, and they are gone too.
    KVASIR_CHECK(requests_.empty());
    batch.moves.clear();
  }
  return batch;
}

void Scheduler::PlanDecodes(ScheduledBatch& batch) {
  // Victims stand behind the current one, so its place stays; if it goes itself it was the last.
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i]->decoding()) continue;
    if (!AddItem(running_[i], 1, batch)) break;
  }
}

// In order of rank, but a long prompt leaves rows to those who need few: what needs at most a
// quarter of the room, or of what the longest one still needs, does not wait for all its chunks.
// It keeps half of the room. To one ahead of it in rank that is about to come in from the queue it
// leaves all but the floor (or half, where the room is hardly more than that).
void Scheduler::PlanPrefills(bool admits, ScheduledBatch& batch) {
  const int32_t room = PrefillRoom(batch);
  int32_t longest = 0;
  for (const Sequence* sequence : running_) {
    if (sequence->planned != plan_)
      longest = std::max(longest, sequence->size() - sequence->computed);
  }
  const int32_t quick = std::max({1, room / 4, longest / 4});
  const int32_t floor = std::min(options_.itl_floor_rows, std::max(1, room / 2));
  int32_t quick_running = 0;
  bool any_long = false;
  for (const Sequence* sequence : running_) {
    if (sequence->planned == plan_) continue;
    const int32_t rows = sequence->size() - sequence->computed;
    if (rows <= quick) quick_running += rows;
    any_long = any_long || rows > quick;
  }
  const QueueFront front = any_long && admits ? LookAtFront(quick, room) : QueueFront{};
  for (size_t i = 0; i < running_.size();) {
    const int32_t left = PrefillRoom(batch);
    if (left <= 0) return;
    Sequence* sequence = running_[i];
    if (sequence->planned == plan_) {
      ++i;
      continue;
    }
    int32_t most = left;
    const int32_t rows = sequence->size() - sequence->computed;
    if (rows <= quick) {
      quick_running -= rows;
    } else {
      int32_t keep = std::min(room / 2, quick_running + front.quick_rows);
      if (front.ahead_rows > 0 && front.ahead_key < sequence->key) {
        keep = std::max(keep, front.ahead_rows);
      }
      most = std::max(left - keep, std::min(left, floor));
    }
    if (AddItem(sequence, most, batch)) ++i;
  }
}

Scheduler::QueueFront Scheduler::LookAtFront(int32_t quick, int32_t room) {
  QueueFront front;
  int32_t seats = seats_used_, visits = 0;
  for (const auto& [key, sequence] : waiting_) {
    if (++visits > kFrontVisits || front.quick_rows >= room) break;
    if (sequence->joined + 1 == plan_) continue;
    seats += sequence->state->seats();
    if (seats > seats_ || sequence->preempted == plan_ || StillBlocked(*sequence)) break;
    if (sequence->rows_plan == 0 || sequence->rows_plan + kFrontPlans <= plan_) {
      sequence->rows_plan = plan_;
      sequence->rows_expected = sequence->size() - Match(*sequence, MatchLimit(*sequence)).tokens;
    }
    const bool quick_one = sequence->rows_expected <= quick;
    if (!quick_one || front.ahead_rows == 0) {
      front.ahead_rows = sequence->rows_expected;
      front.ahead_key = key;
    }
    if (!quick_one) break;
    front.quick_rows += sequence->rows_expected;
  }
  return front;
}

int32_t Scheduler::PrefillRoom(const ScheduledBatch& batch) const {
  return std::min(options_.max_num_batched_tokens - batch.rows,
                  static_cast<int32_t>(prefill_budget_ - prefill_spent_));
}

// Rows of the sequence's next chunk in the place of `most` at depth 0. The first chunk of a step
// has the floor however deep it is, so that prompts always go on; every one has a row.
int32_t Scheduler::ChunkRows(const Sequence& sequence, int32_t most) const {
  if (!by_depth_) return most;
  const int32_t least = prefill_spent_ == 0 ? std::min(most, options_.itl_floor_rows) : 1;
  return std::clamp(costs_.RowsIn(most, sequence.computed), least, most);
}

bool Scheduler::AddItem(Sequence* sequence, int32_t most, ScheduledBatch& batch) {
  ScheduledItem item;
  item.sequence = sequence;
  item.first = sequence->computed;
  item.prefill = !sequence->decoding();
  item.count =
      item.prefill ? std::min(sequence->size() - item.first, ChunkRows(*sequence, most)) : 1;
  KVASIR_CHECK(item.count > 0);
  const int32_t end = item.first + item.count;
  if (!MakeRoom(sequence, item.first, end, batch)) return false;
  if (item.prefill) {
    cache_->Announce(sequence->kv, sequence->tokens, end);
    batch.prefill_rows += item.count;
    prefill_spent_ += by_depth_ ? costs_.Units(item.first, item.count) : item.count;
  }
  item.samples = end == sequence->size();
  sequence->planned = plan_;
  batch.rows += item.count;
  batch.items.push_back(item);
  return true;
}

bool Scheduler::MakeRoom(Sequence* sequence, int32_t from, int32_t to, ScheduledBatch& batch) {
  while (!cache_->Grow(sequence->kv, from, to, batch.moves)) {
    if (running_.size() == 1) {
      EndExhausted(sequence, batch);
      return false;
    }
    Sequence* victim = PickVictim(sequence->key, nullptr);
    if (victim == nullptr) victim = sequence;
    Preempt(victim, batch);
    if (victim == sequence) return false;
  }
  return true;
}

void Scheduler::EndExhausted(Sequence* sequence, ScheduledBatch& batch) {
  RequestState& state = *sequence->state;
  if (state.forked) {
    const int32_t choice = sequence->key.choice;
    batch.exhausted.push_back({state.id, choice});
    EndChoice(state, choice);
  } else {
    for (int32_t c = 0; c < state.choices(); ++c) {
      if (state.ended[static_cast<size_t>(c)]) continue;
      batch.exhausted.push_back({state.id, c});
      EndChoice(state, c);
    }
  }
  EraseIfEnded(state);
}

}  // namespace kvasir
