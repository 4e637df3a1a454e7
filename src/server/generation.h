// Generation: one engine request seen as text. Takes the engine's TokenEvents and gives whole
// characters, stop strings already cut, log-probabilities beside the text they belong to, and one
// finish per choice.
//
// The joined deltas do not depend on how events were grouped, so a streamed and a plain answer are
// the same. Threads: not thread-safe; feed it from one thread at a time (a connection's strand, a
// terminal's main thread), never from the engine's. An EventSink that posts there is the caller's;
// RunChat (chat_turn.h) brings its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/choice_text.h"
#include "server/metrics.h"
#include "server/served_model.h"

namespace kvasir {

struct GenerationParams {
  std::vector<TokenId> prompt;
  SamplingParams sampling;  // end_tokens are filled in from the tokenizer
  int32_t n = 1;
  int32_t priority = 0;
  CacheWish cache;
  // With max_tokens 0: the prompt is computed all the same, for what stays in the cache.
  bool warm = false;
  double queue_timeout_s = 0;     // longest wait for admission; 0: no limit
  std::vector<std::string> stop;  // stop strings, UTF-8, not empty
  bool include_stop = false;      // the stop string (or stop token's text) stays in the text
  bool skip_special = true;       // control tokens have no text
};

struct OutputToken {
  TokenId token = -1;
  std::string bytes;  // what it adds to the text; empty if hidden
  int64_t text_offset =
      0;  // characters (code points) shown by the tokens before it, stop strings not cut
  std::unique_ptr<PositionLogprobs> logprobs;  // if asked for
};

// What one step added to one choice. Text comes late while it may still be part of a stop string or
// of a character; its tokens come with it.
struct ChoiceDelta {
  int32_t choice = 0;
  std::string text;
  std::vector<OutputToken> tokens;
  FinishReason finish = FinishReason::kNone;  // the last delta of a choice has another value
  int32_t stop_index = -1;                    // which of GenerationParams::stop ended it
  TokenId stop_token =
      -1;        // which of sampling.stop_tokens ended it; -1: none, or the model's own end
  Status error;  // with kError and kCancelled
};

struct GenerationUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens =
      0;  // over all choices, up to the token that completed a stop string; end tokens count
  int64_t cached_tokens = 0;
  // Of the tokens that were computed, by most of them; none if nothing was. Never kSalt: that
  // others have the same text is not for a client.
  std::optional<MissReason> miss_reason;
  int64_t most_computed = 0;  // in a sum: by the generation whose miss_reason it has
  double queue_ms = 0;        // arrival to first scheduled
  double prefill_ms = 0;      // first scheduled to first token
};

// An id no other request of this process has.
RequestId NextRequestId();

class Generation {
 public:
  // metrics may be null. model, metrics: outlive it. Destroying an unfinished one cancels it in the
  // engine.
  Generation(const ServedModel& model, GenerationParams params, ServerMetrics* metrics);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  RequestId id() const { return id_; }
  // Hands it to the engine. On failure nothing follows. sink gets the events; give them to Feed, in
  // order.
  Status Submit(std::shared_ptr<EventSink> sink);
  // What there is to show now, in choice order of the events; choices with nothing to show are left
  // out. Tells the engine about choices that a stop string ended.
  std::vector<ChoiceDelta> Feed(std::vector<TokenEvent> events);
  // Gives up: the engine's blocks come back, later events are ignored. Counts as an abort.
  void Cancel();

  bool done() const { return open_choices_ == 0; }
  // One per prompt token but the first; empty until the first event, and if not asked for.
  const std::vector<PositionLogprobs>& prompt_logprobs() const { return prompt_logprobs_; }
  const GenerationParams& params() const { return params_; }
  GenerationUsage usage() const { return usage_; }

 private:
  struct Choice;
  void FeedOne(TokenEvent event, ChoiceDelta* delta);
  void NoteFirstEvent(const TokenEvent& event);
  void NoteToken(Choice* choice, int64_t time_ns);
  void Close(Choice* choice, FinishReason reason);
  void Account(FinishReason reason);
  int64_t NowNs() const;

  ServedModel model_;
  GenerationParams params_;
  ServerMetrics* metrics_;
  RequestId id_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::vector<PositionLogprobs> prompt_logprobs_;
  GenerationUsage usage_;
  int64_t arrival_ns_ = 0;
  int64_t first_token_ns_ = 0;
  int32_t open_choices_ = 0;
  FinishReason worst_ = FinishReason::kNone;
  bool submitted_ = false;
  bool accounted_ = false;
};

}  // namespace kvasir
