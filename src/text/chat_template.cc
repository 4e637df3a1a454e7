#include "text/chat_template.h"

#include <algorithm>

#include "text/rust_abi.h"
#include "text/tokenizer_rep.h"

namespace kvasir {

const char* const kDefaultChatTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.content is string %}{{ m.content }}"
    "{% elif m.content %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

struct ChatTemplate::Rep {
  explicit Rep(kv_template* owned) : handle(owned) {}
  ~Rep() { kv_template_free(handle); }
  Rep(const Rep&) = delete;
  Rep& operator=(const Rep&) = delete;

  kv_template* handle;
};

namespace {

// Trusted pieces with the plain ranges between them.
std::vector<Tokenizer::Piece> CutAt(std::string_view text, const kv_rendered& raw) {
  std::vector<Tokenizer::Piece> pieces;
  size_t done = 0;
  for (size_t i = 0; i + 1 < raw.plain_count; i += 2) {
    const size_t begin = raw.plain[i], end = raw.plain[i + 1];
    if (begin > done) pieces.push_back({text.substr(done, begin - done), true});
    pieces.push_back({text.substr(begin, end - begin), false});
    done = end;
  }
  if (done < text.size()) pieces.push_back({text.substr(done), true});
  return pieces;
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Make(std::string_view source,
                                                         const Tokenizer& tokenizer,
                                                         ChatTemplateLimits limits) {
  kv_template* handle = nullptr;
  internal::RustBuffer error;
  const kv_code code =
      kv_template_make(internal::View(source), tokenizer.rep_->handle, limits.fuel,
                       limits.output_bytes_max, limits.time_ms, &handle, error.out());
  KVASIR_RETURN_IF_ERROR(internal::ToStatus(code, error));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::make_unique<Rep>(handle)));
}

Result<ChatTemplate::Rendered> ChatTemplate::Render(std::string_view context_json) const {
  kv_rendered raw{};
  internal::RustBuffer error;
  const kv_code code =
      kv_template_render(rep_->handle, internal::View(context_json), &raw, error.out());
  KVASIR_RETURN_IF_ERROR(internal::ToStatus(code, error));
  Rendered rendered;
  rendered.text.reserve(std::max<size_t>(raw.text.size, 2 * sizeof(std::string)));  // not in place
  rendered.text.assign(raw.text.data, raw.text.size);
  rendered.pieces = CutAt(rendered.text, raw);
  kv_rendered_free(raw);
  return rendered;
}

}  // namespace kvasir
