// No memory is taken in a steady step: every operator new of this program is counted. The workload
// runs twice, so that all scratch has its size; in the second run no step between the first token
// and the last may allocate anything, in the engine, the scheduler, the cache, the sampler, the
// forward pass or the thread pool.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "base/hash.h"
#include "base/sanitizer.h"
#include "engine/cpu_arena.h"
#include "engine/cpu_runner.h"
#include "engine/engine.h"
#include "env/clock.h"
#include "env/thread_pool.h"
#include "model/testing/temp_folder.h"
#include "model/testing/tiny_llama.h"

#if defined(KVASIR_ASAN) || defined(KVASIR_TSAN)
#define KVASIR_SANITIZED 1
#endif

#ifdef KVASIR_SANITIZED
// Of sanitizer/allocator_interface.h, which g++ 12 does not bring along.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void* p,
                                                                             size_t size),
                                                         void (*free_hook)(const volatile void* p));
#endif

namespace {
std::atomic<int64_t> allocations{0};
}

#ifdef KVASIR_SANITIZED
// Sanitizers check that new and delete match: their own hook counts instead.
namespace {
void CountMalloc(const volatile void*, size_t) {
  allocations.fetch_add(1);
}
void IgnoreFree(const volatile void*) {}
const int hooked = __sanitizer_install_malloc_and_free_hooks(CountMalloc, IgnoreFree);
}  // namespace
#else
[[gnu::noinline]] void* operator new(size_t size) {
  allocations.fetch_add(1);
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  allocations.fetch_add(1);
  const auto unit = static_cast<size_t>(alignment);
  if (void* p = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](size_t size) {
  return operator new(size);
}
[[gnu::noinline]] void* operator new[](size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}
#endif

namespace kvasir {
namespace {

struct LastStep final : StepObserver {
  void OnStep(const StepStats& s, const WorkerStats& /*stats*/) override { step = s; }
  StepStats step;
};

// Counts without keeping anything: what a client keeps is its own.
struct CountingSink final : EventSink {
  void OnTokens(std::vector<TokenEvent>& events) override {
    for (const TokenEvent& event : events) {
      tokens += event.token >= 0 ? 1 : 0;
      ends += event.finish != FinishReason::kNone ? 1 : 0;
    }
  }
  int64_t tokens = 0;
  int64_t ends = 0;
};

// Different ways to sample, one user each.
std::vector<SamplingParams> Ways() {
  std::vector<SamplingParams> ways(6);
  ways[0].temperature = 0;
  ways[1].top_p = 0.9F;
  ways[2].top_k = 5;
  ways[3].min_p = 0.05F;
  ways[4].repetition_penalty = 1.1F;
  ways[4].presence_penalty = 0.5F;
  ways[5].bad_words = {{3, 4}};
  ways[5].logit_bias = {{7, 1.0F}};
  for (SamplingParams& way : ways) {
    way.max_tokens = 150;
    way.seed = 5;
  }
  return ways;
}

// Runs all users to their end; returns how many allocations the decode steps between the first
// token and the last made, and how many steps these were.
std::pair<int64_t, int> RunOnce(Engine& engine, const LastStep& last, uint64_t first_id) {
  std::vector<std::shared_ptr<CountingSink>> sinks;
  uint64_t id = first_id;
  for (const SamplingParams& way : Ways()) {
    Request request;
    request.id = RequestId(id);
    Rng rng(id);
    for (int i = 0; i < 20; ++i) request.prompt.push_back(static_cast<TokenId>(rng.Below(200)));
    request.sampling = way;
    request.n = id % 3 == 0 ? 2 : 1;
    ++id;
    sinks.push_back(std::make_shared<CountingSink>());
    EXPECT_TRUE(engine.Submit(std::move(request), sinks.back()).ok());
  }
  std::pair<int64_t, int> out;
  const auto ends = [&] {
    int64_t sum = 0;
    for (const auto& sink : sinks) sum += sink->ends;
    return sum;
  };
  for (;;) {
    const int64_t ends_before = ends();
    const int64_t before = allocations.load();
    if (!engine.Step()) break;
    const int64_t made = allocations.load() - before;
    if (last.step.prefill_rows > 0 || last.step.decode_rows == 0 || ends() > ends_before) continue;
    out.first += made;
    ++out.second;
  }
  for (const auto& sink : sinks) EXPECT_GE(sink->tokens, 150);
  return out;
}

void ExpectNoAllocation(ModelRunner* runner, KvArena* arena, Executor* executor) {
  const int64_t before = allocations.load();
  const auto canary = std::make_unique<std::vector<int>>(100);
  ASSERT_GE(allocations.load(), before + 2) << "this build does not count allocations";
  const SteadyClock clock;
  LastStep last;
  WorkerInfo info;
  info.max_model_len = 512;
  auto engine = Engine::Make({}, info, runner, arena, &clock, executor, &last);
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  RunOnce(**engine, last, 100);
  const auto [made, steps] = RunOnce(**engine, last, 100);
  EXPECT_GT(steps, 140);
  EXPECT_EQ(made, 0) << "allocations in " << steps << " steady steps";
}

// The runner's part left out: logits that depend on the row alone.
class ConstantRunner final : public ModelRunner {
 public:
  ConstantRunner(int32_t vocab, int32_t rows) : vocab_(vocab), rows_(rows) {
    logits_.resize(static_cast<size_t>(vocab) * static_cast<size_t>(rows));
    for (size_t i = 0; i < logits_.size(); ++i)
      logits_[i] = static_cast<float>(CounterRandom(3, 0, i) % 1000) * 0.01F;
  }
  int32_t vocab() const override { return vocab_; }
  int32_t max_rows() const override { return rows_; }
  Status Run(const ForwardBatch& batch, FunctionRef<void(int, int, float*)> sink) override {
    if (!batch.logit_rows.empty())
      sink(0, static_cast<int>(batch.logit_rows.size()), logits_.data());
    return Status::Ok();
  }

 private:
  int32_t vocab_, rows_;
  std::vector<float> logits_;
};

std::unique_ptr<CpuArena> Arena(std::span<const LayerKv> layers, KvType type = KvType::kF16) {
  auto layout = KvLayout::Make(layers, 16, type, type);
  KVASIR_CHECK(layout.ok());
  auto arena = CpuArena::Make(std::move(layout).value(), 256);
  KVASIR_CHECK(arena.ok());
  return std::move(arena).value();
}

TEST(Allocation, ASteadyStepTakesNoMemory) {
  LayerKv layer;
  layer.kv_heads = 1;
  layer.k_dim = layer.v_dim = 16;
  const auto arena = Arena(std::span(&layer, 1));
  for (const int workers : {1, 2}) {
    ThreadPool executor(workers);
    ConstantRunner runner(12'000, 64);  // large enough that rows are shared out
    ExpectNoAllocation(&runner, arena.get(), &executor);
  }
}

TEST(Allocation, NeitherDoesTheForwardPass) {
  const kvasir::testing::TempFolder folder;
  kvasir::testing::TinyLlama shape;
  shape.type = shape.v_type = WeightType::kQ8_0;
  shape.ff = 128;
  kvasir::testing::MakeTinyLlama(shape).Write(folder / "m.gguf");
  const std::pair<int, KvType> kRuns[] = {
      {1, KvType::kF16}, {3, KvType::kF16}, {1, KvType::kI8}, {3, KvType::kI4}};
  for (const auto& [workers, type] : kRuns) {
    ThreadPool executor(workers);
    const auto model = Model::Load(folder / "m.gguf", executor);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    const auto arena = Arena((*model)->config().cache, type);
    ForwardOptions options;
    options.max_rows = 64;
    options.max_positions = 512;
    auto runner = CpuRunner::Make(**model, arena.get(), options, 64, executor);
    ASSERT_TRUE(runner.ok());
    ExpectNoAllocation(runner->get(), arena.get(), &executor);
  }
}

}  // namespace
}  // namespace kvasir
