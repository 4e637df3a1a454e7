// Chat templates (Jinja) by minijinja behind the C ABI of rust/. Bounded in time, memory and output.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace kvasir {

struct ChatTemplateLimits {
  uint64_t fuel = 5'000'000;             // minijinja instructions
  size_t output_bytes_max = 64u << 20;   // of the rendered text
};

class ChatTemplate {
 public:
  // source: the template's text. bos_token, eos_token and the texts of control tokens come from the tokenizer, which must
  // outlive the result. A template that does not parse fails here.
  static Result<std::unique_ptr<ChatTemplate>> Make(std::string_view source, const Tokenizer& tokenizer,
                                                    ChatTemplateLimits limits = {});
  ~ChatTemplate();

  struct Rendered {
    std::string text;
    // `text` cut so that a control token's text is read as the token only in trusted pieces; views into `text`. Give them
    // to Tokenizer::EncodePieces.
    std::vector<Tokenizer::Piece> pieces;
  };
  // context_json: a JSON object whose members are the template's variables: messages, tools, add_generation_prompt,
  // documents, and members of chat_template_kwargs. Every string in `messages` and `tools` counts as user text wherever
  // the template puts it (also after trim, +, ~, |upper, slices); a template's own text is trusted.
  // kInvalidArgument carries the template's own message (raise_exception) or which limit was passed.
  Result<Rendered> Render(std::string_view context_json) const;

 private:
  struct Rep;
  explicit ChatTemplate(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

// Used when a model has none: ChatML. Documented in docs/api.md.
extern const char* const kDefaultChatTemplate;

}  // namespace kvasir
