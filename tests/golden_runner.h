// A plain driver of ForwardPass over a cache of its own: no engine, no pool. For the golden tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/cpu_runner.h"
#include "env/thread_pool.h"
#include "kvcache/kv_layout.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir::golden {

inline Executor& TestExecutor() {
  static ThreadPool pool(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 8U)));
  return pool;
}

// Loads once for the program.
inline const Model& LoadOnce(const std::string& path) {
  static const std::unique_ptr<Model> model = [&] {
    auto loaded = Model::Load(path, TestExecutor());
    KVASIR_CHECK(loaded.ok());
    return std::move(loaded).value();
  }();
  return *model;
}

using RowSink = FunctionRef<void(size_t i, std::span<const float> logits)>;

// Several sequences. Their blocks are scattered over the arena, whose bytes start as NaN patterns,
// so that reading a slot that was never written shows.
class Runner {
 public:
  static constexpr int kMaxRows = 256;
  static constexpr int kBlockTokens = 16;

  Runner(const Model& model, Precision precision, KvType kv, int sequences, int max_tokens)
      : vocab_(static_cast<size_t>(model.config().vocab)), length_(static_cast<size_t>(sequences)) {
    auto pass = ForwardPass::Make(model, precision, kMaxRows, max_tokens, TestExecutor());
    KVASIR_CHECK(pass.ok());
    pass_ = std::move(pass).value();
    auto layout = KvLayout::Make(model.config().cache, kBlockTokens, kv, kv);
    KVASIR_CHECK(layout.ok());
    const int per_sequence = (max_tokens + kBlockTokens - 1) / kBlockTokens;
    bytes_.resize(layout->block_bytes() * static_cast<size_t>(per_sequence * sequences) + 64);
    std::memset(bytes_.data(), 0xFF, bytes_.size());  // NaN in f32 and in f16
    auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(bytes_.data()) + 63) &
                                              ~uintptr_t{63});
    layers_ = PagedViews(*layout, base);
    // Block i of sequence s lies at (per_sequence - 1 - i) * sequences + s: backwards and
    // interleaved.
    for (int s = 0; s < sequences; ++s) {
      auto& table = tables_.emplace_back();
      for (int i = 0; i < per_sequence; ++i)
        table.push_back((per_sequence - 1 - i) * sequences + s);
    }
  }

  // Runs `tokens` of one sequence after what it holds already, at most `chunk` a call. `want`:
  // indexes into tokens, ascending; sink(i, logits) gets the logits after tokens[want[i]].
  void Prefill(int sequence, std::span<const int32_t> tokens, std::span<const int32_t> want,
               RowSink sink, int chunk = kMaxRows) {
    size_t next = 0;
    int32_t& length = length_[static_cast<size_t>(sequence)];
    for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
      const size_t count = std::min(static_cast<size_t>(chunk), tokens.size() - begin);
      std::vector<int32_t> positions(count), rows;
      for (size_t i = 0; i < count; ++i) positions[i] = length + static_cast<int32_t>(i);
      const size_t first_want = next;
      for (; next < want.size() && static_cast<size_t>(want[next]) < begin + count; ++next) {
        rows.push_back(want[next] - static_cast<int32_t>(begin));
      }
      const AttentionSpanOfSequence span{tables_[static_cast<size_t>(sequence)].data(), length,
                                         static_cast<int32_t>(count), 0};
      Run(tokens.subspan(begin, count), positions, {&span, 1}, rows,
          [&](size_t i, std::span<const float> logits) { sink(first_want + i, logits); });
      length += static_cast<int32_t>(count);
    }
  }

  // One token for every sequence, in one call; sink(s, logits).
  void DecodeAll(std::span<const int32_t> tokens, RowSink sink) {
    std::vector<int32_t> rows;
    std::vector<AttentionSpanOfSequence> spans;
    for (size_t s = 0; s < tokens.size(); ++s) {
      rows.push_back(static_cast<int32_t>(s));
      spans.push_back({tables_[s].data(), length_[s], 1, static_cast<int32_t>(s)});
    }
    const std::vector<int32_t> positions = length_;
    Run(tokens, positions, spans, rows, sink);
    for (int32_t& length : length_) ++length;
  }

 private:
  void Run(std::span<const int32_t> tokens, std::span<const int32_t> positions,
           std::span<const AttentionSpanOfSequence> spans, std::span<const int32_t> rows,
           RowSink sink) {
    size_t seen = 0;
    const Status status = pass_->Run(
        {tokens, positions, spans, layers_, rows}, [&](int first, int count, float* logits) {
          for (int i = 0; i < count; ++i, ++seen) {
            ASSERT_EQ(static_cast<size_t>(first + i), seen);
            sink(seen, {logits + static_cast<size_t>(i) * vocab_, vocab_});
          }
        });
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(seen, rows.size());
  }

  size_t vocab_;
  std::unique_ptr<ForwardPass> pass_;
  std::vector<std::byte> bytes_;
  std::vector<PagedKv> layers_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> length_;
};

}  // namespace kvasir::golden
