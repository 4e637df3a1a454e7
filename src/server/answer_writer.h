// AnswerWriter: OpenAI's JSON shapes for one call: the plain answer, the chunks of a stream, usage,
// log-probabilities.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api_call.h"
#include "server/generation.h"
#include "server/json_reader.h"

namespace kvasir {

// Sums over the generations of a call (several prompts).
void AddUsage(const GenerationUsage& one, GenerationUsage* sum);

class AnswerWriter {
 public:
  // call and tokenizer outlive the writer. id: "cmpl-…" or "chatcmpl-…".
  AnswerWriter(const ApiCall* call, const Tokenizer* tokenizer, std::string model, std::string id,
               int64_t created_unix_s);

  // Streams. index: the choice's number in the answer.
  std::string FirstChunk(int32_t index,
                         const Generation& generation) const;  // role; echoed prompt; "" if neither
  std::string Chunk(int32_t index, const ChoiceDelta& delta, const Generation& generation) const;
  std::string UsageChunk(const GenerationUsage& usage) const;

  // Plain answers: all deltas of a choice, merged.
  Json Choice(int32_t index, const ChoiceDelta& whole, const Generation& generation) const;
  std::string Answer(Json choices, const GenerationUsage& usage, const Generation& first) const;

  static Json Usage(const GenerationUsage& usage);
  const std::string& id() const { return id_; }

 private:
  Json Frame(bool chunk) const;
  Json ChatLogprobs(const std::vector<OutputToken>& tokens) const;
  void AddCompletionToken(TokenId token, int64_t offset, const PositionLogprobs* logprobs,
                          Json* out) const;
  Json CompletionLogprobs(const std::vector<OutputToken>& tokens, const Generation& generation,
                          bool with_prompt) const;
  Json PromptLogprobs(const Generation& generation) const;
  void SetFinish(const ChoiceDelta& delta, Json* choice) const;
  std::string EchoText(const Generation& generation) const;
  std::string TokenText(TokenId token) const;
  std::string TokenKey(TokenId token) const;
  bool LogprobsAsked() const { return call_->sampling.logprobs >= 0; }

  const ApiCall* call_;
  const Tokenizer* tokenizer_;
  std::string model_;
  std::string id_;
  int64_t created_;
};

}  // namespace kvasir
