// ApiCall: one body of /v1/chat/completions or /v1/completions, checked. Knows the vocabulary's
// size, no tokenizer. Every field, its range and its default: docs/api.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "server/json_reader.h"

namespace kvasir {

struct CallLimits {
  int32_t vocab = 0;
  int32_t choices_max = 256;  // prompts times n
  std::optional<uint64_t> default_seed;
};

struct PromptInput {
  bool is_text = true;
  std::string text;
  std::vector<TokenId> tokens;
};

// How messages become a prompt; /tokenize takes the same fields.
struct ChatPromptFields {
  Json messages;  // normalised, see chat_messages.h
  Json tools;     // null: none
  Json template_kwargs = Json::object();
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

struct ApiCall {
  bool chat = false;
  std::string model;  // "": the one served

  std::vector<PromptInput> prompts;  // completions
  ChatPromptFields chat_prompt;      // chat
  bool add_special_tokens = true;
  std::optional<int32_t>
      truncate_prompt_tokens;  // keep the last so many; -1: as many as the context takes

  SamplingParams sampling;  // max_tokens not yet set; bad_words neither
  std::optional<int32_t> max_tokens;
  std::vector<std::string> bad_words;
  int32_t n = 1;
  int32_t priority = 0;
  std::vector<std::string> stop;
  bool include_stop = false;
  bool skip_special_tokens = true;

  bool stream = false;
  bool include_usage = false;
  bool echo = false;                  // completions
  bool want_prompt_logprobs = false;  // in the answer (echo asks the engine for them too)
  bool return_token_ids = false;
  bool tokens_as_token_ids = false;
  std::string request_id;
  CacheWish cache;             // without the tenant
  double queue_timeout_s = 0;  // longest wait for admission; 0: the server's
};

// kInvalidArgument with field() set.
Result<ApiCall> ParseCall(const Json& body, bool chat, const CallLimits& limits);

struct TokenizeCall {
  std::string model;
  bool chat = false;
  std::string prompt;
  ChatPromptFields chat_prompt;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};
Result<TokenizeCall> ParseTokenizeCall(const Json& body);

struct DetokenizeCall {
  std::string model;
  std::vector<TokenId> tokens;
};
Result<DetokenizeCall> ParseDetokenizeCall(const Json& body, int32_t vocab);

}  // namespace kvasir
