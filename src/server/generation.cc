#include "server/generation.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <utility>

namespace kvasir {
namespace {

constexpr double kNsPerMs = 1e6;
constexpr double kNsPerS = 1e9;

int Severity(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return 0;
    case FinishReason::kStop:
      return 1;
    case FinishReason::kLength:
      return 2;
    case FinishReason::kCancelled:
      return 3;
    case FinishReason::kError:
      return 4;
  }
  return 4;
}

}  // namespace

RequestId NextRequestId() {
  static std::atomic<uint64_t> next{1};
  return RequestId(next.fetch_add(1, std::memory_order_relaxed));
}

struct Generation::Choice {
  explicit Choice(const GenerationParams& params) : text(&params.stop, params.include_stop) {}

  struct Waiting {
    int64_t end;  // characters decoded with this token
    OutputToken token;
  };
  ChoiceText text;
  std::deque<Waiting> waiting;  // tokens whose text was not shown yet
  int64_t shown = 0;            // characters shown
  int32_t tokens = 0;
  int64_t last_token_ns = 0;
  bool open = true;
};

Generation::Generation(const ServedModel& model, GenerationParams params, ServerMetrics* metrics)
    : model_(model), params_(std::move(params)), metrics_(metrics), id_(NextRequestId()) {
  const auto ends = model_.tokenizer->end_tokens();
  params_.sampling.end_tokens.assign(ends.begin(), ends.end());
  for (int32_t i = 0; i < params_.n; ++i) choices_.push_back(std::make_unique<Choice>(params_));
  open_choices_ = params_.n;
  usage_.prompt_tokens = static_cast<int64_t>(params_.prompt.size());
}

Generation::~Generation() {
  Cancel();
}

