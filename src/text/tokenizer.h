// Tokenizer: text to token ids and back, by the Hugging Face `tokenizers` crate behind a small C
// ABI (rust/). Immutable after creation; any thread may call any method at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace kvasir {

enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// The raw material, as GGUF files carry it (tokenizer.ggml.*).
struct TokenizerSpec {
  std::string model;  // "gpt2" or "llama"
  std::string pre;    // "default", "llama-bpe", "smollm", ...; gpt2 kinds only
  std::vector<std::string_view> tokens;
  std::vector<float> scores;   // llama kinds
  std::vector<uint8_t> kinds;  // TokenKind, empty: all normal
  std::vector<std::string_view> merges;
  TokenId bos = -1, eos = -1, eot = -1, unk = -1, pad = -1;  // -1: none
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = true;  // llama kinds
};

enum class SpecialText : uint8_t {
  kPlain,    // text of control tokens is plain text: what users type
  kControl,  // text of control tokens becomes the token: what templates write
};

class Tokenizer {
 public:
  // kUnimplemented for an unknown model or pre name: the message lists what is known.
  static Result<std::unique_ptr<Tokenizer>> FromSpec(const TokenizerSpec& spec);
  static Result<std::unique_ptr<Tokenizer>> FromJsonFile(
      const std::string& path);  // tokenizer.json
  ~Tokenizer();

  // kInvalidArgument if text is not valid UTF-8 (message gives the byte offset). add_special: put
  // BOS/EOS where the model asks for it; a text that already begins with the BOS token (kControl)
  // gets no second one.
  Result<std::vector<TokenId>> Encode(std::string_view text, SpecialText special,
                                      bool add_special) const;

  // A rendered chat prompt in pieces: template text (control tokens are read) and user text
  // (never). Only control tokens read in trusted pieces cut the text: everything between two of
  // them is encoded as one stretch, whatever the pieces.
  struct Piece {
    std::string_view text;
    bool trusted = false;
  };
  Result<std::vector<TokenId>> EncodePieces(std::span<const Piece> pieces, bool add_special) const;

  // The bytes a token stands for (may be part of a character); control tokens: their text.
  // `skip_special` gives "" for control tokens. Ids out of range give "".
  std::string_view TokenBytes(TokenId token) const;
  bool IsSpecial(TokenId token) const;  // control or unknown
  // Whole-text decode, invalid UTF-8 replaced by U+FFFD (one per maximal bad part, as the WHATWG
  // decoder does).
  std::string Decode(std::span<const TokenId> tokens, bool skip_special) const;

  int32_t vocab_size() const;
  TokenId bos() const;
  TokenId eos() const;
  bool IsEndOfGeneration(
      TokenId token) const;  // eos, eot, and control tokens that models of the kind end a turn with
  std::span<const TokenId> end_tokens() const;
  bool add_bos() const;
  // Is the first thing a decode prints to be stripped of one space (sentencepiece kinds)?
  bool strips_leading_space() const;

 private:
  friend class ChatTemplate;
  struct Rep;
  explicit Tokenizer(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

// Bytes in, whole characters out. Shows a character only when it is whole; a byte that can never
// become part of one gives one U+FFFD per maximal bad part; the pieces joined equal
// Tokenizer::Decode's text.
class Utf8Stream {
 public:
  std::string Push(std::string_view bytes);  // what can be shown now
  std::string Finish();  // the rest: a character cut off by the end gives one U+FFFD

 private:
  std::string pending_;
};

// First invalid byte's offset, or npos.
size_t FindInvalidUtf8(std::string_view text);

}  // namespace kvasir
