#include "server/api_call.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "server/cache_fields.h"
#include "server/chat_messages.h"
#include "server/field_reader.h"

namespace kvasir {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kLogprobsMax = 20;
constexpr int64_t kChoicesOfOneMax = 128;
constexpr size_t kStopsMax = 16;
constexpr size_t kStopBytesMax = 1024;
constexpr size_t kNameBytesMax = 256;
constexpr size_t kUserBytesMax = 1024;
constexpr size_t kTokenListMax = 1u << 20;

Status NeedObject(const Json& body) {
  if (body.is_object()) return Status::Ok();
  return InvalidArgument("the body must be a JSON object, not " + Describe(body));
}

void ReadLogitBias(FieldReader* in, int32_t vocab, SamplingParams* out) {
  const Json* bias = in->Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return in->Fail("logit_bias", "must be an object of token id to number");
  for (const auto& item : bias->items()) {
    const std::string& key = item.key();
    int64_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocab)
      return in->Fail("logit_bias",
                      "its keys are token ids from 0 to " + std::to_string(vocab - 1));
    const double value = item.value().is_number() ? item.value().get<double>() : -1000;
    if (!(value >= -100 && value <= 100))
      return in->Fail("logit_bias",
                      "its values are numbers from -100 to 100, not " + Describe(item.value()));
    out->logit_bias.emplace_back(static_cast<TokenId>(token), static_cast<float>(value));
  }
}

void ReadSeed(FieldReader* in, const CallLimits& limits, SamplingParams* out) {
  out->seed = limits.default_seed;
  const Json* value = in->Find("seed");
  if (value == nullptr) return;
  if (value->is_number_unsigned()) {
    out->seed = value->get<uint64_t>();
    return;
  }
  // Negative ones are taken for their two's complement.
  if (const std::optional<int64_t> seed = ExactInt(*value); seed) {
    out->seed = static_cast<uint64_t>(*seed);
  } else {
    in->Fail("seed", "must be a whole number from " +
                         std::to_string(std::numeric_limits<int64_t>::min()) + " to " +
                         std::to_string(std::numeric_limits<uint64_t>::max()) + ", not " +
                         Describe(*value));
  }
}

void ReadSampling(FieldReader* in, const CallLimits& limits, ApiCall* call) {
  SamplingParams& s = call->sampling;
  in->Number("temperature", 0, 100, &s.temperature);
  in->Int32("top_k", -1, kInt32Max, &s.top_k);
  in->Number("top_p", 0, 1, &s.top_p, true);
  in->Number("min_p", 0, 1, &s.min_p);
  in->Number("presence_penalty", -2, 2, &s.presence_penalty);
  in->Number("frequency_penalty", -2, 2, &s.frequency_penalty);
  in->Number("repetition_penalty", 0, 2, &s.repetition_penalty, true);
  ReadLogitBias(in, limits.vocab, &s);
  if (in->Tokens("allowed_token_ids", limits.vocab, kTokenListMax, &s.allowed_tokens) &&
      s.allowed_tokens.empty())
    in->Fail("allowed_token_ids", "must name at least one token");
  // A set: what is named twice is not held twice, since every prompt of the call has a copy.
  std::sort(s.allowed_tokens.begin(), s.allowed_tokens.end());
  s.allowed_tokens.erase(std::unique(s.allowed_tokens.begin(), s.allowed_tokens.end()),
                         s.allowed_tokens.end());
  in->Strings("bad_words", 128, kStopBytesMax, false, &call->bad_words);
  ReadSeed(in, limits, &s);
  in->Tokens("stop_token_ids", limits.vocab, 1024, &s.stop_tokens);
  in->Bool("ignore_eos", &s.ignore_eos);
  in->Int32("min_tokens", 0, kInt32Max, &s.min_tokens);
  int32_t max_tokens = 0;
  if (in->Int32("max_tokens", 0, kInt32Max, &max_tokens)) call->max_tokens = max_tokens;
  if (call->chat && in->Int32("max_completion_tokens", 0, kInt32Max, &max_tokens))
    call->max_tokens = max_tokens;
}

