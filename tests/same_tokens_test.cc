// Promise 3 on real models: the tokens and the bits of their log-probabilities do not depend on
// what happens around a request: neighbours (and neighbours that are cancelled), the chunk size,
// the number of threads, preemption by swap or recompute, a cache that is cold, warm, shared with
// those who compute the same prefix in the same moment, or too small.
//
// Needs ../shared/models/stories260K.gguf; the demo model joins if it is there.
// KVASIR_SAME_TOKENS_SEED runs one seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "base/hash.h"
#include "base/sanitizer.h"
#include "engine/cpu_arena.h"
#include "engine/cpu_runner.h"
#include "engine/engine.h"
#include "env/clock.h"
#include "env/thread_pool.h"

namespace kvasir {
namespace {

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<uint32_t>
      bits;  // of the chosen and the top log-probabilities, and the tokens they stand for
  FinishReason finish = FinishReason::kNone;
  bool operator==(const Answer&) const = default;
};

void AddBits(const TokenLogprob& logprob, std::vector<uint32_t>& bits) {
  uint32_t word;
  std::memcpy(&word, &logprob.logprob, sizeof(word));
  bits.push_back(word);
  bits.push_back(static_cast<uint32_t>(logprob.token));
  bits.push_back(static_cast<uint32_t>(logprob.rank));
}

void AddBits(const PositionLogprobs& position, std::vector<uint32_t>& bits) {
  AddBits(position.chosen, bits);
  for (const TokenLogprob& top : position.top) AddBits(top, bits);
}

class Collector final : public EventSink {
 public:
  explicit Collector(int32_t n) : answers(static_cast<size_t>(n)) {}
  void OnTokens(std::vector<TokenEvent>& events) override {
    for (const TokenEvent& event : events) {
      Answer& answer = answers.at(static_cast<size_t>(event.choice));
      if (event.prompt_logprobs) {
        for (const PositionLogprobs& position : *event.prompt_logprobs)
          AddBits(position, answer.bits);
      }
      if (event.token >= 0) answer.tokens.push_back(event.token);
      if (event.logprobs) AddBits(*event.logprobs, answer.bits);
      answer.finish = event.finish;
    }
  }
  std::vector<Answer> answers;
};

// Every fifth block: which ones does not matter here, only that rows of both kinds are computed.
TwoTermBlocks SomeTwoTerms(const Model& model) {
  TwoTermBlocks some;
  for (size_t input = 0; input < InputCount(model.layers.size()); ++input) {
    const int64_t columns = ReadersOf(model, input)[0].columns();
    std::vector<uint8_t>& blocks =
        some.blocks.emplace_back(static_cast<size_t>((columns + 31) / 32), uint8_t{0});
    for (size_t i = some.blocks.size() % 5; i < blocks.size(); i += 5) blocks[i] = 1;
  }
  return some;
}

// Everything but the model, which is loaded once a thread count.
struct Setting {
  int threads = 1;
  int32_t blocks = 0;
  int block_tokens = 16;
  int32_t budget = 512;
  int32_t seqs = 64;
  bool tight = false;  // a pool of little more than one sequence, and everybody comes
  std::string preempt = "auto", evict = "cost", policy = "fcfs";
  double itl_target_ms = 0;
  bool caching = true;
  std::string Text() const {
    return "threads " + std::to_string(threads) + ", blocks " + std::to_string(blocks) + " x " +
           std::to_string(block_tokens) + ", budget " + std::to_string(budget) + ", seats " +
           std::to_string(seqs) + ", " + preempt + " " + evict + " " + policy + " itl " +
           std::to_string(itl_target_ms) + (caching ? "" : " no cache");
  }
};

class House {
 public:
  explicit House(const std::string& path, KvPair kv = {}) : path_(path), kv_(kv) {}

  const Model& model(int threads) { return *Loaded(threads).model; }
  // A prefix is found in multiples of this.
  int32_t resume_tokens() const { return kv_.k == KvType::kI4 ? kKvTailTokens : 1; }