int64_t Generation::NowNs() const {
  if (model_.clock != nullptr) return model_.clock->NowNs();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Status Generation::Submit(std::shared_ptr<EventSink> sink) {
  arrival_ns_ = NowNs();
  Request request;
  request.id = id_;
  request.prompt = params_.prompt;
  request.sampling = params_.sampling;
  request.n = params_.n;
  request.priority = params_.priority;
  request.cache = params_.cache;
  if (params_.queue_timeout_s > 0)
    request.deadline_ns = arrival_ns_ + static_cast<int64_t>(params_.queue_timeout_s * kNsPerS);
  const SamplingParams& sampling = params_.sampling;
  if (sampling.max_tokens == 0 && sampling.prompt_logprobs < 0 && !params_.warm) {
    // Nothing to compute: the engine is not asked.
    submitted_ = true;
    std::vector<TokenEvent> events;
    for (int32_t i = 0; i < params_.n; ++i) {
      TokenEvent event;
      event.request = id_;
      event.choice = i;
      event.finish = FinishReason::kLength;
      events.push_back(std::move(event));
    }
    sink->OnTokens(events);
    return Status::Ok();
  }
  KVASIR_RETURN_IF_ERROR(model_.worker->Submit(std::move(request), std::move(sink)));
  submitted_ = true;
  return Status::Ok();
}

std::vector<ChoiceDelta> Generation::Feed(std::vector<TokenEvent> events) {
  std::vector<ChoiceDelta> deltas;
  for (TokenEvent& event : events) {
    if (event.choice < 0 || event.choice >= params_.n) continue;
    Choice& choice = *choices_[static_cast<size_t>(event.choice)];
    if (!choice.open) continue;
    auto found = std::find_if(deltas.begin(), deltas.end(),
                              [&](const ChoiceDelta& d) { return d.choice == event.choice; });
    if (found == deltas.end()) {
      found = deltas.emplace(deltas.end());
      found->choice = event.choice;
    }
    FeedOne(std::move(event), &*found);
  }
  for (ChoiceDelta& delta : deltas) {
    Choice& choice = *choices_[static_cast<size_t>(delta.choice)];
    const bool finished = delta.finish != FinishReason::kNone;
    choice.shown += CountCharacters(delta.text);
    if (delta.text.empty() && !finished) continue;
    while (!choice.waiting.empty() && (finished || choice.waiting.front().end <= choice.shown)) {
      delta.tokens.push_back(std::move(choice.waiting.front().token));
      choice.waiting.pop_front();
    }
  }
  std::erase_if(deltas, [](const ChoiceDelta& d) {
    return d.text.empty() && d.finish == FinishReason::kNone;
  });
  return deltas;
}

void Generation::NoteFirstEvent(const TokenEvent& event) {
  const bool computed = event.token >= 0 || event.prompt_logprobs != nullptr ||
                        (params_.warm && event.finish == FinishReason::kLength);
  if (!computed || first_token_ns_ != 0) return;
  first_token_ns_ = std::max<int64_t>(event.time_ns, arrival_ns_);
  if (first_token_ns_ == 0) first_token_ns_ = 1;
  const int64_t scheduled = event.scheduled_ns == 0
                                ? first_token_ns_
                                : std::clamp(event.scheduled_ns, arrival_ns_, first_token_ns_);
  usage_.cached_tokens = event.cached_tokens;
  if (usage_.cached_tokens < usage_.prompt_tokens)
    usage_.miss_reason =
        event.miss_reason == MissReason::kSalt ? MissReason::kCold : event.miss_reason;
  usage_.queue_ms = static_cast<double>(scheduled - arrival_ns_) / kNsPerMs;
  usage_.prefill_ms = static_cast<double>(first_token_ns_ - scheduled) / kNsPerMs;
  if (metrics_ == nullptr) return;
  metrics_->CountPrompt(usage_.prompt_tokens, usage_.cached_tokens);
  if (event.token >= 0)
    metrics_->ObserveFirstToken(static_cast<double>(first_token_ns_ - arrival_ns_) / kNsPerS);
}

void Generation::NoteToken(Choice* choice, int64_t time_ns) {
  ++choice->tokens;
  ++usage_.completion_tokens;
  const int64_t now = std::max(time_ns, choice->last_token_ns);
  if (metrics_ != nullptr) {
    metrics_->CountToken();
    if (choice->tokens > 1)
      metrics_->ObserveInterToken(static_cast<double>(now - choice->last_token_ns) / kNsPerS);
  }
  choice->last_token_ns = now;
}

void Generation::FeedOne(TokenEvent event, ChoiceDelta* delta) {
  Choice& choice = *choices_[static_cast<size_t>(event.choice)];
  NoteFirstEvent(event);
  if (event.prompt_logprobs != nullptr) prompt_logprobs_ = std::move(*event.prompt_logprobs);
  if (event.token >= 0) {
    NoteToken(&choice, event.time_ns);
    const bool ends = event.finish == FinishReason::kStop;
    const bool hidden = (params_.skip_special && model_.tokenizer->IsSpecial(event.token)) ||
                        (ends && !params_.include_stop);
    OutputToken token;
    token.token = event.token;
    if (!hidden) token.bytes = model_.tokenizer->TokenBytes(event.token);
    token.text_offset = choice.text.characters();
    token.logprobs = std::move(event.logprobs);
    delta->text +=
        choice.text.Push(token.bytes, !ends && choice.tokens > params_.sampling.min_tokens);
    choice.waiting.push_back({choice.text.characters(), std::move(token)});
    if (choice.text.stopped()) {
      delta->stop_index = choice.text.stop_index();
      if (event.finish == FinishReason::kNone) model_.worker->FinishChoice(id_, event.choice);
      event.finish = FinishReason::kStop;
    } else if (ends) {
      const auto& stops = params_.sampling.stop_tokens;
      if (std::find(stops.begin(), stops.end(), event.token) != stops.end())
        delta->stop_token = event.token;
    }
  }
  if (event.finish == FinishReason::kNone) return;
  delta->text += choice.text.Finish();
  delta->finish = event.finish;
  delta->error = std::move(event.error);
  Close(&choice, event.finish);
}

void Generation::Close(Choice* choice, FinishReason reason) {
  choice->open = false;
  if (Severity(reason) > Severity(worst_)) worst_ = reason;
  if (--open_choices_ == 0) Account(worst_);
}

void Generation::Account(FinishReason reason) {
  if (accounted_ || !submitted_) return;
  accounted_ = true;
  if (metrics_ == nullptr) return;
  RequestRecord record;
  record.finish = reason;
  record.e2e_s = static_cast<double>(std::max<int64_t>(NowNs() - arrival_ns_, 0)) / kNsPerS;
  record.prefilled = first_token_ns_ != 0;
  if (record.prefilled) record.queue_s = usage_.queue_ms / 1e3;
  record.prompt_tokens = usage_.prompt_tokens;
  record.generation_tokens = usage_.completion_tokens;
  metrics_->ObserveRequest(record);
}

void Generation::Cancel() {
  if (!submitted_ || open_choices_ == 0) return;
  model_.worker->Cancel(id_);
  for (auto& choice : choices_) choice->open = false;
  open_choices_ = 0;
  const bool worse = Severity(worst_) > Severity(FinishReason::kCancelled);
  Account(worse ? worst_ : FinishReason::kCancelled);
}

}  // namespace kvasir
