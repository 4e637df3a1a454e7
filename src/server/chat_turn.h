// One chat answer without HTTP: `kvasir chat`, the quickstart and tests use it. The same text
// pipeline as the server's.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation.h"
#include "server/served_model.h"

namespace kvasir {

struct ChatTurn {
  // JSON array of messages as POST /v1/chat/completions takes them:
  // [{"role":"user","content":"hi"}, …]
  std::string messages_json;
  std::string template_kwargs_json = "{}";  // further variables for the template
  SamplingParams sampling;                  // max_tokens <= 0: the rest of the context
  std::vector<std::string> stop;
};

struct ChatTurnResult {
  std::string text;
  FinishReason finish = FinishReason::kNone;  // kStop, kLength, kCancelled
  GenerationUsage usage;
  double total_ms = 0;  // submit to last token
};

// Blocks until the answer is complete. on_text gets each new piece (whole characters) in the
// calling thread; returning false stops the answer. cancel may be null; it is looked at every 50
// ms, so a signal handler may set it. Stopped answers are results with kCancelled, not failures.
// Failures: bad messages, a template's refusal, a prompt that does not fit (kInvalidArgument), a
// full queue (kResourceExhausted), the engine's own errors.
Result<ChatTurnResult> RunChat(const ServedModel& model, const ChatTurn& turn,
                               const std::function<bool(std::string_view)>& on_text,
                               const std::atomic<bool>* cancel = nullptr,
                               ServerMetrics* metrics = nullptr);

}  // namespace kvasir
