// For tests: a runner without a model that checks the bytes. Each slot of the cache holds who wrote
// it: the hash of the whole token history up to there, and the position. Each read walks the block
// table from position 0 and verifies every slot, so foreign, stale and half-filled blocks are
// caught at once. Logits are a pure function of the history, so what the engine streams can be
// compared with an oracle that has no engine at all.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/cpu_arena.h"
#include "engine/model_runner.h"

namespace kvasir::testing_fake {

inline constexpr uint64_t kStartOfHistory = 0x9E3779B97F4A7C15ULL;

inline uint64_t Extend(uint64_t history, TokenId token) {
  return CounterRandom(history, 1, static_cast<uint64_t>(token));
}

// About one history in 3,000 gives broken logits if `broken` is on.
inline void FakeLogits(uint64_t history, bool broken, std::span<float> logits) {
  for (size_t t = 0; t < logits.size(); ++t) {
    logits[t] = static_cast<float>(CounterRandom(history, 2, t) % 1024) / 128.0F;
  }
  if (broken && history % 3001 == 0)
    logits[history % logits.size()] = std::numeric_limits<float>::quiet_NaN();
}

inline std::unique_ptr<CpuArena> FakeArena(int32_t blocks, int block_tokens) {
  LayerKv layer;
  layer.kv_heads = 1;
  layer.k_dim = 4;
  layer.v_dim = 4;
  auto layout = KvLayout::Make(std::span(&layer, 1), block_tokens, KvType::kF32, KvType::kF32);
  KVASIR_CHECK(layout.ok());
  auto arena = CpuArena::Make(std::move(layout).value(), blocks);
  KVASIR_CHECK(arena.ok());
  return std::move(arena).value();
}

class FakeRunner final : public ModelRunner {
 public:
  FakeRunner(KvArena* arena, int32_t vocab, int32_t max_rows, uint64_t seed)
      : arena_(arena), vocab_(vocab), max_rows_(max_rows), rng_(seed) {}

  bool broken_logits = false;
  double failure_rate = 0;  // of whole runs
  int64_t rows = 0;
  int64_t logit_rows = 0;

  int32_t vocab() const override { return vocab_; }
  int32_t max_rows() const override { return max_rows_; }
  Status Run(const ForwardBatch& batch, FunctionRef<void(int, int, float*)> sink) override {
    EXPECT_EQ(batch.tokens.size(), batch.positions.size());
    EXPECT_LE(batch.tokens.size(), static_cast<size_t>(max_rows_));
    if (rng_.Uniform() < failure_rate) return Internal("the fake runner failed");
    std::vector<uint64_t> histories(batch.tokens.size());
    std::set<int32_t> written;
    size_t next_row = 0;
    for (const ForwardSpan& span : batch.spans) {
      EXPECT_EQ(static_cast<size_t>(span.first_row), next_row);
      next_row += static_cast<size_t>(span.count);
      RunSpan(batch, span, histories, written);
    }
    EXPECT_EQ(next_row, batch.tokens.size());
    rows += static_cast<int64_t>(batch.tokens.size());
    logit_rows += static_cast<int64_t>(batch.logit_rows.size());
    std::vector<float> logits;
    for (size_t first = 0; first < batch.logit_rows.size();) {
      const size_t count =
          std::min(batch.logit_rows.size() - first, 1 + static_cast<size_t>(rng_.Below(16)));
      logits.assign(count * static_cast<size_t>(vocab_), 0.0F);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(first + i == 0 ||
                    batch.logit_rows[first + i] > batch.logit_rows[first + i - 1]);
        FakeLogits(histories.at(static_cast<size_t>(batch.logit_rows[first + i])), broken_logits,
                   {logits.data() + i * static_cast<size_t>(vocab_), static_cast<size_t>(vocab_)});
      }
      sink(static_cast<int>(first), static_cast<int>(count), logits.data());
      first += count;
    }
    return Status::Ok();
  }

 private:
  struct Slot {
    uint64_t history = 0;
    int32_t token = 0;
    int32_t position = 0;
  };
  static_assert(sizeof(Slot) == 16);

  std::byte* SlotAt(const ForwardSpan& span, int32_t position) {
    const int block_tokens = arena_->layout().block_tokens();
    const int32_t block = span.block_table[static_cast<size_t>(position / block_tokens)];
    EXPECT_TRUE(block >= 0 && block < arena_->blocks());
    return arena_->base() + static_cast<size_t>(block) * arena_->layout().block_bytes() +
           static_cast<size_t>(position % block_tokens) * sizeof(Slot);
  }

  void RunSpan(const ForwardBatch& batch, const ForwardSpan& span, std::vector<uint64_t>& histories,
               std::set<int32_t>& written) {
    const int block_tokens = arena_->layout().block_tokens();
    ASSERT_GE(static_cast<int64_t>(span.block_table.size()) * block_tokens,
              span.position + span.count);
    uint64_t history = kStartOfHistory;
    for (int32_t p = 0; p < span.position; ++p) {
      Slot slot;
      std::memcpy(&slot, SlotAt(span, p), sizeof(slot));
      history = Extend(history, slot.token);
      ASSERT_EQ(slot.position, p) << "slot of another position";
      ASSERT_EQ(slot.history, history) << "foreign, stale or half-filled block at position " << p;
    }
    for (int32_t k = 0; k < span.count; ++k) {
      const size_t row = static_cast<size_t>(span.first_row + k);
      const int32_t position = span.position + k;
      ASSERT_EQ(batch.positions[row], position);
      history = Extend(history, batch.tokens[row]);
      histories[row] = history;
      const Slot slot{history, batch.tokens[row], position};
      std::memcpy(SlotAt(span, position), &slot, sizeof(slot));
    }
    for (int32_t b = span.position / block_tokens; b * block_tokens < span.position + span.count;
         ++b) {
      ASSERT_TRUE(written.insert(span.block_table[static_cast<size_t>(b)]).second)
          << "two sequences write into one block";
    }
  }

  KvArena* arena_;
  int32_t vocab_;
  int32_t max_rows_;
  Rng rng_;
};

}  // namespace kvasir::testing_fake
