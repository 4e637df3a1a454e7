#include "server/cache_runner.h"

#include <cmath>
#include <utility>

namespace kvasir {

// Called by the engine's thread; only carries events over to the strand.
class CacheRunner::Sink : public EventSink {
 public:
  // Weak: the engine may hold a sink for longer than the server lives.
  Sink(std::weak_ptr<CacheRunner> runner, std::weak_ptr<ResponseWriter> writer)
      : runner_(std::move(runner)), writer_(std::move(writer)) {}

  void OnTokens(std::vector<TokenEvent>& events) override {
    const std::shared_ptr<ResponseWriter> writer = writer_.lock();
    if (!writer) return;
    auto carried = std::make_shared<std::vector<TokenEvent>>(std::move(events));
    writer->Post([runner = runner_, carried] {
      if (const std::shared_ptr<CacheRunner> alive = runner.lock())
        alive->OnEvents(std::move(*carried));
    });
  }

 private:
  std::weak_ptr<CacheRunner> runner_;
  std::weak_ptr<ResponseWriter> writer_;
};

CacheRunner::CacheRunner(const ServedModel& model, ServerMetrics* metrics,
                         PreparedCacheCall prepared, std::shared_ptr<ResponseWriter> writer)
    : model_(model),
      metrics_(metrics),
      prepared_(std::move(prepared)),
      writer_(std::move(writer)) {}

void CacheRunner::Start() {
  if (!prepared_.warm) return Command();
  generation_ = std::make_unique<Generation>(model_, std::move(*prepared_.warm), metrics_);
  const Status status = generation_->Submit(std::make_shared<Sink>(weak_from_this(), writer_));
  if (!status.ok()) End(ErrorResponse(status));
}

void CacheRunner::OnEvents(std::vector<TokenEvent> events) {
  if (!writer_) return;
  for (const ChoiceDelta& delta : generation_->Feed(std::move(events))) {
    if (delta.finish == FinishReason::kError)
      return End(ErrorResponse(delta.error.ok() ? Internal("the engine failed on this prompt")
                                                : delta.error));
    if (delta.finish == FinishReason::kCancelled)
      return End(
          ErrorResponse(delta.error.ok() ? Unavailable("the server is stopping") : delta.error));
  }
  if (!generation_->done()) return;
  if (prepared_.request) return Command();
  Json body = WarmJson();
  body["pin"] = nullptr;
  Answer(body);
}

void CacheRunner::Command() {
  std::weak_ptr<CacheRunner> runner = weak_from_this();
  std::weak_ptr<ResponseWriter> writer = writer_;
  model_.worker->Cache(*prepared_.request, [runner, writer](CacheReply reply) {
    const std::shared_ptr<ResponseWriter> open = writer.lock();
    if (!open) return;
    auto carried = std::make_shared<CacheReply>(std::move(reply));
    open->Post([runner, carried] {
      if (const std::shared_ptr<CacheRunner> alive = runner.lock())
        alive->OnReply(std::move(*carried));
    });
  });
}

void CacheRunner::OnReply(CacheReply reply) {
  if (!writer_) return;
  const bool pins = prepared_.request->kind == CacheRequest::Kind::kPin;
  if (pins && reply.status.code() == StatusCode::kResourceExhausted)
    return End(ErrorResponse(400, reply.status.message(), "ttl_s", "pin_budget_exceeded"));
  const bool nothing =
      reply.status.code() == StatusCode::kNotFound || (reply.status.ok() && reply.pin.tokens == 0);
  if (pins && nothing)
    return End(ErrorResponse(404,
                             reply.status.ok() ? "nothing of this prefix is cached: warm it first"
                                               : reply.status.message(),
                             "", "not_cached"));
  if (!reply.status.ok()) return End(ErrorResponse(reply.status));
  switch (prepared_.request->kind) {
    case CacheRequest::Kind::kState:
      return Answer(CacheStateJson(reply, model_, prepared_.report));
    case CacheRequest::Kind::kReset:
      return Answer(ResetJson(reply.reset));
    case CacheRequest::Kind::kUnpin:
      return Answer({{"object", "kvcache.unpin"}, {"unpinned", reply.unpinned}});
    case CacheRequest::Kind::kPin:
      break;
  }
  Json pin = PinJson(reply.pin, reply.now_ns, true);
  if (generation_) {
    Json body = WarmJson();
    body["pin"] = std::move(pin);
    return Answer(body);
  }
  Json body = {{"object", "kvcache.pin"}};
  body.update(pin);
  Answer(body);
}

Json CacheRunner::WarmJson() const {
  const GenerationUsage usage = generation_->usage();
  const double seconds = (usage.queue_ms + usage.prefill_ms) / 1e3;
  return {
      {"object", "kvcache.warm"},
      {"tokens", usage.prompt_tokens},
      {"cached_tokens", usage.cached_tokens},
      {"computed_tokens", usage.prompt_tokens - usage.cached_tokens},
      {"miss_reason", usage.miss_reason ? Json(MissReasonName(*usage.miss_reason)) : Json(nullptr)},
      {"seconds", std::round(seconds * 1e6) / 1e6}};
}

void CacheRunner::Answer(const Json& body) {
  HttpResponse response;
  response.body = DumpJson(body);
  End(std::move(response));
}

void CacheRunner::End(HttpResponse response) {
  const std::shared_ptr<ResponseWriter> writer = std::move(writer_);
  if (generation_) {
    generation_->Cancel();
    writer->NoteUsage(generation_->usage().prompt_tokens, 0);
  }
  writer->Send(std::move(response));
}

void CacheRunner::OnClientGone() {
  const std::shared_ptr<ResponseWriter> writer = std::move(writer_);
  if (writer && generation_) generation_->Cancel();
}

}  // namespace kvasir
