// State-machine runs of the whole core from a seed: random requests, cancels, early ends, failures,
// tiny pools and odd budgets, on the runner that checks the bytes. After each step the books are
// recounted; at the end every choice has the tokens and the log-probabilities, to the bit, that it
// has alone, or a beginning of them if something ended it.
//
// KVASIR_FUZZ_SEED runs one seed; KVASIR_FUZZ_ROUNDS sets how many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "engine/engine.h"
#include "engine/fake_runner_test.h"
#include "engine/oracle_test.h"

namespace kvasir {
namespace {

using namespace testing_fake;  // NOLINT(google-build-using-namespace)

constexpr int32_t kVocab = 24;

struct Totals {
  uint64_t steps = 0, preemptions = 0, choices = 0, cancelled = 0, failed = 0, exact = 0;
};

class Episode {
 public:
  explicit Episode(uint64_t seed) : rng_(seed) {
    const int block_tokens = rng_.Below(2) == 0 ? 8 : 16;
    const int32_t blocks = 3 + static_cast<int32_t>(rng_.Below(rng_.Below(3) == 0 ? 60 : 14));
    EngineOptions options;
    options.max_num_seqs = 1 + static_cast<int32_t>(rng_.Below(12));
    options.max_num_batched_tokens =
        1 + static_cast<int32_t>(rng_.Below(rng_.Below(2) == 0 ? 8 : 60));
    options.max_queue = static_cast<int32_t>(rng_.Below(30));
    options.reserve_blocks = rng_.Below(2) == 0 ? 0.0 : 0.2 * rng_.Uniform();
    options.queue_timeout_s = 1;
    if (rng_.Below(2) == 0) options.max_model_len = 20 + static_cast<int32_t>(rng_.Below(60));
    const char* evict[] = {"lru", "fifo", "slru", "s3fifo", "cost"};
    options.evict = evict[rng_.Below(5)];
    const char* preempt[] = {"auto", "swap", "recompute"};
    options.preempt = preempt[rng_.Below(3)];
    const char* policy[] = {"fcfs", "priority", "prefix"};
    options.scheduling_policy = policy[rng_.Below(3)];
    if (rng_.Below(3) == 0) options.itl_target_ms = 0.001 * static_cast<double>(rng_.Below(100));
    options.prefix_caching = rng_.Below(8) != 0;
    options.swap_bytes = 1 + rng_.Below(30) * 256;
    options.pin_budget = 0.3 * rng_.Uniform();
    options.tenant_quota = rng_.Uniform();
    arena_ = FakeArena(blocks, block_tokens);
    runner_ = std::make_unique<FakeRunner>(arena_.get(), kVocab, 64, seed);
    runner_->broken_logits = rng_.Below(2) == 0;
    runner_->failure_rate = rng_.Below(4) == 0 ? 0.01 : 0;
    auto made =
        Engine::Make(options, {}, runner_.get(), arena_.get(), &clock_, &executor_, nullptr);
    KVASIR_CHECK(made.ok());
    engine_ = std::move(made).value();
  }

  void Drive(int steps, Totals& totals) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      if (rng_.Below(4) == 0) Submit();
      if (rng_.Below(30) == 0 && !open_.empty()) Cancel();
      if (rng_.Below(30) == 0 && !open_.empty()) Finish();
      if (rng_.Below(25) == 0) Command();
      clock_.Advance(static_cast<int64_t>(rng_.Below(20'000'000)));
      Step();
    }
    while (!::testing::Test::HasFailure() && Step()) {
    }
    const WorkerStats stats = engine_->stats();
    EXPECT_EQ(stats.books.free + stats.books.evictable + stats.cache.pinned_by_name,
              stats.books.total);
    EXPECT_EQ(stats.books.reserved + stats.running + stats.waiting, 0);
    EXPECT_EQ(commands_, replies_);
    Verify(totals);
    EXPECT_TRUE(open_.empty()) << "a request without its last event";
    totals.steps += stats.steps;
    totals.preemptions += stats.preemptions;
  }

 private:
  struct Open {
    Request request;
    std::shared_ptr<RecordingSink> sink;
    bool cancelled = false;
  };

  bool Step() {
    std::map<uint64_t, int> calls;
    for (const auto& [id, open] : open_) calls[id] = open.sink->calls;
    const bool worked = engine_->Step();
    engine_->CheckIntegrity();
    const WorkerStats stats = engine_->stats();
    EXPECT_TRUE(stats.books.Balanced());
    EXPECT_LE(stats.slots_used, stats.slots_allocated);
    EXPECT_GE(stats.slots_used, 0);
    for (const auto& [id, before] : calls) EXPECT_LE(open_.at(id).sink->calls - before, 1);
    for (auto it = open_.begin(); it != open_.end();) {
      const bool done = it->second.sink->Done();
      EXPECT_TRUE(done || !it->second.cancelled) << "a cancel took more than one step";
      if (done) {
        done_.push_back(std::move(it->second));
        it = open_.erase(it);
      } else {
        ++it;
      }
    }
    if (done_.size() > 200) {
      Totals ignored;
      Verify(ignored);
      carried_.exact += ignored.exact;
      carried_.choices += ignored.choices;
      carried_.cancelled += ignored.cancelled;
      carried_.failed += ignored.failed;
    }
    return worked;
  }

