#include "server/prompt_builder.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "server/http_message.h"

namespace kvasir {
namespace {

constexpr int32_t kCompletionDefaultTokens = 16;  // as OpenAI's and vLLM's /v1/completions

size_t LongestToken(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  return longest;
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// Cuts the pieces behind `end` bytes of the whole text.
void CutPieces(size_t end, std::vector<Tokenizer::Piece>* pieces) {
  size_t begin = 0;
  for (size_t i = 0; i < pieces->size(); ++i) {
    Tokenizer::Piece& piece = (*pieces)[i];
    if (begin + piece.text.size() >= end) {
      piece.text = piece.text.substr(0, end - begin);
      pieces->resize(i + 1);
      return;
    }
    begin += piece.text.size();
  }
}

}  // namespace

PromptBuilder::PromptBuilder(const ServedModel& model)
    : model_(model),
      context_(model.ContextTokens()),
      token_bytes_max_(LongestToken(*model.tokenizer)) {}

std::string PromptBuilder::Limit() const {
  const std::string tokens = std::to_string(context_) + " tokens";
  if (model_.wanted_model_len <= context_) return kContextLengthMessage + tokens + ". However, ";
  return kPoolLengthMessage + tokens + " (--kv-mem), fewer than this model's context of " +
         std::to_string(model_.wanted_model_len) + ". However, ";
}

// A text so long that it cannot fit whatever its tokens are is not tokenised.
Status PromptBuilder::CheckBytes(size_t bytes, const char* field) const {
  const size_t tokens_min = bytes / token_bytes_max_;
  if (tokens_min <= static_cast<size_t>(context_)) return Status::Ok();
  return InvalidArgument(Limit() + "your prompt has at least " + std::to_string(tokens_min) +
                             " tokens (" + std::to_string(bytes) +
                             " bytes). Please reduce the length of the prompt.",
                         field);
}

Result<std::vector<TokenId>> PromptBuilder::EncodeAny(const std::string& text,
                                                      bool add_special) const {
  if (text.size() > kEncodeBytesMax)
    return InvalidArgument("prompt: must be at most " + std::to_string(kEncodeBytesMax) +
                               " bytes, not " + std::to_string(text.size()),
                           "prompt");
  return EncodeText(text, add_special);
}

// Log-probabilities make answers large: what one piece of an answer could hold is bounded before
// anything runs. A stream holds those of the prompt at once, the others go out as they come.
Status PromptBuilder::CheckAnswerSize(const std::vector<GenerationParams>& generations,
                                      bool stream) const {
  int64_t entries = 0;
  for (const GenerationParams& g : generations) {
    const SamplingParams& s = g.sampling;
    const auto prompt = static_cast<int64_t>(g.prompt.size());
    const int64_t answer = stream ? 0 : int64_t{s.max_tokens} * (s.logprobs + 1);
    entries += int64_t{g.n} * (prompt * (s.prompt_logprobs + 1) + answer);
  }
  if (entries <= kLogprobEntriesMax) return Status::Ok();
  return InvalidArgument("logprobs: the answer could hold " + std::to_string(entries) +
                             " log-probabilities, at most " + std::to_string(kLogprobEntriesMax) +
                             " are allowed; ask for fewer prompts, choices (n), tokens or "
                             "alternatives",
                         "logprobs");
}

Result<std::vector<TokenId>> PromptBuilder::EncodeText(const std::string& text,
                                                       bool add_special) const {
  return model_.tokenizer->Encode(text, SpecialText::kControl, add_special);
}

Result<std::vector<TokenId>> PromptBuilder::EncodeChat(const ChatPromptFields& fields,
                                                       bool add_special) const {
  if (model_.chat_template == nullptr)
    return InvalidArgument("messages: this model has no chat template; use /v1/completions",
                           "messages");
  Json context = fields.template_kwargs;
  context["messages"] = fields.messages;
  context["add_generation_prompt"] = fields.add_generation_prompt;
  context.erase("tools");
  if (!fields.tools.is_null()) context["tools"] = fields.tools;
  Result<ChatTemplate::Rendered> rendered = model_.chat_template->Render(DumpJson(context));
  if (!rendered.ok())
    return Status(rendered.status().code(), rendered.status().message(), "messages");
  if (fields.continue_final_message) {
    const std::string_view last =
        Trim(fields.messages.back()["content"].get_ref<const std::string&>());
    const size_t at = last.empty() ? std::string::npos : rendered->text.rfind(last);
    if (at == std::string::npos)
      return InvalidArgument(
          "continue_final_message: the last message does not stand in the template's text",
          "continue_final_message");
    CutPieces(at + last.size(), &rendered->pieces);
  }
  KVASIR_RETURN_IF_ERROR(CheckBytes(rendered->text.size(), "messages"));
  Result<std::vector<TokenId>> tokens =
      model_.tokenizer->EncodePieces(rendered->pieces, add_special);
  if (!tokens.ok()) return Status(tokens.status().code(), tokens.status().message(), "messages");
  if (tokens->empty())
    return InvalidArgument("messages: the chat template makes nothing of them", "messages");
  return tokens;
}

Result<int32_t> PromptBuilder::MaxTokens(int64_t prompt_tokens, std::optional<int32_t> max_tokens,
                                         int32_t default_tokens) const {
  const std::string limit = Limit();
  if (prompt_tokens >= context_)
    return InvalidArgument(limit + "your prompt has " + std::to_string(prompt_tokens) +
                               " tokens, which leaves no room for an answer. Please reduce the "
                               "length of the prompt.",
                           "");
  const int64_t rest = context_ - prompt_tokens;
  if (!max_tokens)
    return static_cast<int32_t>(default_tokens > 0 ? std::min<int64_t>(default_tokens, rest)
                                                   : rest);
  if (*max_tokens > rest)
    return InvalidArgument(limit + "you asked for " + std::to_string(*max_tokens + prompt_tokens) +
                               " tokens (" + std::to_string(prompt_tokens) + " in the prompt, " +
                               std::to_string(*max_tokens) +
                               " in max_tokens). Please reduce max_tokens or the prompt.",
                           "max_tokens");
  return *max_tokens;
}

// A word counts with and without a space before it, as vLLM reads the field.
Status PromptBuilder::EncodeBadWords(const ApiCall& call, SamplingParams* sampling) const {
  for (const std::string& word : call.bad_words) {
    const std::string_view bare =
        std::string_view(word).substr(std::min(word.find_first_not_of(' '), word.size()));
    if (bare.empty())
      return InvalidArgument("bad_words: a word must not be only spaces", "bad_words");
    KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> plain,
                            model_.tokenizer->Encode(bare, SpecialText::kPlain, false));
    KVASIR_ASSIGN_OR_RETURN(
        std::vector<TokenId> spaced,
        model_.tokenizer->Encode(" " + std::string(bare), SpecialText::kPlain, false));
    const bool differ = plain != spaced && plain.size() == spaced.size();
    if (!plain.empty()) sampling->bad_words.push_back(std::move(plain));
    if (differ) sampling->bad_words.push_back(std::move(spaced));
  }
  return Status::Ok();
}

Result<std::vector<TokenId>> PromptBuilder::EncodePrompt(const ApiCall& call,
                                                         const PromptInput* input) const {
  if (call.chat) return EncodeChat(call.chat_prompt, call.add_special_tokens);
  if (!input->is_text) return input->tokens;
  // With truncation a text may be longer than the context.
  if (!call.truncate_prompt_tokens)
    KVASIR_RETURN_IF_ERROR(CheckBytes(input->text.size(), "prompt"));
  Result<std::vector<TokenId>> tokens = EncodeAny(input->text, call.add_special_tokens);
  if (!tokens.ok()) return Status(tokens.status().code(), tokens.status().message(), "prompt");
  if (tokens->empty())
    return InvalidArgument("prompt: is empty, and this model begins without a special token",
                           "prompt");
  return tokens;
}

Result<std::vector<GenerationParams>> PromptBuilder::Build(const ApiCall& call) const {
  const char* field = call.chat ? "messages" : "prompt";
  GenerationParams base;
  base.sampling = call.sampling;
  base.n = call.n;
  base.priority = call.priority;
  base.cache = call.cache;
  base.stop = call.stop;
  base.include_stop = call.include_stop;
  base.skip_special = call.skip_special_tokens;
  KVASIR_RETURN_IF_ERROR(EncodeBadWords(call, &base.sampling));
  std::vector<GenerationParams> out;
  const size_t count = call.chat ? 1 : call.prompts.size();
  for (size_t i = 0; i < count; ++i) {
    KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                            EncodePrompt(call, call.chat ? nullptr : &call.prompts[i]));
    if (call.truncate_prompt_tokens) {
      const int64_t keep = *call.truncate_prompt_tokens;
      if (keep > context_)
        return InvalidArgument("truncate_prompt_tokens: must be at most the context length, " +
                                   std::to_string(context_) + ", not " + std::to_string(keep),
                               "truncate_prompt_tokens");
      const int64_t room = context_ - std::max(call.max_tokens.value_or(1), 1);
      const int64_t kept = keep == -1 ? std::max<int64_t>(room, 1) : keep;
      if (static_cast<int64_t>(tokens.size()) > kept)
        tokens.erase(tokens.begin(), tokens.end() - kept);
    }
    Result<int32_t> max_tokens = MaxTokens(static_cast<int64_t>(tokens.size()), call.max_tokens,
                                           call.chat ? 0 : kCompletionDefaultTokens);
    if (!max_tokens.ok()) {
      const Status& status = max_tokens.status();
      return Status(status.code(), status.message(),
                    status.field().empty() ? field : status.field());
    }
    GenerationParams params = base;
    params.prompt = std::move(tokens);
    params.sampling.max_tokens = *max_tokens;
    out.push_back(std::move(params));
  }
  KVASIR_RETURN_IF_ERROR(CheckAnswerSize(out, call.stream));
  return out;
}

}  // namespace kvasir
