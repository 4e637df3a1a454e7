// Template, a zero byte, context: nothing may crash, hang or leave the limits.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "text/chat_template.h"

namespace {

const kvasir::Tokenizer& Vocabulary() {
  static const auto made = [] {
    kvasir::TokenizerSpec spec;
    spec.model = "llama";
    spec.tokens = {"<unk>", "<s>", "</s>", "<|im_end|>", "a"};
    spec.scores = {0, 0, 0, 0, 0};
    spec.kinds = {2, 3, 3, 3, 1};
    spec.unk = 0;
    spec.bos = 1;
    spec.eos = 2;
    return kvasir::Tokenizer::FromSpec(spec);
  }();
  return **made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\0');
  kvasir::ChatTemplateLimits limits;
  limits.fuel = 20'000;
  limits.output_bytes_max = 1 << 18;
  limits.time_ms = 2'000;
  auto made = kvasir::ChatTemplate::Make(input.substr(0, cut), Vocabulary(), limits);
  if (!made.ok()) return 0;
  const std::string_view context = cut == input.npos ? "{}" : input.substr(cut + 1);
  auto rendered = (*made)->Render(context);
  if (!rendered.ok()) return 0;
  if (rendered->text.size() > limits.output_bytes_max) std::abort();
  std::string joined;
  for (const auto& piece : rendered->pieces) joined += piece.text;
  if (joined != rendered->text) std::abort();
  if (!Vocabulary().EncodePieces(rendered->pieces, true).ok()) std::abort();
  return 0;
}