void ReadChoices(FieldReader* in, ApiCall* call) {
  in->Int32("n", 1, kChoicesOfOneMax, &call->n);
  int64_t best_of = 0;
  if (in->Int("best_of", 1, kChoicesOfOneMax, &best_of) && best_of != call->n)
    in->Fail("best_of", "only the value of n is supported");
  in->Strings("stop", kStopsMax, kStopBytesMax, true, &call->stop);
  in->Bool("include_stop_str_in_output", &call->include_stop);
  in->Bool("skip_special_tokens", &call->skip_special_tokens);
  in->Int32("priority", -kInt32Max - 1, kInt32Max, &call->priority);
}

void ReadLogprobs(FieldReader* in, ApiCall* call) {
  SamplingParams& s = call->sampling;
  if (call->chat) {
    bool logprobs = false;
    in->Bool("logprobs", &logprobs);
    int32_t top = 0;
    const bool given = in->Int32("top_logprobs", 0, kLogprobsMax, &top);
    if (logprobs) s.logprobs = top;
    if (given && top > 0 && !logprobs) in->Fail("top_logprobs", "needs logprobs to be true");
  } else {
    in->Int32("logprobs", 0, kLogprobsMax, &s.logprobs);
  }
  if (in->Int32("prompt_logprobs", 0, kLogprobsMax, &s.prompt_logprobs)) {
    call->want_prompt_logprobs = true;
    if (call->stream) in->Fail("prompt_logprobs", "cannot be given together with stream");
  }
  if (call->echo && s.logprobs >= 0) s.prompt_logprobs = std::max(s.prompt_logprobs, s.logprobs);
}

void ReadStream(FieldReader* in, ApiCall* call) {
  in->Bool("stream", &call->stream);
  const Json* options = in->Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object())
    return in->Fail("stream_options", "must be an object, not " + Describe(*options));
  if (!call->stream) return in->Fail("stream_options", "can only be given when stream is true");
  FieldReader inner(*options, "stream_options.");
  inner.Bool("include_usage", &call->include_usage);
  if (!inner.status().ok()) in->Fail("stream_options", inner.status().message());
}

