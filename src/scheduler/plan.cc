// The plan of a step: see scheduler.h for the order and the rules.
#include <algorithm>

#include "base/check.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace kvasir {

ScheduledBatch Scheduler::Plan(int64_t now_ns) {
  KVASIR_CHECK(!batch_open_);
  ScheduledBatch batch;
  PlanDecodes(batch);
  PlanPrefills(batch);
  if (batch.preempted == 0) Admit(now_ns, batch);
  if (!batch.items.empty()) {
    batch.open_ = true;
    batch_open_ = true;
  }
  return batch;
}

void Scheduler::PlanDecodes(ScheduledBatch& batch) {
  // Victims come from the end of the map and are never before the current one, so the iterator
  // stays good; MakeRoom fails only for the last one.
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    Sequence* sequence = it->second;
    if (!sequence->decoding()) continue;
    if (!MakeRoom(sequence, batch)) break;
    AddChunk(sequence, batch);
  }
}

bool Scheduler::MakeRoom(Sequence* sequence, ScheduledBatch& batch) {
  while (!sequence->table.MakeWritable(*pool_, sequence->computed, batch.copies)) {
    if (running_.size() == 1) {
      RequestState& state = *requests_.at(sequence->key.arrival);
      batch.exhausted.push_back({state.id, sequence->key.choice});
      EndChoice(state, sequence->key.choice);
      EraseIfEnded(state);
      return false;
    }
    Sequence* victim = running_.rbegin()->second;
    Preempt(victim);
    ++batch.preempted;
    if (victim == sequence) return false;
  }
  return true;
}

void Scheduler::Preempt(Sequence* sequence) {
  Detach(sequence);
  EnterQueue(sequence);
  ++counts_.preemptions;
}

void Scheduler::PlanPrefills(ScheduledBatch& batch) {
  for (const auto& [key, sequence] : running_) {
    if (batch.rows >= options_.max_num_batched_tokens) return;
    if (!sequence->decoding()) AddChunk(sequence, batch);
  }
}

void Scheduler::Admit(int64_t now_ns, ScheduledBatch& batch) {
  while (batch.rows < options_.max_num_batched_tokens && !waiting_.empty()) {
    Sequence* sequence = waiting_.begin()->second;
    RequestState& state = *requests_.at(sequence->key.arrival);
    if (seats_used_ + SeatsOf(*sequence) > seats_) return;
    const int32_t need = BlockTable::BlocksFor(sequence->size(), options_.block_tokens);
    if (need > pool_->total_blocks()) {
      // Only a choice that grew to the whole pool while it shared blocks: what it needs now is
      // never there.
      batch.exhausted.push_back({state.id, sequence->key.choice});
      EndChoice(state, sequence->key.choice);
      EraseIfEnded(state);
      continue;
    }
    const bool alone = running_.empty();
    if (!alone && pool_->free_blocks() - need < watermark_) return;
    Detach(sequence);
    // Alone the whole pool is free, and what does not fit the pool was refused on arrival.
    KVASIR_CHECK(sequence->table.Grow(*pool_, need));
    EnterRunning(sequence);
    KVASIR_CHECK(seats_used_ <= seats_);
    sequence->prefill_target = sequence->size();
    if (!state.scheduled_ns) {
      state.scheduled_ns = now_ns;
      --counts_.fresh;
    }
    AddChunk(sequence, batch);
  }
}

void Scheduler::AddChunk(Sequence* sequence, ScheduledBatch& batch) {
  ScheduledItem item;
  item.sequence = sequence;
  item.first = sequence->computed;
  item.count =
      std::min(sequence->size() - sequence->computed, options_.max_num_batched_tokens - batch.rows);
  KVASIR_CHECK(item.count > 0);
  item.prefill = !sequence->decoding();
  item.samples = item.first + item.count == sequence->size();
  batch.rows += item.count;
  if (item.prefill) batch.prefill_rows += item.count;
  batch.items.push_back(item);
}

}  // namespace kvasir