  TokenId Token() { return static_cast<TokenId>(rng_.Below(kVocab)); }

  void Submit() {
    Request request;
    request.id = RequestId(++next_id_);
    const size_t prompt = 1 + rng_.Below(rng_.Below(3) == 0 ? 60 : 20);
    for (size_t i = 0; i < prompt; ++i)
      request.prompt.push_back(static_cast<TokenId>(rng_.Below(3)));
    const char* salts[] = {"", "", "salt", "other"};
    request.cache.salt = salts[rng_.Below(4)];
    if (rng_.Below(6) == 0) request.cache.tenant = "tenant";
    request.cache.retain = static_cast<Retain>(rng_.Below(5));
    if (rng_.Below(6) == 0) request.cache.ttl_s = 0.3;
    request.cache.last_use = rng_.Below(6) == 0;
    if (rng_.Below(4) == 0) request.cache.session = "s";
    request.cache.read = rng_.Below(10) != 0;
    request.priority = static_cast<int32_t>(rng_.Below(3));
    request.n = rng_.Below(3) == 0 ? 1 + static_cast<int32_t>(rng_.Below(4)) : 1;
    SamplingParams& p = request.sampling;
    p.seed = rng_.Next();
    p.max_tokens = static_cast<int32_t>(rng_.Below(rng_.Below(3) == 0 ? 60 : 16));
    p.temperature = rng_.Below(3) == 0 ? 0.0F : static_cast<float>(0.3 + rng_.Uniform());
    if (rng_.Below(3) == 0) p.top_k = 1 + static_cast<int32_t>(rng_.Below(10));
    if (rng_.Below(3) == 0) p.top_p = 0.9F;
    if (rng_.Below(4) == 0) p.frequency_penalty = 1.0F;
    if (rng_.Below(4) == 0) p.repetition_penalty = 1.3F;
    if (rng_.Below(2) == 0) p.end_tokens = {Token()};
    if (rng_.Below(4) == 0) p.stop_tokens = {Token()};
    if (rng_.Below(4) == 0) p.min_tokens = std::min(p.max_tokens, 3);
    if (rng_.Below(4) == 0) p.bad_words = {{Token()}, {Token(), Token()}};
    if (rng_.Below(8) == 0) p.allowed_tokens = {Token(), Token(), Token()};
    if (rng_.Below(3) == 0) p.logprobs = static_cast<int32_t>(rng_.Below(4));
    if (rng_.Below(5) == 0) p.prompt_logprobs = static_cast<int32_t>(rng_.Below(3));
    auto sink = std::make_shared<RecordingSink>(request.id, request.n);
    const Status status = engine_->Submit(request, sink);
    if (status.ok()) {
      open_.emplace(request.id.value, Open{std::move(request), std::move(sink)});
      return;
    }
    EXPECT_TRUE(status.code() == StatusCode::kResourceExhausted ||
                status.code() == StatusCode::kInvalidArgument)
        << status.ToString();
  }

  void Command() {
    CacheRequest request;
    request.kind = static_cast<CacheRequest::Kind>(rng_.Below(4));
    if (request.kind == CacheRequest::Kind::kReset && rng_.Below(4) != 0) return;
    request.salt = rng_.Below(3) == 0 ? "salt" : "";
    if (rng_.Below(3) == 0) request.session = "s";
    for (uint64_t i = rng_.Below(30); i > 0; --i)
      request.tokens.push_back(static_cast<TokenId>(rng_.Below(3)));
    request.ttl_s = 0.1 * static_cast<double>(rng_.Below(20));
    if (rng_.Below(3) == 0) request.pin = 1 + rng_.Below(5);
    request.drop_pins = rng_.Below(2) == 0;
    engine_->Cache(request, [this](CacheReply reply) {
      EXPECT_TRUE(reply.books.Balanced());
      ++replies_;
    });
    ++commands_;
  }

  Open& Any() {
    auto it = open_.begin();
    std::advance(it, rng_.Below(open_.size()));
    return it->second;
  }

  void Cancel() {
    Open& open = Any();
    open.cancelled = true;
    engine_->Cancel(open.request.id);
  }

  void Finish() {
    Open& open = Any();
    const int32_t choice = static_cast<int32_t>(rng_.Below(open.sink->choices.size()));
    RecordingSink::Choice& c = open.sink->choices[static_cast<size_t>(choice)];
    if (c.finish != FinishReason::kNone || open.cancelled) return;
    c.finished_by_us = true;
    engine_->FinishChoice(open.request.id, choice);
  }

