// The golden tests' model, threads and runner.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "calibrate/sequence_runner.h"
#include "calibrate/two_term_finder.h"
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

// Of the model that LoadOnce gave, found once.
inline const TwoTermBlocks& TwoTermsOnce(const Model& model) {
  static const TwoTermBlocks blocks = [&] {
    auto found = FindTwoTermBlocks(model, TestExecutor());
    KVASIR_CHECK(found.ok());
    return std::move(found).value();
  }();
  return blocks;
}

// SequenceRunner with failures of a run as failures of the test.
class Runner {
 public:
  static constexpr int kMaxRows = 256;
  static constexpr int kBlockTokens = 16;

  Runner(const Model& model, Precision precision, KvType kv, int sequences, int max_tokens) {
    auto layout = KvLayout::Make(model.config().cache, kBlockTokens, kv, kv);
    KVASIR_CHECK(layout.ok());
    ForwardOptions options{precision, kMaxRows, max_tokens, {}, nullptr};
    if (precision == Precision::kDefault) options.two_terms = TwoTermsOnce(model);
    auto runner = SequenceRunner::Make(model, options, *layout, sequences, TestExecutor());
    KVASIR_CHECK(runner.ok());
    runner_ = std::move(runner).value();
  }

  void Prefill(int sequence, std::span<const int32_t> tokens, std::span<const int32_t> want,
               RowSink sink) {
    size_t seen = 0;
    const Status status =
        runner_->Prefill(sequence, tokens, want, [&](size_t i, std::span<float> logits) {
          ASSERT_EQ(i, seen++);
          sink(i, logits);
        });
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(seen, want.size());
  }

  // One token for every sequence, in one call; sink(s, logits).
  void DecodeAll(std::span<const int32_t> tokens, RowSink sink) {
    size_t seen = 0;
    const Status status = runner_->Decode(tokens, [&](size_t i, std::span<float> logits) {
      ASSERT_EQ(i, seen++);
      sink(i, logits);
    });
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(seen, tokens.size());
  }

 private:
  std::unique_ptr<SequenceRunner> runner_;
};

}  // namespace kvasir::golden
