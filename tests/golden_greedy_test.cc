// Greedy continuations against the oracle's: 256 tokens after each of eight prompts
// (tests/golden/greedy.json).
//
// Where the oracle's two best logits are closer than kCloseCall, another arithmetic may rightly
// choose the other; every step with a wider gap must give the oracle's token. The closest calls of
// the eight texts are printed by the test.

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>

#include "engine/cpu_stack.h"
#include "golden_files.h"
#include "golden_runner.h"

namespace kvasir {
namespace {

using golden::GreedyRow;

class GoldenGreedy : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = golden::FindDemoModel();
    if (!path) GTEST_SKIP() << golden::kNoModel;
    path_ = *path;
    rows_ = golden::ReadGreedyRows("tests/golden/greedy.json");
    if (!golden::SlowTestsWanted()) {
      rows_.resize(2);
      for (GreedyRow& row : rows_) row.tokens.resize(24);
      std::printf("sanitizer build: 2 of 8 prompts, 24 of 256 steps\n");
    }
  }
  std::string path_;
  std::vector<GreedyRow> rows_;
};

// All prompts decode side by side and are fed the oracle's tokens, so that every one of the 8 x 256
// choices is checked, also those after a close call.
void CheckFed(const Model& model, std::span<const GreedyRow> rows, Precision precision, KvType kv,
              float close_call) {
  size_t longest = 0;
  for (const GreedyRow& row : rows) longest = std::max(longest, row.prompt.size());
  const size_t steps = rows[0].tokens.size();
  golden::Runner runner(model, precision, kv, static_cast<int>(rows.size()),
                        static_cast<int>(longest + steps));
  size_t close = 0;
  size_t differ = 0;
  const auto check = [&](size_t row, size_t step, std::span<const float> logits) {
    const int32_t got = golden::ArgMax(logits);
    const bool equal = got == rows[row].tokens[step];
    if (rows[row].gaps[step] < close_call) {
      ++close;
      differ += equal ? 0 : 1;
    } else {
      EXPECT_EQ(got, rows[row].tokens[step])
          << "prompt " << row << " step " << step << " gap " << rows[row].gaps[step];
    }
  };
  for (size_t row = 0; row < rows.size(); ++row) {
    const int32_t last[] = {static_cast<int32_t>(rows[row].prompt.size()) - 1};
    runner.Prefill(static_cast<int>(row), rows[row].prompt, last,
                   [&](size_t, std::span<const float> logits) { check(row, 0, logits); });
  }
  for (size_t step = 1; step < steps; ++step) {
    std::vector<int32_t> feed;
    for (const GreedyRow& row : rows) feed.push_back(row.tokens[step - 1]);
    runner.DecodeAll(feed,
                     [&](size_t row, std::span<const float> logits) { check(row, step, logits); });
  }
  std::printf("%zu prompts x %zu steps: %zu close calls (gap < %g), %zu of them chosen otherwise\n",
              rows.size(), steps, close, static_cast<double>(close_call), differ);
}

TEST_F(GoldenGreedy, ReferencePrecisionFedTheOracle) {
  CheckFed(golden::LoadOnce(path_), rows_, Precision::kReference, KvType::kF32, 0.005F);
}
TEST_F(GoldenGreedy, ExactPrecisionFedTheOracle) {
  CheckFed(golden::LoadOnce(path_), rows_, Precision::kExact, KvType::kF16, 0.05F);
}

// Collects the tokens of one request.
class Collector : public EventSink {
 public:
  void OnTokens(std::vector<TokenEvent>& events) override {
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events) {
      if (event.token >= 0) tokens_.push_back(event.token);
      if (event.finish != FinishReason::kNone) finish_ = event.finish;
    }
    changed_.notify_all();
  }
  std::vector<TokenId> Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finish_ != FinishReason::kNone; });
    EXPECT_EQ(finish_, FinishReason::kLength);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenId> tokens_;
  FinishReason finish_ = FinishReason::kNone;
};

// The whole engine, all prompts at once, its own tokens fed back: equal up to the first close call
// of each prompt.
TEST_F(GoldenGreedy, EngineEqualsTheOracleUpToTheFirstCloseCall) {
  StackOptions options;
  options.model_path = path_;
  options.precision = Precision::kExact;
  options.kv_bytes = uint64_t{128} << 20;
  options.engine.max_model_len = 1024;
  options.engine.max_num_batched_tokens = 64;  // prompts are cut into chunks and mixed with decodes
  auto stack = CpuStack::Make(options, nullptr);
  ASSERT_TRUE(stack.ok()) << stack.status().ToString();
  Engine& engine = (*stack)->engine();
  engine.Start();
  std::vector<std::shared_ptr<Collector>> sinks;
  for (size_t i = 0; i < rows_.size(); ++i) {
    Request request;
    request.id = RequestId{static_cast<decltype(RequestId::value)>(i + 1)};
    request.prompt = {rows_[i].prompt.begin(), rows_[i].prompt.end()};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = static_cast<int32_t>(rows_[i].tokens.size());
    request.sampling.ignore_eos = true;
    sinks.push_back(std::make_shared<Collector>());
    ASSERT_TRUE(engine.Submit(std::move(request), sinks.back()).ok());
  }
  for (size_t i = 0; i < rows_.size(); ++i) {
    const std::vector<TokenId> got = sinks[i]->Wait();
    ASSERT_EQ(got.size(), rows_[i].tokens.size());
    size_t step = 0;
    while (step < got.size() && got[step] == rows_[i].tokens[step]) ++step;
    std::printf("prompt %zu: %zu of %zu tokens equal%s\n", i, step, got.size(),
                step < got.size() ? ", then a close call" : "");
    if (step < got.size()) {
      EXPECT_LT(rows_[i].gaps[step], 0.05F) << "prompt " << i << " step " << step;
    }
  }
  engine.Stop();
  engine.CheckIntegrity();
}

}  // namespace
}  // namespace kvasir