  struct Stack {
    std::unique_ptr<CpuArena> arena;
    std::unique_ptr<CpuRunner> runner;
    std::unique_ptr<Engine> engine;
  };
  Stack Build(const Setting& setting, int32_t max_model_len) {
    Entry& entry = Loaded(setting.threads);
    Stack stack;
    auto layout = KvLayout::Make(entry.model->config().cache, setting.block_tokens, kv_.k, kv_.v);
    KVASIR_CHECK(layout.ok());
    stack.arena = std::move(CpuArena::Make(std::move(layout).value(), setting.blocks)).value();
    // Recycled memory is never clean: NaN in every slot.
    std::memset(stack.arena->base(), 0xFF,
                stack.arena->layout().block_bytes() * static_cast<size_t>(setting.blocks));
    const ForwardOptions forward{Precision::kDefault, setting.budget, max_model_len,
                                 entry.two_terms, nullptr};
    stack.runner = std::move(CpuRunner::Make(*entry.model, stack.arena.get(), forward, setting.seqs,
                                             *entry.executor))
                       .value();
    EngineOptions options;
    options.max_model_len = max_model_len;
    options.max_num_seqs = setting.seqs;
    options.max_num_batched_tokens = setting.budget;
    options.queue_timeout_s = 1e6;
    options.preempt = setting.preempt;
    options.evict = setting.evict;
    options.scheduling_policy = setting.policy;
    options.itl_target_ms = setting.itl_target_ms;
    options.prefix_caching = setting.caching;
    WorkerInfo info;
    info.max_model_len = entry.model->config().context;
    stack.engine = std::move(Engine::Make(options, info, stack.runner.get(), stack.arena.get(),
                                          &clock_, entry.executor.get(), nullptr))
                       .value();
    return stack;
  }

