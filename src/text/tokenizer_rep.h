// What a Tokenizer holds. Private to src/text: the chat template reads the handle.
#pragma once

#include <vector>

#include "kvasir_text.h"
#include "text/tokenizer.h"

namespace kvasir {

struct Tokenizer::Rep {
  explicit Rep(kv_tokenizer* owned);
  ~Rep() { kv_tokenizer_free(handle); }
  Rep(const Rep&) = delete;
  Rep& operator=(const Rep&) = delete;

  kv_tokenizer* handle;
  kv_tokenizer_info info;
  std::vector<TokenId> end_tokens;
};

}  // namespace kvasir
