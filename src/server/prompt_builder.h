// PromptBuilder: texts and messages to token ids, and the rules of the context window. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/api_call.h"
#include "server/generation.h"
#include "server/served_model.h"

namespace kvasir {

class PromptBuilder {
 public:
  explicit PromptBuilder(const ServedModel& model);

  // One Generation's parameters per prompt, ready to submit. kInvalidArgument names the field, with
  // both numbers where the context is too small.
  Result<std::vector<GenerationParams>> Build(const ApiCall& call) const;

  // Raw prompts are the client's own template: text of control tokens becomes the token.
  Result<std::vector<TokenId>> EncodeText(const std::string& text, bool add_special) const;
  // The same for texts that the context does not bound: at most kEncodeBytesMax.
  Result<std::vector<TokenId>> EncodeAny(const std::string& text, bool add_special) const;
  Result<std::vector<TokenId>> EncodeChat(const ChatPromptFields& fields, bool add_special) const;

  // Tokens that may be generated. max_tokens absent: default_tokens, or the rest of the context if
  // that is less. default_tokens <= 0: the rest.
  Result<int32_t> MaxTokens(int64_t prompt_tokens, std::optional<int32_t> max_tokens,
                            int32_t default_tokens) const;

 private:
  static constexpr size_t kEncodeBytesMax = 2u << 20;
  static constexpr int64_t kLogprobEntriesMax = 500'000;  // of one answer, about 440 bytes each

  std::string Limit() const;  // the sentence about the context that refusals begin with
  Status CheckBytes(size_t bytes, const char* field) const;
  Status CheckAnswerSize(const std::vector<GenerationParams>& generations, bool stream) const;
  Status EncodeBadWords(const ApiCall& call, SamplingParams* sampling) const;
  Result<std::vector<TokenId>> EncodePrompt(const ApiCall& call, const PromptInput* input) const;

  ServedModel model_;
  int64_t context_;
  size_t token_bytes_max_;  // of the longest token
};

}  // namespace kvasir
