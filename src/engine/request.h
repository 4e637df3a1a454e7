// A request as the engine sees it: token ids and numbers, no text. And what comes back.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "kvcache/cache_types.h"

namespace kvasir {

// Ranges are checked by Validate; the server maps API fields onto these one to one.
struct SamplingParams {
  float temperature = 1.0F;                           // 0: greedy (the first of equal maxima)
  int32_t top_k = 0;                                  // 0 or -1: off
  float top_p = 1.0F;                                 // (0, 1]
  float min_p = 0.0F;                                 // [0, 1]
  float presence_penalty = 0.0F;                      // [-2, 2], over generated tokens
  float frequency_penalty = 0.0F;                     // [-2, 2], over generated tokens
  float repetition_penalty = 1.0F;                    // (0, 2], over prompt and generated tokens
  std::vector<std::pair<TokenId, float>> logit_bias;  // [-100, 100]
  std::vector<TokenId> allowed_tokens;                // empty: all
  std::vector<std::vector<TokenId>> bad_words;        // token sequences that must not appear
  std::optional<uint64_t> seed;  // draws are CounterUniform(seed, choice, position)
  int32_t max_tokens = 16;       // >= 1 here; a request for 0 (prompt_logprobs only) sets it to 0
  int32_t min_tokens = 0;        // no end token or stop token before this many
  std::vector<TokenId> stop_tokens;  // end the sequence; the token is reported with finish kStop
  std::vector<TokenId>
      end_tokens;           // the model's own (eos, eot); filled by the server from the tokenizer
  bool ignore_eos = false;  // end_tokens are ordinary
  int32_t logprobs = -1;    // -1: none; k >= 0: the sampled token's and the k best (k <= 20)
  int32_t prompt_logprobs = -1;  // the same for every prompt token but the first

  // vocab bounds token ids. Names the wrong field as the API calls it.
  Status Validate(int32_t vocab) const;
};

// kv_hint, cache_salt and the key's tenant: whose the blocks are and what becomes of them.
struct CacheWish {
  std::string tenant, salt;  // both part of every block's identity
  Retain retain = Retain::kNormal;
  double ttl_s = 0;       // > 0: its own blocks are dropped so long after its end
  bool last_use = false;  // nobody will come back for them
  std::string session;    // blocks of a live session are kept longer; a name for pin and unpin
  bool read = true;       // false (cache_prompt): compute the whole prompt
};

struct Request {
  RequestId id;
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  int32_t n = 1;         // choices; the prompt is computed once
  int32_t priority = 0;  // lower runs earlier (vLLM's sense); used by the priority policy
  int64_t deadline_ns =
      std::numeric_limits<int64_t>::max();  // for admission, on the engine's clock
  CacheWish cache;
};

// log-probabilities are natural logs of softmax(raw logits), before penalties, bias, masks and
// temperature.
struct TokenLogprob {
  TokenId token = -1;
  float logprob = 0;
  int32_t rank = 0;  // 1: most likely
};
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // best first
};

enum class FinishReason : uint8_t {
  kNone,    // goes on
  kStop,    // end token or stop token
  kLength,  // max_tokens, context, or the whole pool is full of this one sequence
  kCancelled,
  kError,  // see TokenEvent::error
};

// One event to the sink. Events of one choice come in order.
struct TokenEvent {
  RequestId request;
  int32_t choice = 0;
  TokenId token = -1;  // -1: no token with this event (prompt logprobs, finish without a token)
  FinishReason finish = FinishReason::kNone;
  TokenId stop_token = -1;  // which token ended it with kStop
  Status error;             // with kError, kCancelled: why
  std::unique_ptr<PositionLogprobs> logprobs;
  std::unique_ptr<std::vector<PositionLogprobs>>
      prompt_logprobs;  // once, with choice 0's first event
  int64_t time_ns = 0;  // engine clock, when sampled
  // Filled in the first event of a choice:
  int64_t scheduled_ns = 0;                    // when the request first ran
  int32_t cached_tokens = 0;                   // prompt tokens found in the cache
  MissReason miss_reason = MissReason::kCold;  // of most of the rest; never kSalt
};

// Called by the engine's thread; must be quick and must not call the worker back (post to your own
// thread).
class EventSink {
 public:
  virtual ~EventSink() = default;
  // All of one request's events of one step, at least one. Take what you want to keep, or the whole
  // vector; what is left is dropped, and its memory serves the next step.
  virtual void OnTokens(std::vector<TokenEvent>& events) = 0;
};

}  // namespace kvasir
