#include "server/test_fake_choice.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace kvasir {
namespace {

std::unique_ptr<PositionLogprobs> FakeLogprobs(const FakeWorkerOptions& options, TokenId token,
                                               int32_t top) {
  auto out = std::make_unique<PositionLogprobs>();
  out->chosen = {token, -0.25F, 1};
  for (int32_t k = 0; k < top; ++k) {
    const bool last = options.infinite_logprobs && k + 1 == top;
    out->top.push_back(
        {(token + k) % options.vocab,
         last ? -std::numeric_limits<float>::infinity() : -0.25F - static_cast<float>(k), k + 1});
  }
  return out;
}

}  // namespace

TokenEvent FakeNext(const FakeWorkerOptions& options, const Request& request, int32_t index,
                    FakeChoice* open_choice) {
  FakeChoice& choice = *open_choice;
  const SamplingParams& s = request.sampling;
  TokenEvent event;
  event.request = request.id;
  event.choice = index;
  const auto made = static_cast<int32_t>(choice.tokens.size() - request.prompt.size());
  if (options.fail_after >= 0 && made >= options.fail_after) {
    event.finish = FinishReason::kError;
    event.error = Internal("the logits are not finite");
    choice.open = false;
    return event;
  }
  if (made == 0) {
    event.cached_tokens = options.cached_tokens;
    event.miss_reason = options.miss_reason;
  }
  if (made == 0 && s.prompt_logprobs >= 0 && index == 0) {
    event.prompt_logprobs = std::make_unique<std::vector<PositionLogprobs>>();
    for (size_t i = 1; i < request.prompt.size(); ++i)
      event.prompt_logprobs->push_back(
          std::move(*FakeLogprobs(options, request.prompt[i], s.prompt_logprobs)));
  }
  if (s.max_tokens == 0) {
    event.finish = FinishReason::kLength;
    choice.open = false;
    return event;
  }
  const size_t back = std::min<size_t>(static_cast<size_t>(options.distance), choice.tokens.size());
  event.token = choice.tokens[choice.tokens.size() - back];
  if (event.token < 256 && index > 0) event.token = (event.token + index) % 256;
  choice.tokens.push_back(event.token);
  if (s.logprobs >= 0) event.logprobs = FakeLogprobs(options, event.token, s.logprobs);
  const auto in = [&](const std::vector<TokenId>& list) {
    return std::find(list.begin(), list.end(), event.token) != list.end();
  };
  if (made + 1 > s.min_tokens && (in(s.stop_tokens) || (!s.ignore_eos && in(s.end_tokens)))) {
    event.finish = FinishReason::kStop;
    event.stop_token = event.token;
  } else if (made + 1 >= s.max_tokens) {
    event.finish = FinishReason::kLength;
  }
  choice.open = event.finish == FinishReason::kNone;
  return event;
}

}  // namespace kvasir
