#include "server/answer_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "server/choice_text.h"

namespace kvasir {
namespace {

// JSON has no infinities; vLLM and OpenAI write this for "as good as impossible".
double Finite(float logprob) {
  constexpr double kFloor = -9999.0;
  return std::isfinite(logprob) ? std::max<double>(logprob, kFloor) : kFloor;
}

Json BytesJson(std::string_view bytes) {
  Json out = Json::array();
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

std::string Lossy(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.Push(bytes);
  return text + stream.Finish();
}

Json TokenIds(const std::vector<OutputToken>& tokens) {
  Json out = Json::array();
  for (const OutputToken& token : tokens) out.push_back(token.token);
  return out;
}

std::string Event(const Json& chunk) {
  return "data: " + DumpJson(chunk) + "\n\n";
}

}  // namespace

void AddUsage(const GenerationUsage& one, GenerationUsage* sum) {
  const int64_t computed = one.prompt_tokens - one.cached_tokens;
  if (one.miss_reason && (!sum->miss_reason || computed > sum->most_computed)) {
    sum->miss_reason = one.miss_reason;
    sum->most_computed = computed;
  }
  sum->prompt_tokens += one.prompt_tokens;
  sum->completion_tokens += one.completion_tokens;
  sum->cached_tokens += one.cached_tokens;
  sum->queue_ms = std::max(sum->queue_ms, one.queue_ms);
  sum->prefill_ms = std::max(sum->prefill_ms, one.prefill_ms);
}

AnswerWriter::AnswerWriter(const ApiCall* call, const Tokenizer* tokenizer, std::string model,
                           std::string id, int64_t created_unix_s)
    : call_(call),
      tokenizer_(tokenizer),
      model_(std::move(model)),
      id_(std::move(id)),
      created_(created_unix_s) {}

Json AnswerWriter::Frame(bool chunk) const {
  const char* object = "text_completion";
  if (call_->chat) object = chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

std::string AnswerWriter::TokenText(TokenId token) const {
  if (call_->tokens_as_token_ids) return "token_id:" + std::to_string(token);
  return Lossy(tokenizer_->TokenBytes(token));
}

// The completions shape has no bytes, and its top lists are keyed by text: bytes that are no text
// are spelt out.
std::string AnswerWriter::TokenKey(TokenId token) const {
  const std::string_view bytes = tokenizer_->TokenBytes(token);
  if (call_->tokens_as_token_ids || FindInvalidUtf8(bytes) == std::string_view::npos)
    return TokenText(token);
  std::string out = "bytes:";
  for (const char c : bytes) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(c));
    out += hex;
  }
  return out;
}

Json AnswerWriter::ChatLogprobs(const std::vector<OutputToken>& tokens) const {
  Json content = Json::array();
  const auto bytes_of = [&](TokenId token) {
    const bool hidden = call_->skip_special_tokens && tokenizer_->IsSpecial(token);
    return BytesJson(hidden ? std::string_view() : tokenizer_->TokenBytes(token));
  };
  for (const OutputToken& token : tokens) {
    Json entry = {{"token", TokenText(token.token)}};
    entry["logprob"] =
        token.logprobs ? Json(Finite(token.logprobs->chosen.logprob)) : Json(nullptr);
    entry["bytes"] = BytesJson(token.bytes);
    Json top = Json::array();
    if (token.logprobs) {
      for (const TokenLogprob& other : token.logprobs->top)
        top.push_back({{"token", TokenText(other.token)},
                       {"logprob", Finite(other.logprob)},
                       {"bytes", bytes_of(other.token)}});
    }
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  Json out = Json::object();
  out["content"] = std::move(content);
  return out;
}

void AnswerWriter::AddCompletionToken(TokenId token, int64_t offset,
                                      const PositionLogprobs* logprobs, Json* out) const {
  (*out)["text_offset"].push_back(offset);
  (*out)["tokens"].push_back(TokenKey(token));
  if (logprobs == nullptr) {
    (*out)["token_logprobs"].push_back(nullptr);
    (*out)["top_logprobs"].push_back(nullptr);
    return;
  }
  (*out)["token_logprobs"].push_back(Finite(logprobs->chosen.logprob));
  Json top = Json::object();
  const auto count = static_cast<size_t>(std::max(call_->sampling.logprobs, 0));
  for (size_t i = 0; i < std::min(count, logprobs->top.size()); ++i)
    top[TokenKey(logprobs->top[i].token)] = Finite(logprobs->top[i].logprob);
  top[TokenKey(token)] = Finite(logprobs->chosen.logprob);
  (*out)["top_logprobs"].push_back(std::move(top));
}

Json AnswerWriter::CompletionLogprobs(const std::vector<OutputToken>& tokens,
                                      const Generation& generation, bool with_prompt) const {
  Json out = {{"text_offset", Json::array()},
              {"token_logprobs", Json::array()},
              {"tokens", Json::array()},
              {"top_logprobs", Json::array()}};
  if (with_prompt) {
    const auto& prompt = generation.params().prompt;
    const auto& logprobs = generation.prompt_logprobs();
    Utf8Stream stream;
    int64_t offset = 0;
    for (size_t i = 0; i < prompt.size(); ++i) {
      const bool known = i > 0 && i - 1 < logprobs.size();
      AddCompletionToken(prompt[i], offset, known ? &logprobs[i - 1] : nullptr, &out);
      const bool hidden = call_->skip_special_tokens && tokenizer_->IsSpecial(prompt[i]);
      if (!hidden) offset += CountCharacters(stream.Push(tokenizer_->TokenBytes(prompt[i])));
    }
  }
  const int64_t base = call_->echo ? CountCharacters(EchoText(generation)) : 0;
  for (const OutputToken& token : tokens)
    AddCompletionToken(token.token, base + token.text_offset, token.logprobs.get(), &out);
  return out;
}

// vLLM's shape: null for the first token, then {"<id>": {"logprob", "rank", "decoded_token"}} with
// the actual one first.
Json AnswerWriter::PromptLogprobs(const Generation& generation) const {
  Json out = Json::array({nullptr});
  const auto count = static_cast<size_t>(std::max(call_->sampling.prompt_logprobs, 0));
  for (const PositionLogprobs& position : generation.prompt_logprobs()) {
    Json entry = Json::object();
    const auto add = [&](const TokenLogprob& token) {
      entry[std::to_string(token.token)] = {{"logprob", Finite(token.logprob)},
                                            {"rank", token.rank},
                                            {"decoded_token", TokenText(token.token)}};
    };
    add(position.chosen);
    for (size_t i = 0; i < std::min(count, position.top.size()); ++i) add(position.top[i]);
    out.push_back(std::move(entry));
  }
  return out;
}

std::string AnswerWriter::EchoText(const Generation& generation) const {
  return tokenizer_->Decode(generation.params().prompt, call_->skip_special_tokens);
}

void AnswerWriter::SetFinish(const ChoiceDelta& delta, Json* choice) const {
  Json finish = nullptr;
  Json reason = nullptr;
  switch (delta.finish) {
    case FinishReason::kNone:
      break;
    case FinishReason::kStop:
      finish = "stop";
      break;
    case FinishReason::kLength:
      finish = "length";
      break;
    case FinishReason::kCancelled:
      finish = "abort";
      break;
    case FinishReason::kError:
      finish = "error";
      break;
  }
  if (delta.stop_index >= 0) reason = call_->stop[static_cast<size_t>(delta.stop_index)];
  if (delta.stop_token >= 0) reason = delta.stop_token;
  (*choice)["finish_reason"] = std::move(finish);
  (*choice)["stop_reason"] = std::move(reason);
}

std::string AnswerWriter::FirstChunk(int32_t index, const Generation& generation) const {
  if (!call_->chat && !call_->echo && !call_->return_token_ids) return {};
  Json choice = {{"index", index}};
  Json frame = Frame(true);
  if (call_->chat) {
    choice["delta"] = {{"role", "assistant"}, {"content", ""}};
    choice["logprobs"] = nullptr;
  } else {
    choice["text"] = call_->echo ? EchoText(generation) : "";
    choice["logprobs"] =
        call_->echo && LogprobsAsked() ? CompletionLogprobs({}, generation, true) : Json(nullptr);
  }
  choice["finish_reason"] = nullptr;
  if (call_->return_token_ids) {
    if (call_->chat)
      frame["prompt_token_ids"] = generation.params().prompt;
    else
      choice["prompt_token_ids"] = generation.params().prompt;
  }
  frame["choices"] = Json::array({std::move(choice)});
  return Event(frame);
}

std::string AnswerWriter::Chunk(int32_t index, const ChoiceDelta& delta,
                                const Generation& generation) const {
  Json choice = {{"index", index}};
  if (call_->chat) {
    Json content = Json::object();
    if (!delta.text.empty()) content["content"] = delta.text;
    choice["delta"] = std::move(content);
    choice["logprobs"] = LogprobsAsked() ? ChatLogprobs(delta.tokens) : Json(nullptr);
  } else {
    choice["text"] = delta.text;
    choice["logprobs"] =
        LogprobsAsked() ? CompletionLogprobs(delta.tokens, generation, false) : Json(nullptr);
  }
  SetFinish(delta, &choice);
  if (call_->return_token_ids) choice["token_ids"] = TokenIds(delta.tokens);
  Json frame = Frame(true);
  frame["choices"] = Json::array({std::move(choice)});
  return Event(frame);
}

std::string AnswerWriter::UsageChunk(const GenerationUsage& usage) const {
  Json frame = Frame(true);
  frame["choices"] = Json::array();
  frame["usage"] = Usage(usage);
  return Event(frame);
}

Json AnswerWriter::Choice(int32_t index, const ChoiceDelta& whole,
                          const Generation& generation) const {
  Json choice = {{"index", index}};
  if (call_->chat) {
    choice["message"] = {{"role", "assistant"}, {"content", whole.text}, {"refusal", nullptr}};
    choice["logprobs"] = LogprobsAsked() ? ChatLogprobs(whole.tokens) : Json(nullptr);
  } else {
    choice["text"] = (call_->echo ? EchoText(generation) : "") + whole.text;
    choice["logprobs"] =
        LogprobsAsked() ? CompletionLogprobs(whole.tokens, generation, call_->echo) : Json(nullptr);
    if (call_->want_prompt_logprobs) choice["prompt_logprobs"] = PromptLogprobs(generation);
    if (call_->return_token_ids) choice["prompt_token_ids"] = generation.params().prompt;
  }
  if (call_->return_token_ids) choice["token_ids"] = TokenIds(whole.tokens);
  SetFinish(whole, &choice);
  return choice;
}

std::string AnswerWriter::Answer(Json choices, const GenerationUsage& usage,
                                 const Generation& first) const {
  Json frame = Frame(false);
  frame["choices"] = std::move(choices);
  frame["usage"] = Usage(usage);
  if (call_->chat && call_->want_prompt_logprobs) frame["prompt_logprobs"] = PromptLogprobs(first);
  if (call_->chat && call_->return_token_ids) frame["prompt_token_ids"] = first.params().prompt;
  return DumpJson(frame);
}

Json AnswerWriter::Usage(const GenerationUsage& usage) {
  const auto rounded = [](double ms) { return std::round(ms * 1000.0) / 1000.0; };
  Json miss = usage.miss_reason ? Json(MissReasonName(*usage.miss_reason)) : Json(nullptr);
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"kvasir",
           {{"cached", {{"hot", usage.cached_tokens}, {"ram", 0}, {"disk", 0}, {"peer", 0}}},
            {"miss_reason", std::move(miss)},
            {"prefill_ms", rounded(usage.prefill_ms)},
            {"queue_ms", rounded(usage.queue_ms)}}}};
}

}  // namespace kvasir
