#include "server/chat_turn.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "server/chat_messages.h"
#include "server/prompt_builder.h"

namespace kvasir {
namespace {

// The engine's thread puts events in, the calling thread takes them out.
class QueueSink : public EventSink {
 public:
  void OnTokens(std::vector<TokenEvent>& events) override {
    const std::lock_guard lock(mutex_);
    batches_.push_back(std::move(events));
    filled_.notify_one();
  }

  // Empty after the time is over.
  std::vector<TokenEvent> Take(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    filled_.wait_for(lock, patience, [this] { return !batches_.empty(); });
    if (batches_.empty()) return {};
    std::vector<TokenEvent> events = std::move(batches_.front());
    batches_.pop_front();
    return events;
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<std::vector<TokenEvent>> batches_;
};

Result<GenerationParams> MakeParams(const ServedModel& model, const ChatTurn& turn) {
  ApiCall call;
  call.chat = true;
  call.sampling = turn.sampling;
  call.stop = turn.stop;
  if (turn.sampling.max_tokens > 0) call.max_tokens = turn.sampling.max_tokens;
  KVASIR_ASSIGN_OR_RETURN(const Json messages, ParseJson(turn.messages_json));
  KVASIR_ASSIGN_OR_RETURN(call.chat_prompt.messages, NormaliseMessages(messages));
  KVASIR_ASSIGN_OR_RETURN(call.chat_prompt.template_kwargs, ParseJson(turn.template_kwargs_json));
  if (!call.chat_prompt.template_kwargs.is_object())
    return InvalidArgument("template_kwargs_json must be a JSON object");
  KVASIR_ASSIGN_OR_RETURN(std::vector<GenerationParams> built, PromptBuilder(model).Build(call));
  return std::move(built.front());
}

}  // namespace

Result<ChatTurnResult> RunChat(const ServedModel& model, const ChatTurn& turn,
                               const std::function<bool(std::string_view)>& on_text,
                               const std::atomic<bool>* cancel, ServerMetrics* metrics) {
  KVASIR_ASSIGN_OR_RETURN(GenerationParams params, MakeParams(model, turn));
  const auto begun = std::chrono::steady_clock::now();
  Generation generation(model, std::move(params), metrics);
  auto sink = std::make_shared<QueueSink>();
  KVASIR_RETURN_IF_ERROR(generation.Submit(sink));
  ChatTurnResult result;
  while (!generation.done()) {
    bool stop = cancel != nullptr && cancel->load();
    constexpr std::chrono::milliseconds kLook(50);
    for (ChoiceDelta& delta : generation.Feed(sink->Take(kLook))) {
      if (delta.finish == FinishReason::kError)
        return delta.error.ok() ? Internal("the engine failed on this request") : delta.error;
      result.finish = delta.finish;
      result.text += delta.text;
      if (!delta.text.empty() && on_text && !on_text(delta.text)) stop = true;
    }
    if (stop && !generation.done()) {
      generation.Cancel();
      result.finish = FinishReason::kCancelled;
    }
  }
  result.usage = generation.usage();
  result.total_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
  return result;
}

}  // namespace kvasir