 private:
  struct Entry {
    std::unique_ptr<ThreadPool> executor;
    std::unique_ptr<Model> model;
    TwoTermBlocks two_terms;
  };
  Entry& Loaded(int threads) {
    Entry& entry = entries_[threads];
    if (!entry.model) {
      entry.executor = std::make_unique<ThreadPool>(threads);
      auto model = Model::Load(path_, *entry.executor);
      KVASIR_CHECK(model.ok());
      entry.model = std::move(model).value();
      entry.two_terms = SomeTwoTerms(*entry.model);
    }
    return entry;
  }
  std::string path_;
  KvPair kv_;
  SteadyClock clock_;
  std::map<int, Entry> entries_;
};

struct Plan {
  uint64_t seed = 1;
  KvPair kv;  // formats of K and V
  int32_t longest_prompt = 60;
  int32_t longest_output = 24;
  int schedules = 40;
  int32_t max_neighbours = 32;
  int32_t max_model_len = 128;
};

// Two of three go on where an earlier one was, from any of its tokens.
Request RandomRequest(Rng& rng, const std::vector<Request>& before, const Plan& plan,
                      int32_t vocab) {
  Request request;
  request.id = RequestId(before.size() + 1);
  const uint64_t length = 1 + rng.Below(static_cast<uint64_t>(plan.longest_prompt));
  if (!before.empty() && rng.Below(3) != 0) {
    const std::vector<TokenId>& other = before[rng.Below(before.size())].prompt;
    const uint64_t shared = std::min<uint64_t>({1 + rng.Below(other.size()), other.size(), length});
    request.prompt.assign(other.begin(), other.begin() + static_cast<ptrdiff_t>(shared));
  }
  while (request.prompt.size() < length) {
    request.prompt.push_back(static_cast<TokenId>(3 + rng.Below(static_cast<uint64_t>(vocab) - 3)));
  }
  SamplingParams& p = request.sampling;
  p.max_tokens = 1 + static_cast<int32_t>(rng.Below(static_cast<uint64_t>(plan.longest_output)));
  p.seed = rng.Next();
  p.temperature = rng.Below(2) == 0 ? 0.0F : 1.0F;
  if (rng.Below(2) == 0) p.top_p = 0.9F;
  if (rng.Below(3) == 0) p.top_k = 40;
  if (rng.Below(3) == 0) p.repetition_penalty = 1.2F;
  p.logprobs = 3;
  if (rng.Below(3) == 0) p.prompt_logprobs = 1;
  if (rng.Below(4) == 0) request.n = 1 + static_cast<int32_t>(rng.Below(3));
  return request;
}

struct Seen {
  uint64_t preemptions = 0, swaps = 0, hits = 0, merged = 0, copied = 0;
  void Add(const WorkerStats& stats) {
    preemptions += stats.preemptions;
    swaps += stats.preemptions_swap;
    hits += stats.cache.hits;
    merged += stats.cache.merged;
    copied += stats.cache.copied;
  }
};

std::shared_ptr<Collector> Send(Engine& engine, const Request& request) {
  auto sink = std::make_shared<Collector>(request.n);
  const Status status = engine.Submit(request, sink);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return sink;
}

void RunSchedule(House& house, const Plan& plan, const std::vector<Request>& requests,
                 const std::vector<std::vector<Answer>>& alone, const Setting& setting, Rng& rng,
                 Seen* seen) {
  SCOPED_TRACE("seed " + std::to_string(plan.seed) + ": " + setting.Text());
  House::Stack stack = house.Build(setting, plan.max_model_len);
  const size_t most = std::min(requests.size(), static_cast<size_t>(plan.max_neighbours) + 1);
  const size_t count = setting.tight ? most : 1 + rng.Below(most);
  std::vector<std::shared_ptr<Collector>> sinks;
  std::vector<bool> cancelled(count, false);
  while (sinks.size() < count) {
    for (uint64_t burst = 1 + rng.Below(6); burst > 0 && sinks.size() < count; --burst) {
      sinks.push_back(Send(*stack.engine, requests[sinks.size()]));
    }
    for (uint64_t steps = rng.Below(6); steps > 0; --steps) {
      stack.engine->Step();
      stack.engine->CheckIntegrity();
    }
    if (rng.Below(3) == 0 && sinks.size() > 1) {
      const size_t victim = 1 + rng.Below(sinks.size() - 1);
      cancelled[victim] = true;
      stack.engine->Cancel(requests[victim].id);
    }
  }
  while (stack.engine->Step()) stack.engine->CheckIntegrity();
  for (size_t i = 0; i < count; ++i) {
    if (cancelled[i]) continue;
    EXPECT_TRUE(sinks[i]->answers == alone[i])
        << "request " << i << " differs from what it gives alone";
  }
  // Once more, warm, in another order.
  std::vector<std::shared_ptr<Collector>> warm(count);
  for (size_t i = count; i-- > 0;) {
    if (rng.Below(3) == 0) stack.engine->Step();
    Request again = requests[i];
    again.id = RequestId(again.id.value + 1000);
    warm[i] = Send(*stack.engine, again);
  }
  while (stack.engine->Step()) stack.engine->CheckIntegrity();
  for (size_t i = 0; i < count; ++i) {
    EXPECT_TRUE(warm[i]->answers == alone[i]) << "request " << i << " differs when it is warm";
  }
  const WorkerStats stats = stack.engine->stats();
  EXPECT_EQ(stats.books.free + stats.books.evictable, stats.books.total);
  seen->Add(stats);
}

void Check(const std::string& path, const Plan& plan) {
  std::printf("same tokens: seed %llu on %s, K %s, V %s\n",
              static_cast<unsigned long long>(plan.seed), path.c_str(),
              std::string(KvTypeName(plan.kv.k)).c_str(),
              std::string(KvTypeName(plan.kv.v)).c_str());
  House house(path, plan.kv);
  Rng rng(plan.seed);
  const int32_t vocab = house.model(1).config().vocab;
  std::vector<Request> requests;
  std::vector<std::vector<Answer>> alone;
  for (int32_t i = 0; i <= plan.max_neighbours; ++i) {
    requests.push_back(RandomRequest(rng, requests, plan, vocab));
    House::Stack stack = house.Build({1, 64, 16, 512, 8}, plan.max_model_len);
    const auto sink = Send(*stack.engine, requests.back());
    while (stack.engine->Step()) {
    }
    for (const Answer& answer : sink->answers) {
      ASSERT_TRUE(answer.finish == FinishReason::kStop || answer.finish == FinishReason::kLength);
    }
    alone.push_back(sink->answers);
  }
  Seen seen;
  for (int i = 0; i < plan.schedules && !::testing::Test::HasFailure(); ++i) {
    Setting setting;
    setting.threads = 1 + static_cast<int>(rng.Below(3));
    setting.block_tokens = 8 << rng.Below(3);
    const int32_t least = (plan.max_model_len + setting.block_tokens - 1) / setting.block_tokens;
    setting.tight = i % 2 == 0;
    setting.blocks = least + static_cast<int32_t>(setting.tight ? rng.Below(6) : 400);
    const int32_t budgets[] = {3, 4, 7, 16, 33, 64, 200, 512};
    setting.budget = budgets[rng.Below(8)];
    setting.seqs = 3 + static_cast<int32_t>(rng.Below(32));
    const char* modes[] = {"swap", "recompute", "auto"};
    setting.preempt = modes[rng.Below(3)];
    const char* policies[] = {"lru", "fifo", "slru", "s3fifo", "cost"};
    setting.evict = policies[rng.Below(5)];
    const char* orders[] = {"fcfs", "priority", "prefix"};
    setting.policy = orders[rng.Below(3)];
    if (rng.Below(3) == 0) setting.itl_target_ms = 0.1 + rng.Uniform();
    setting.caching = rng.Below(6) != 0;
    RunSchedule(house, plan, requests, alone, setting, rng, &seen);
  }
  std::printf(
      "  %llu preemptions (%llu by swap), %llu tokens found, %llu blocks merged, %llu copied\n",
      static_cast<unsigned long long>(seen.preemptions),
      static_cast<unsigned long long>(seen.swaps), static_cast<unsigned long long>(seen.hits),
      static_cast<unsigned long long>(seen.merged), static_cast<unsigned long long>(seen.copied));
  EXPECT_GT(seen.preemptions, 0u) << "no schedule was tight enough to preempt";
  // Two schedules of short prompts may have no 32 tokens in common, which K in i4 asks for.
  if (house.resume_tokens() == 1 || plan.schedules > 2) {
    EXPECT_GT(seen.hits, 0u);
  }
  if (house.resume_tokens() == 1) {
    EXPECT_GT(seen.copied, 0u) << "no match ended inside a block";
  }
  // One row a step: the smallest chunk there is (one seat then, so requests with n > 1 stay out).
  std::vector<Request> single;
  std::vector<std::vector<Answer>> single_alone;
  for (size_t i = 0; i < requests.size() && single.size() < 3; ++i) {
    if (requests[i].n != 1) continue;
    single.push_back(requests[i]);
    single_alone.push_back(alone[i]);
  }
  RunSchedule(house, plan, single, single_alone, {2, 64, 16, 1, 8}, rng, &seen);
}

// Prompts that end at every offset of a block: cold, then found to the last token but one, then
// beside one that computes the same in the same step.
void CheckEveryOffset(const std::string& path, int32_t longest, KvPair kv = {}) {
  House house(path, kv);
  Rng rng(7);
  const int32_t vocab = house.model(2).config().vocab;
  std::vector<TokenId> text;
  for (int32_t i = 0; i < longest; ++i)
    text.push_back(static_cast<TokenId>(3 + rng.Below(static_cast<uint64_t>(vocab) - 3)));
  House::Stack warm = house.Build({2, 400, 16, 512, 8}, 128);
  uint64_t id = 0;
  for (int32_t length = 1; length <= longest; ++length) {
    SCOPED_TRACE("prompt of " + std::to_string(length));
    Request request;
    request.prompt.assign(text.begin(), text.begin() + length);
    request.sampling.max_tokens = 3;
    request.sampling.temperature = 0;
    request.sampling.logprobs = 3;
    const auto run = [&](Engine& engine, int copies) {
      std::vector<std::shared_ptr<Collector>> sinks;
      for (int i = 0; i < copies; ++i) {
        request.id = RequestId(++id);
        sinks.push_back(Send(engine, request));
      }
      while (engine.Step()) engine.CheckIntegrity();
      return sinks;
    };
    House::Stack cold = house.Build({2, 400, 16, 512, 8}, 128);
    const uint64_t rows_before = cold.engine->stats().computed_prefill_tokens;
    const std::vector<Answer> want = run(*cold.engine, 1)[0]->answers;
    for (const auto& sink : run(*warm.engine, 2)) EXPECT_TRUE(sink->answers == want) << "joined";
    const uint64_t before = warm.engine->stats().computed_prefill_tokens;
    EXPECT_TRUE(run(*warm.engine, 1)[0]->answers == want) << "warm";
    const int32_t found = (length - 1) / house.resume_tokens() * house.resume_tokens();
    EXPECT_EQ(warm.engine->stats().computed_prefill_tokens - before,
              static_cast<uint64_t>(length - found));
    EXPECT_EQ(cold.engine->stats().computed_prefill_tokens - rows_before,
              static_cast<uint64_t>(length));
  }
}

uint64_t Seed() {
  const char* seed = std::getenv("KVASIR_SAME_TOKENS_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
}

std::string DemoPath() {
  std::string path;
  if (const char* named = std::getenv("KVASIR_DEMO_MODEL")) {
    path = named;
  } else {
    const char* data = std::getenv("XDG_DATA_HOME");
    const char* home = std::getenv("HOME");
    path = (data != nullptr ? std::string(data)
                            : std::string(home != nullptr ? home : "") + "/.local/share") +
           "/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  return path;
}

constexpr KvPair kSmallFormats[] = {{KvType::kI8, KvType::kI8},
                                    {KvType::kI8, KvType::kI4},
                                    {KvType::kI4, KvType::kI4},
                                    {KvType::kFp8E4M3, KvType::kFp8E5M2}};

// Where kSanitized: sanitizers look for other faults than wrong tokens and take minutes for it, so
// there are fewer schedules.
TEST(SameTokens, SmallFormatsUnderRandomSchedules) {
  const std::string path = "../shared/models/stories260K.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "SKIPPED: " << path << " is not there";
  for (const KvPair kv : kSmallFormats) {
    if (HasFailure()) return;
    Plan plan;
    plan.seed = Seed();
    plan.kv = kv;
    plan.schedules = kSanitized ? 6 : 25;
    Check(path, plan);
    CheckEveryOffset(path, 35, kv);
  }
}

TEST(SameTokens, SmallFormatsOnTheDemoModel) {
  const std::string path = DemoPath();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "SKIPPED: the demo model is not at " << path;
  for (const KvPair kv : {kSmallFormats[2], kSmallFormats[0]}) {
    if (HasFailure()) return;
    if (kSanitized && kv != kSmallFormats[2]) return;
    Plan plan;
    plan.seed = Seed();
    plan.kv = kv;
    plan.longest_prompt = 40;
    plan.schedules = kSanitized ? 1 : 6;
    plan.max_neighbours = kSanitized ? 5 : 10;
    plan.max_model_len = 64;
    Check(path, plan);
  }
}

TEST(SameTokens, SmallModelUnderRandomSchedules) {
  const std::string path = "../shared/models/stories260K.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "SKIPPED: " << path << " is not there";
  for (uint64_t i = 0; i < (kSanitized ? 1 : 3) && !HasFailure(); ++i) {
    Plan plan;
    plan.seed = Seed() + i;
    Check(path, plan);
  }
}

TEST(SameTokens, PromptsThatEndAtEveryOffsetOfABlock) {
  const std::string small = "../shared/models/stories260K.gguf";
  if (!std::filesystem::exists(small)) GTEST_SKIP() << "SKIPPED: " << small << " is not there";
  CheckEveryOffset(small, 50);
  if (std::filesystem::exists(DemoPath())) {
    CheckEveryOffset(DemoPath(), kSanitized ? 3 : 35);
  } else {
    std::printf("SKIPPED in part: the demo model is not at %s\n", DemoPath().c_str());
  }
}

TEST(SameTokens, DemoModelUnderRandomSchedules) {
  const std::string path = DemoPath();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "SKIPPED: the demo model is not at " << path;
  Plan plan;
  plan.seed = Seed();
  plan.longest_prompt = 40;
  plan.longest_output = 24;
  plan.schedules = kSanitized ? 2 : 6;
  plan.max_neighbours = kSanitized ? 5 : 10;
  plan.max_model_len = 64;
  Check(path, plan);
}

}  // namespace
}  // namespace kvasir
