// Range checks of SamplingParams. Field names are the API's.
#include <cmath>
#include <string>

#include "engine/request.h"

namespace kvasir {
namespace {

constexpr int32_t kMaxLogprobs = 20;
constexpr float kMaxTemperature = 100.0F;

std::string Number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// The comparisons are written so that NaN fails them.
Status CheckRange(const char* field, float value, float low, float high, bool low_open = false) {
  const bool above = low_open ? value > low : value >= low;
  if (above && value <= high) return Status::Ok();
  return InvalidArgument(std::string(field) + " is " + Number(static_cast<double>(value)) +
                             ", must be " + (low_open ? "more than " : "at least ") +
                             Number(static_cast<double>(low)) + " and at most " +
                             Number(static_cast<double>(high)),
                         field);
}

Status CheckAtLeast(const char* field, int32_t value, int32_t low) {
  if (value >= low) return Status::Ok();
  return InvalidArgument(std::string(field) + " is " + std::to_string(value) +
                             ", must be at least " + std::to_string(low),
                         field);
}

Status CheckToken(const char* field, TokenId token, int32_t vocab) {
  if (token >= 0 && token < vocab) return Status::Ok();
  return InvalidArgument(std::string(field) + " holds token id " + std::to_string(token) +
                             ", the vocabulary has ids 0 to " + std::to_string(vocab - 1),
                         field);
}

Status CheckTokens(const char* field, const std::vector<TokenId>& tokens, int32_t vocab) {
  for (const TokenId token : tokens) KVASIR_RETURN_IF_ERROR(CheckToken(field, token, vocab));
  return Status::Ok();
}

Status CheckLogprobs(const char* field, int32_t value) {
  if (value >= -1 && value <= kMaxLogprobs) return Status::Ok();
  return InvalidArgument(std::string(field) + " is " + std::to_string(value) + ", must be 0 to " +
                             std::to_string(kMaxLogprobs),
                         field);
}

}  // namespace

Status SamplingParams::Validate(int32_t vocab) const {
  KVASIR_RETURN_IF_ERROR(CheckRange("temperature", temperature, 0, kMaxTemperature));
  KVASIR_RETURN_IF_ERROR(CheckAtLeast("top_k", top_k, -1));
  KVASIR_RETURN_IF_ERROR(CheckRange("top_p", top_p, 0, 1, true));
  KVASIR_RETURN_IF_ERROR(CheckRange("min_p", min_p, 0, 1));
  KVASIR_RETURN_IF_ERROR(CheckRange("presence_penalty", presence_penalty, -2, 2));
  KVASIR_RETURN_IF_ERROR(CheckRange("frequency_penalty", frequency_penalty, -2, 2));
  KVASIR_RETURN_IF_ERROR(CheckRange("repetition_penalty", repetition_penalty, 0, 2, true));
  for (const auto& [token, bias] : logit_bias) {
    KVASIR_RETURN_IF_ERROR(CheckToken("logit_bias", token, vocab));
    KVASIR_RETURN_IF_ERROR(CheckRange("logit_bias", bias, -100, 100));
  }
  KVASIR_RETURN_IF_ERROR(CheckTokens("allowed_token_ids", allowed_tokens, vocab));
  for (const std::vector<TokenId>& word : bad_words) {
    if (word.empty()) return InvalidArgument("bad_words holds a word without tokens", "bad_words");
    KVASIR_RETURN_IF_ERROR(CheckTokens("bad_words", word, vocab));
  }
  KVASIR_RETURN_IF_ERROR(CheckAtLeast("max_tokens", max_tokens, 0));
  KVASIR_RETURN_IF_ERROR(CheckAtLeast("min_tokens", min_tokens, 0));
  if (min_tokens > max_tokens) {
    return InvalidArgument("min_tokens is " + std::to_string(min_tokens) +
                               ", must not be more than max_tokens (" + std::to_string(max_tokens) +
                               ")",
                           "min_tokens");
  }
  KVASIR_RETURN_IF_ERROR(CheckTokens("stop_token_ids", stop_tokens, vocab));
  KVASIR_RETURN_IF_ERROR(CheckTokens("end_tokens", end_tokens, vocab));
  KVASIR_RETURN_IF_ERROR(CheckLogprobs("logprobs", logprobs));
  return CheckLogprobs("prompt_logprobs", prompt_logprobs);
}

}  // namespace kvasir