  void Verify(Totals& totals) {
    for (const Open& open : done_) {
      for (int32_t c = 0; c < open.request.n; ++c) VerifyChoice(open, c, totals);
    }
    done_.clear();
    totals.exact += std::exchange(carried_.exact, 0);
    totals.choices += std::exchange(carried_.choices, 0);
    totals.cancelled += std::exchange(carried_.cancelled, 0);
    totals.failed += std::exchange(carried_.failed, 0);
  }

  void VerifyChoice(const Open& open, int32_t c, Totals& totals) {
    const RecordingSink::Choice& got = open.sink->choices[static_cast<size_t>(c)];
    const OracleAnswer want =
        Oracle(open.request, c, kVocab, engine_->info().max_model_len, runner_->broken_logits);
    SCOPED_TRACE("request " + std::to_string(open.request.id.value) + " choice " +
                 std::to_string(c));
    ++totals.choices;
    const bool cut =
        got.finished_by_us || got.finish == FinishReason::kCancelled ||
        (got.finish == FinishReason::kError && (got.error.message() == "the fake runner failed" ||
                                                got.error.code() == StatusCode::kDeadlineExceeded));
    if (cut) {
      ++totals.cancelled;
      ASSERT_LE(got.tokens.size(), want.tokens.size());
      EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), want.tokens.begin()));
    } else {
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_EQ(got.finish, want.finish) << got.error.ToString();
      ++(want.finish == FinishReason::kError ? totals.failed : totals.exact);
    }
    ASSERT_LE(got.logprobs.size(), want.logprobs.size());
    EXPECT_EQ(got.logprobs.size(), open.request.sampling.logprobs >= 0 ? got.tokens.size() : 0u);
    for (size_t i = 0; i < got.logprobs.size(); ++i) {
      EXPECT_TRUE(SameLogprobs(got.logprobs[i], want.logprobs[i]));
    }
    if (c == 0 && !cut && want.finish != FinishReason::kError) {
      EXPECT_EQ(open.sink->prompt_logprobs != nullptr, open.request.sampling.prompt_logprobs >= 0);
    }
    if (c == 0 && open.sink->prompt_logprobs) VerifyPrompt(open);
  }

  void VerifyPrompt(const Open& open) {
    ASSERT_EQ(open.sink->prompt_logprobs->size() + 1, open.request.prompt.size());
    uint64_t history = kStartOfHistory;
    std::vector<float> logits(kVocab);
    for (size_t i = 0; i + 1 < open.request.prompt.size(); ++i) {
      history = Extend(history, open.request.prompt[i]);
      FakeLogits(history, runner_->broken_logits, logits);
      EXPECT_TRUE(SameLogprobs((*open.sink->prompt_logprobs)[i],
                               ComputeLogprobs(logits, open.request.prompt[i + 1],
                                               open.request.sampling.prompt_logprobs)));
    }
  }

  Rng rng_;
  ManualClock clock_;
  SerialExecutor executor_;
  std::unique_ptr<CpuArena> arena_;
  std::unique_ptr<FakeRunner> runner_;
  std::unique_ptr<Engine> engine_;
  uint64_t next_id_ = 0;
  int commands_ = 0, replies_ = 0;
  std::map<uint64_t, Open> open_;
  std::vector<Open> done_;
  Totals carried_;
};

TEST(EngineFuzz, SameTokensAndBalancedBooksWhateverHappens) {
  const char* one = std::getenv("KVASIR_FUZZ_SEED");
  const char* many = std::getenv("KVASIR_FUZZ_ROUNDS");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t rounds = one != nullptr    ? 1
                          : many != nullptr ? std::strtoull(many, nullptr, 10)
                                            : 150;
  Totals totals;
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("KVASIR_FUZZ_SEED=" + std::to_string(seed));
    Episode episode(seed);
    episode.Drive(600, totals);
  }
  std::printf(
      "seeds %llu to %llu: %llu steps, %llu preemptions, %llu choices (%llu exact, %llu cut short, "
      "%llu broken)\n",
      static_cast<unsigned long long>(first), static_cast<unsigned long long>(first + rounds - 1),
      static_cast<unsigned long long>(totals.steps),
      static_cast<unsigned long long>(totals.preemptions),
      static_cast<unsigned long long>(totals.choices),
      static_cast<unsigned long long>(totals.exact),
      static_cast<unsigned long long>(totals.cancelled),
      static_cast<unsigned long long>(totals.failed));
  if (rounds >= 100) {
    EXPECT_GT(totals.preemptions, 100u);  // the pools were small enough to mean something
    EXPECT_GT(totals.exact, 1000u);
    EXPECT_GT(totals.cancelled, 100u);
    EXPECT_GT(totals.failed, 10u);
  }
}

}  // namespace
}  // namespace kvasir
