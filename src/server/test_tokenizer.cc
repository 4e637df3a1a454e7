#include "server/test_tokenizer.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

// The letter GPT-2 vocabularies write for a byte, as UTF-8.
std::string ByteLetter(int byte) {
  const auto plain = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!plain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += plain(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string Letters(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += ByteLetter(static_cast<unsigned char>(c));
  return out;
}

}  // namespace

std::unique_ptr<Tokenizer> MakeTestTokenizer(bool add_bos) {
  std::vector<std::string> tokens;
  std::vector<uint8_t> kinds(305, static_cast<uint8_t>(TokenKind::kNormal));
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(ByteLetter(byte));
  const std::map<int, std::string> longer = {
      {257, "one"}, {259, " tw"}, {261, " thr"}, {262, "ee"}, {266, " four"}};
  for (int id = 256; id < 301; ++id) {
    const auto found = longer.find(id);
    tokens.push_back(found != longer.end() ? Letters(found->second)
                                           : "<unused" + std::to_string(id) + ">");
    if (found == longer.end())
      kinds[static_cast<size_t>(id)] = static_cast<uint8_t>(TokenKind::kUnused);
  }
  for (const char* control : {"<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>"}) {
    kinds[tokens.size()] = static_cast<uint8_t>(TokenKind::kControl);
    tokens.emplace_back(control);
  }
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  spec.tokens.assign(tokens.begin(), tokens.end());
  spec.kinds = kinds;
  spec.bos = kTestBos;
  spec.eos = kTestEnd;
  spec.add_bos = add_bos;
  auto made = Tokenizer::FromSpec(spec);
  KVASIR_CHECK(made.ok());
  return std::move(made).value();
}

}  // namespace kvasir