bool SafeId(const std::string& id) {
  return !id.empty() && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

void ReadExtras(FieldReader* in, ApiCall* call) {
  in->Bool("return_token_ids", &call->return_token_ids);
  in->Bool("return_tokens_as_token_ids", &call->tokens_as_token_ids);
  in->Bool("add_special_tokens", &call->add_special_tokens);
  int32_t keep = 0;
  if (in->Int32("truncate_prompt_tokens", -1, kInt32Max, &keep)) {
    if (keep == 0) in->Fail("truncate_prompt_tokens", "must be -1 or at least 1, not 0");
    call->truncate_prompt_tokens = keep;
  }
  if (in->String("request_id", 128, &call->request_id) && !SafeId(call->request_id))
    in->Fail("request_id", "must be 1 to 128 of the characters A-Z a-z 0-9 - _ . :");
  const Json* transfer = in->Find("kv_transfer_params");
  if (transfer != nullptr && !transfer->is_object())
    in->Fail("kv_transfer_params", "must be an object, not " + Describe(*transfer));
  std::string user;
  in->String("user", kUserBytesMax, &user);
  ReadCacheFields(in, &call->cache);
  float wait_s = 0;
  if (in->Number("queue_timeout_s", 0, 1e9, &wait_s, true))
    call->queue_timeout_s = static_cast<double>(wait_s);
}

// What would change the answer if it were ignored is refused.
void RefuseUnsupported(FieldReader* in) {
  constexpr std::array<std::string_view, 15> kRefused = {
      "suffix",        "structured_outputs", "guided_json",
      "guided_regex",  "guided_choice",      "guided_grammar",
      "chat_template", "prompt_embeds",      "guided_decoding_backend",
      "functions",     "function_call",      "audio",
      "documents",     "logits_processors",  "logprob_token_ids"};
  for (const std::string_view name : kRefused)
    if (in->Find(name) != nullptr) in->Fail(name, "is not supported");
  const Json* modalities = in->Find("modalities");
  if (modalities != nullptr && *modalities != Json::array({"text"}))
    in->Fail("modalities", "only [\"text\"] is supported");
  bool beam = false;
  if (in->Bool("use_beam_search", &beam) && beam) in->Fail("use_beam_search", "is not supported");
  const Json* format = in->Find("response_format");
  if (format == nullptr) return;
  if (!format->is_object() || !format->contains("type") || !(*format)["type"].is_string())
    return in->Fail("response_format", "must be an object with a type");
  if ((*format)["type"].get_ref<const std::string&>() != "text")
    in->Fail("response_format", "only the type text is supported");
}

Status BadPrompt(const std::string& message) {
  return InvalidArgument("prompt: " + message, "prompt");
}

Result<PromptInput> ReadTokens(const Json& list, int32_t vocab) {
  PromptInput input;
  input.is_text = false;
  if (list.empty()) return BadPrompt("an array of token ids must have at least one");
  input.tokens.reserve(list.size());
  for (const Json& item : list) {
    const std::optional<int64_t> number = ExactInt(item);
    if (!number)
      return BadPrompt("an array holds token ids or texts, not both, and no " + Describe(item));
    if (*number < 0 || *number >= vocab)
      return BadPrompt("token ids go from 0 to " + std::to_string(vocab - 1) + ", not " +
                       std::to_string(*number));
    input.tokens.push_back(static_cast<TokenId>(*number));
  }
  return input;
}

Status ReadPrompts(const FieldReader& in, const CallLimits& limits, ApiCall* call) {
  const Json* prompt = in.Find("prompt");
  if (prompt == nullptr) return BadPrompt("is missing");
  if (prompt->is_string()) {
    call->prompts.push_back({true, prompt->get<std::string>(), {}});
    return Status::Ok();
  }
  if (!prompt->is_array() || prompt->empty())
    return BadPrompt(
        "must be a text, an array of texts, an array of token ids or an array of those");
  if (prompt->front().is_number()) {
    KVASIR_ASSIGN_OR_RETURN(PromptInput input, ReadTokens(*prompt, limits.vocab));
    call->prompts.push_back(std::move(input));
    return Status::Ok();
  }
  const bool texts = prompt->front().is_string();
  if (prompt->size() * static_cast<size_t>(call->n) > static_cast<size_t>(limits.choices_max))
    return BadPrompt("prompts times n must be at most " + std::to_string(limits.choices_max));
  for (const Json& item : *prompt) {
    if (texts && item.is_string()) {
      call->prompts.push_back({true, item.get<std::string>(), {}});
    } else if (!texts && item.is_array()) {
      KVASIR_ASSIGN_OR_RETURN(PromptInput input, ReadTokens(item, limits.vocab));
      call->prompts.push_back(std::move(input));
    } else {
      return BadPrompt("an array holds texts or arrays of token ids, all of one kind");
    }
  }
  return Status::Ok();
}

void ReadTools(FieldReader* in, ChatPromptFields* out) {
  const Json* choice = in->Find("tool_choice");
  bool none = false;
  if (choice != nullptr) {
    const std::string name = choice->is_string() ? choice->get<std::string>() : "";
    if (name != "none" && name != "auto")
      in->Fail("tool_choice", "only none and auto are supported");
    none = name == "none";
  }
  const Json* tools = in->Find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return in->Fail("tools", "must be an array, not " + Describe(*tools));
  for (const Json& tool : *tools) {
    if (!tool.is_object() || !tool.contains("function") || !tool["function"].is_object() ||
        !tool["function"].contains("name") || !tool["function"]["name"].is_string())
      return in->Fail("tools",
                      "each has the form {\"type\":\"function\",\"function\":{\"name\":…}}");
  }
  if (!none && !tools->empty()) out->tools = *tools;
}

Status ReadChatPrompt(FieldReader* in, ChatPromptFields* out) {
  ReadTools(in, out);
  in->Bool("add_generation_prompt", &out->add_generation_prompt);
  in->Bool("continue_final_message", &out->continue_final_message);
  if (out->continue_final_message) {
    if (in->Find("add_generation_prompt") != nullptr && out->add_generation_prompt)
      in->Fail("continue_final_message", "cannot be true together with add_generation_prompt");
    out->add_generation_prompt = false;
  }
  if (const Json* kwargs = in->Find("chat_template_kwargs"); kwargs != nullptr) {
    if (kwargs->is_object())
      out->template_kwargs = *kwargs;
    else
      in->Fail("chat_template_kwargs", "must be an object, not " + Describe(*kwargs));
  }
  KVASIR_RETURN_IF_ERROR(in->status());
  const Json* messages = in->Find("messages");
  if (messages == nullptr) return InvalidArgument("messages: is missing", "messages");
  KVASIR_ASSIGN_OR_RETURN(out->messages, NormaliseMessages(*messages));
  return Status::Ok();
}

}  // namespace

