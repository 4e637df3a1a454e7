// For tests: a byte-level tokenizer like the fixtures' (id of a byte = the byte, a few longer
// tokens, four control tokens).
#pragma once

#include <memory>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {

inline constexpr TokenId kTestBos = 301;
inline constexpr TokenId kTestEnd = 303;

std::unique_ptr<Tokenizer> MakeTestTokenizer(bool add_bos = false);

}  // namespace kvasir
