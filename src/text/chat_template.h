// Chat templates (Jinja) by minijinja behind the C ABI of rust/. Bounded in time, memory and
// output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace kvasir {

struct ChatTemplateLimits {
  uint64_t fuel = 5'000'000;            // minijinja instructions
  size_t output_bytes_max = 64u << 20;  // of the rendered text and of any value a template makes
  uint64_t time_ms = 5'000;             // of one Render
  // Memory follows from these: one Render holds at most about six times output_bytes_max
  // (docs/text.md).
};

class ChatTemplate {
 public:
  // source: the template's text. bos_token, eos_token and the texts of control tokens are copied
  // from the tokenizer. A template that does not parse fails here; an unknown filter is found by
  // Render.
  static Result<std::unique_ptr<ChatTemplate>> Make(std::string_view source,
                                                    const Tokenizer& tokenizer,
                                                    ChatTemplateLimits limits = {});
  ~ChatTemplate();

  // Move-only: the pieces point into the text, which therefore lies on the heap however short it
  // is.
  struct Rendered {
    Rendered() = default;
    Rendered(Rendered&&) = default;
    Rendered& operator=(Rendered&&) = default;
    Rendered(const Rendered&) = delete;
    Rendered& operator=(const Rendered&) = delete;

    std::string text;
    // `text` cut so that a control token's text is read as the token only in trusted pieces; views
    // into `text`. Give them to Tokenizer::EncodePieces.
    std::vector<Tokenizer::Piece> pieces;
  };
  // context_json: a JSON object whose members are the template's variables: messages, tools,
  // add_generation_prompt, documents, and members of chat_template_kwargs. Every string in it
  // counts as user text wherever the template puts it (also after trim, +, ~, |upper, slices); the
  // template's own text, bos_token and eos_token are trusted. kInvalidArgument carries the
  // template's own message (raise_exception) or which limit was passed.
  Result<Rendered> Render(std::string_view context_json) const;

 private:
  struct Rep;
  explicit ChatTemplate(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

// Used when a model has none: ChatML. Documented in docs/api.md.
extern const char* const kDefaultChatTemplate;

}  // namespace kvasir
