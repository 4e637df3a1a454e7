// For tests: what a request gives without an engine, and a sink that checks the rules of every
// stream of events.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/fake_runner_test.h"
#include "engine/logprobs.h"
#include "engine/sampler.h"

namespace kvasir::testing_fake {

// What a choice gives when nothing happens around it.
struct OracleAnswer {
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> logprobs;  // if asked for
  FinishReason finish = FinishReason::kNone;
};

inline OracleAnswer Oracle(const Request& request, int32_t choice, int32_t vocab,
                           int32_t max_model_len, bool broken) {
  OracleAnswer answer;
  Sampler sampler(vocab);
  const SamplingParams& p = request.sampling;
  std::vector<TokenId> tokens = request.prompt;
  std::vector<float> logits(static_cast<size_t>(vocab));
  uint64_t history = kStartOfHistory;
  for (size_t i = 0; i < tokens.size(); ++i) {
    history = Extend(history, tokens[i]);
    if (p.prompt_logprobs < 0 || i + 1 == tokens.size()) continue;
    FakeLogits(history, broken, logits);
    const bool finite =
        std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
    if (!finite) answer.finish = FinishReason::kError;
  }
  if (answer.finish == FinishReason::kNone && p.max_tokens == 0)
    answer.finish = FinishReason::kLength;
  while (answer.finish == FinishReason::kNone) {
    FakeLogits(history, broken, logits);
    SampleInput input;
    input.params = &p;
    input.tokens = tokens;
    input.prompt_tokens = static_cast<int32_t>(request.prompt.size());
    input.seed = p.seed.value_or(0);
    input.choice = choice;
    const auto token = sampler.Sample(logits, input);
    if (!token.ok()) {
      answer.finish = FinishReason::kError;
      break;
    }
    tokens.push_back(*token);
    answer.tokens.push_back(*token);
    if (p.logprobs >= 0) answer.logprobs.push_back(ComputeLogprobs(logits, *token, p.logprobs));
    history = Extend(history, *token);
    const auto in = [&](const std::vector<TokenId>& list) {
      return std::find(list.begin(), list.end(), *token) != list.end();
    };
    if (in(p.stop_tokens) || (!p.ignore_eos && in(p.end_tokens))) {
      answer.finish = FinishReason::kStop;
    } else if (static_cast<int32_t>(answer.tokens.size()) >= p.max_tokens ||
               static_cast<int32_t>(tokens.size()) >= max_model_len) {
      answer.finish = FinishReason::kLength;
    }
  }
  return answer;
}

inline bool SameLogprobs(const PositionLogprobs& a, const PositionLogprobs& b) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && x.rank == y.rank &&
           std::memcmp(&x.logprob, &y.logprob, sizeof(float)) == 0;
  };
  if (!same(a.chosen, b.chosen) || a.top.size() != b.top.size()) return false;
  for (size_t i = 0; i < a.top.size(); ++i) {
    if (!same(a.top[i], b.top[i])) return false;
  }
  return true;
}

// Collects a request's events and checks the rules that hold for every stream of events.
class RecordingSink final : public EventSink {
 public:
  struct Choice {
    std::vector<TokenId> tokens;
    std::vector<PositionLogprobs> logprobs;
    FinishReason finish = FinishReason::kNone;
    Status error;
    TokenId stop_token = -1;
    int events = 0;
    bool finished_by_us = false;  // FinishChoice: no further event may come
  };
  RecordingSink(RequestId id, int32_t n) : choices(static_cast<size_t>(n)), id_(id) {}

  void OnTokens(std::vector<TokenEvent>& events) override {
    EXPECT_FALSE(events.empty());
    ++calls;
    for (TokenEvent& event : events) {
      EXPECT_EQ(event.request, id_);
      ASSERT_TRUE(event.choice >= 0 && static_cast<size_t>(event.choice) < choices.size());
      Choice& choice = choices[static_cast<size_t>(event.choice)];
      EXPECT_EQ(choice.finish, FinishReason::kNone) << "an event after the end";
      EXPECT_FALSE(choice.finished_by_us) << "an event after FinishChoice";
      ++choice.events;
      if (event.token >= 0) choice.tokens.push_back(event.token);
      if (event.logprobs) choice.logprobs.push_back(std::move(*event.logprobs));
      EXPECT_EQ(event.error.ok(),
                event.finish != FinishReason::kError && event.finish != FinishReason::kCancelled);
      EXPECT_EQ(event.stop_token >= 0, event.finish == FinishReason::kStop);
      if (event.prompt_logprobs) {
        EXPECT_EQ(event.choice, 0);
        EXPECT_EQ(choice.events, 1);
        EXPECT_EQ(prompt_logprobs, nullptr);
        prompt_logprobs = std::move(event.prompt_logprobs);
      }
      choice.finish = event.finish;
      choice.error = event.error;
      choice.stop_token = event.stop_token;
    }
  }
  bool Done() const {
    for (const Choice& c : choices) {
      if (c.finish == FinishReason::kNone && !c.finished_by_us) return false;
    }
    return true;
  }

  std::vector<Choice> choices;
  std::unique_ptr<std::vector<PositionLogprobs>> prompt_logprobs;
  int calls = 0;

 private:
  RequestId id_;
};

}  // namespace kvasir::testing_fake