Result<ApiCall> ParseCall(const Json& body, bool chat, const CallLimits& limits) {
  KVASIR_RETURN_IF_ERROR(NeedObject(body));
  ApiCall call;
  call.chat = chat;
  FieldReader in(body);
  in.String("model", kNameBytesMax, &call.model);
  RefuseUnsupported(&in);
  ReadStream(&in, &call);
  if (!chat) in.Bool("echo", &call.echo);
  ReadSampling(&in, limits, &call);
  ReadChoices(&in, &call);
  ReadLogprobs(&in, &call);
  ReadExtras(&in, &call);
  KVASIR_RETURN_IF_ERROR(in.status());
  if (call.max_tokens && call.sampling.min_tokens > *call.max_tokens)
    return InvalidArgument("min_tokens: " + std::to_string(call.sampling.min_tokens) +
                               " is more than max_tokens, " + std::to_string(*call.max_tokens),
                           "min_tokens");
  if (chat) {
    KVASIR_RETURN_IF_ERROR(ReadChatPrompt(&in, &call.chat_prompt));
  } else {
    KVASIR_RETURN_IF_ERROR(ReadPrompts(in, limits, &call));
  }
  return call;
}

Result<TokenizeCall> ParseTokenizeCall(const Json& body) {
  KVASIR_RETURN_IF_ERROR(NeedObject(body));
  TokenizeCall call;
  FieldReader in(body);
  in.String("model", kNameBytesMax, &call.model);
  in.Bool("add_special_tokens", &call.add_special_tokens);
  in.Bool("return_token_strs", &call.return_token_strs);
  KVASIR_RETURN_IF_ERROR(in.status());
  if (in.Find("messages") != nullptr) {
    call.chat = true;
    KVASIR_RETURN_IF_ERROR(ReadChatPrompt(&in, &call.chat_prompt));
    return call;
  }
  const Json* prompt = in.Find("prompt");
  if (prompt == nullptr || !prompt->is_string())
    return BadPrompt("must be a text (or give messages)");
  call.prompt = prompt->get<std::string>();
  return call;
}

Result<DetokenizeCall> ParseDetokenizeCall(const Json& body, int32_t vocab) {
  KVASIR_RETURN_IF_ERROR(NeedObject(body));
  DetokenizeCall call;
  FieldReader in(body);
  in.String("model", kNameBytesMax, &call.model);
  if (!in.Tokens("tokens", vocab, std::numeric_limits<size_t>::max(), &call.tokens) &&
      in.status().ok())
    in.Fail("tokens", "is missing");
  KVASIR_RETURN_IF_ERROR(in.status());
  return call;
}

}  // namespace kvasir
