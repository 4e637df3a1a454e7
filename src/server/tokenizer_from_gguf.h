// From a model file to its tokenizer and chat template.
#pragma once

#include <memory>

#include "base/status.h"
#include "model/gguf.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {

// Reads tokenizer.ggml.*. The result keeps nothing of the file. kDataLoss: a key is missing or of
// the wrong type or size (named, with its offset); kUnimplemented: a tokenizer.ggml.model or .pre
// we do not know (with the list of known ones). A gpt2 vocabulary without .pre counts as "default".
// Where add_bos_token is absent: true for llama kinds and for pre names whose models always want it
// (llama-bpe), else false; add_space_prefix: true; as in llama.cpp.
Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file);

// tokenizer.chat_template, or kDefaultChatTemplate where the file has none. A template that
// does not parse is kInvalidArgument.
Result<std::unique_ptr<ChatTemplate>> MakeChatTemplate(const GgufFile& file,
                                                       const Tokenizer& tokenizer);

}  // namespace kvasir
