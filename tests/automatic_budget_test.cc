// What an automatic --max-num-batched-tokens makes of a long prompt beside a user who decodes: at
// most 128 rows a step, where a given number bounds both alike (docs/scheduler.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "engine/cpu_stack.h"
#include "golden_files.h"

namespace kvasir {
namespace {

constexpr int32_t kPrompt = 300;

class MostPrefillRows final : public StepObserver {
 public:
  void OnStep(const StepStats& step, const WorkerStats& /*stats*/) override {
    int32_t& most = step.decode_rows > 0 ? beside : alone;
    most = std::max(most, step.prefill_rows);
  }
  int32_t beside = 0, alone = 0;  // decodes; nobody who decodes
};

class Ignore final : public EventSink {
 public:
  void OnTokens(std::vector<TokenEvent>& /*events*/) override {}
};

Status Submit(Engine& engine, uint64_t id, int32_t prompt, int32_t max_tokens) {
  Request request;
  request.id = RequestId{id};
  for (int32_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(1000 + i + static_cast<int32_t>(id) * 1000);
  }
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return engine.Submit(std::move(request), std::make_shared<Ignore>());
}

// A long prompt alone, then one beside a user who decodes all the while.
MostPrefillRows Serve(const std::string& model, int32_t budget) {
  MostPrefillRows most;
  StackOptions options;
  options.model_path = model;
  options.precision = Precision::kFast;
  options.kv_bytes = uint64_t{32} << 20;
  options.engine.max_model_len = 512;
  options.engine.max_num_batched_tokens = budget;
  auto stack = CpuStack::Make(options, &most);
  EXPECT_TRUE(stack.ok()) << stack.status().ToString();
  if (!stack.ok()) return most;
  Engine& engine = (*stack)->engine();
  EXPECT_TRUE(Submit(engine, 1, kPrompt, 1).ok());
  while (engine.Step()) {
  }
  EXPECT_TRUE(Submit(engine, 2, 4, 8).ok());
  EXPECT_TRUE(engine.Step());
  EXPECT_TRUE(Submit(engine, 3, kPrompt, 1).ok());
  while (engine.Step()) {
  }
  return most;
}

TEST(AutomaticBudget, PromptsGetFewRowsBesideDecodes) {
  const auto model = golden::FindDemoModel();
  if (!model) GTEST_SKIP() << golden::kNoModel;
  const MostPrefillRows automatic = Serve(*model, 0);
  EXPECT_EQ(automatic.alone, kPrompt);
  EXPECT_EQ(automatic.beside, 128);
  const MostPrefillRows given = Serve(*model, 512);
  EXPECT_EQ(given.alone, kPrompt);
  EXPECT_EQ(given.beside, kPrompt);
}

}  // namespace
}  // namespace kvasir
