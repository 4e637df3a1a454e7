#include "server/call_runner.h"

#include <ctime>
#include <iterator>
#include <utility>

namespace kvasir {

// Called by the engine's thread; only carries events over to the strand.
class CallRunner::Sink : public EventSink {
 public:
  // Weak: the engine may hold a sink for longer than the server lives.
  Sink(std::weak_ptr<CallRunner> runner, std::weak_ptr<ResponseWriter> writer, size_t index)
      : runner_(std::move(runner)), writer_(std::move(writer)), index_(index) {}

  void OnTokens(std::vector<TokenEvent>& events) override {
    const std::shared_ptr<ResponseWriter> writer = writer_.lock();
    if (!writer) return;
    auto carried = std::make_shared<std::vector<TokenEvent>>(std::move(events));
    writer->Post([runner = runner_, index = index_, carried] {
      if (const std::shared_ptr<CallRunner> alive = runner.lock())
        alive->OnEvents(index, std::move(*carried));
    });
  }

 private:
  std::weak_ptr<CallRunner> runner_;
  std::weak_ptr<ResponseWriter> writer_;
  size_t index_;
};

CallRunner::CallRunner(const ServedModel& model, ServerMetrics* metrics, PreparedCall prepared,
                       std::shared_ptr<ResponseWriter> writer)
    : model_(model),
      metrics_(metrics),
      prepared_(std::move(prepared)),
      writer_(std::move(writer)),
      answer_(&prepared_.call, model_.tokenizer, model_.name, prepared_.id,
              static_cast<int64_t>(std::time(nullptr))) {
  for (GenerationParams& params : prepared_.generations)
    generations_.push_back(std::make_unique<Generation>(model_, std::move(params), metrics_));
  begun_.resize(generations_.size());
  collected_.resize(generations_.size() * static_cast<size_t>(prepared_.call.n));
}

int32_t CallRunner::AnswerIndex(size_t index, int32_t choice) const {
  return static_cast<int32_t>(index) * prepared_.call.n + choice;
}

void CallRunner::Start() {
  for (size_t i = 0; i < generations_.size(); ++i) {
    const Status status =
        generations_[i]->Submit(std::make_shared<Sink>(weak_from_this(), writer_, i));
    if (!status.ok()) {
      Fail(status);
      return;
    }
  }
}

void CallRunner::OnEvents(size_t index, std::vector<TokenEvent> events) {
  if (!writer_) return;
  std::vector<ChoiceDelta> deltas = generations_[index]->Feed(std::move(events));
  for (const ChoiceDelta& delta : deltas) {
    if (delta.finish == FinishReason::kError) {
      Fail(delta.error.ok() ? Internal("the engine failed on this request") : delta.error);
      return;
    }
    if (delta.finish == FinishReason::kCancelled) {
      Fail(delta.error.ok() ? Unavailable("the request was cancelled: the server is stopping")
                            : delta.error);
      return;
    }
  }
  if (prepared_.call.stream)
    Stream(index, deltas);
  else
    Collect(index, std::move(deltas));
  for (const auto& generation : generations_)
    if (!generation->done()) return;
  Finish();
}

void CallRunner::Stream(size_t index, const std::vector<ChoiceDelta>& deltas) {
  if (!streaming_) {
    streaming_ = true;
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    writer_->BeginStream(std::move(head));
  }
  const Generation& generation = *generations_[index];
  std::string out;
  if (!begun_[index]) {
    begun_[index] = true;
    for (int32_t choice = 0; choice < prepared_.call.n; ++choice)
      out += answer_.FirstChunk(AnswerIndex(index, choice), generation);
  }
  for (const ChoiceDelta& delta : deltas)
    out += answer_.Chunk(AnswerIndex(index, delta.choice), delta, generation);
  if (!out.empty()) writer_->Write(std::move(out));
}

void CallRunner::Collect(size_t index, std::vector<ChoiceDelta> deltas) {
  for (ChoiceDelta& delta : deltas) {
    ChoiceDelta& whole = collected_[static_cast<size_t>(AnswerIndex(index, delta.choice))];
    whole.choice = delta.choice;
    whole.text += delta.text;
    std::move(delta.tokens.begin(), delta.tokens.end(), std::back_inserter(whole.tokens));
    if (delta.finish == FinishReason::kNone) continue;
    whole.finish = delta.finish;
    whole.stop_index = delta.stop_index;
    whole.stop_token = delta.stop_token;
  }
}

GenerationUsage CallRunner::TotalUsage() const {
  GenerationUsage sum;
  for (const auto& generation : generations_) AddUsage(generation->usage(), &sum);
  return sum;
}

void CallRunner::Finish() {
  const std::shared_ptr<ResponseWriter> writer = std::move(writer_);
  const GenerationUsage usage = TotalUsage();
  writer->NoteUsage(usage.prompt_tokens, usage.completion_tokens);
  if (prepared_.call.stream) {
    std::string out;
    if (prepared_.call.include_usage) out += answer_.UsageChunk(usage);
    writer->Write(out + "data: [DONE]\n\n");
    writer->EndStream();
    return;
  }
  Json choices = Json::array();
  for (size_t i = 0; i < collected_.size(); ++i)
    choices.push_back(answer_.Choice(static_cast<int32_t>(i), collected_[i],
                                     *generations_[i / static_cast<size_t>(prepared_.call.n)]));
  HttpResponse response;
  response.body = answer_.Answer(std::move(choices), usage, *generations_.front());
  writer->Send(std::move(response));
}

void CallRunner::Fail(const Status& status) {
  const std::shared_ptr<ResponseWriter> writer = std::move(writer_);
  for (const auto& generation : generations_) generation->Cancel();
  const GenerationUsage usage = TotalUsage();
  writer->NoteUsage(usage.prompt_tokens, usage.completion_tokens);
  if (!streaming_) {
    writer->Send(ErrorResponse(status));
    return;
  }
  writer->Write("data: " + ErrorBody(status) + "\n\ndata: [DONE]\n\n");
  writer->EndStream();
}

void CallRunner::OnClientGone() {
  const std::shared_ptr<ResponseWriter> writer = std::move(writer_);
  if (!writer) return;
  for (const auto& generation : generations_) generation->Cancel();
  const GenerationUsage usage = TotalUsage();
  writer->NoteUsage(usage.prompt_tokens, usage.completion_tokens);
}

}  // namespace kvasir
