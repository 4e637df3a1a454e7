#include "text/tokenizer.h"

#include <span>

#include "text/rust_abi.h"
#include "text/tokenizer_rep.h"

namespace kvasir {

namespace {

constexpr uint8_t kFlagSpecial = 1;
constexpr uint8_t kFlagEnds = 2;

std::vector<kv_str> Views(const std::vector<std::string_view>& strings) {
  std::vector<kv_str> views;
  views.reserve(strings.size());
  for (std::string_view string : strings) views.push_back(internal::View(string));
  return views;
}

}  // namespace

Tokenizer::Rep::Rep(kv_tokenizer* owned) : handle(owned), info(kv_tokenizer_get_info(owned)) {
  for (TokenId token = 0; token < info.vocab_size; ++token) {
    if (info.token_flags[token] & kFlagEnds) end_tokens.push_back(token);
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromSpec(const TokenizerSpec& spec) {
  const std::vector<kv_str> tokens = Views(spec.tokens);
  const std::vector<kv_str> merges = Views(spec.merges);
  kv_tokenizer_spec raw{};
  raw.model = internal::View(spec.model);
  raw.pre = internal::View(spec.pre);
  raw.tokens = tokens.data();
  raw.token_count = tokens.size();
  raw.scores = spec.scores.data();
  raw.score_count = spec.scores.size();
  raw.kinds = spec.kinds.data();
  raw.kind_count = spec.kinds.size();
  raw.merges = merges.data();
  raw.merge_count = merges.size();
  raw.bos = spec.bos;
  raw.eos = spec.eos;
  raw.eot = spec.eot;
  raw.unk = spec.unk;
  raw.pad = spec.pad;
  raw.add_bos = spec.add_bos;
  raw.add_eos = spec.add_eos;
  raw.add_space_prefix = spec.add_space_prefix;
  kv_tokenizer* handle = nullptr;
  internal::RustBuffer error;
  const kv_code code = kv_tokenizer_from_spec(&raw, &handle, error.out());
  KVASIR_RETURN_IF_ERROR(internal::ToStatus(code, error));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Rep>(handle)));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJsonFile(const std::string& path) {
  kv_tokenizer* handle = nullptr;
  internal::RustBuffer error;
  const kv_code code = kv_tokenizer_from_json_file(internal::View(path), &handle, error.out());
  KVASIR_RETURN_IF_ERROR(internal::ToStatus(code, error));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Rep>(handle)));
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, SpecialText special,
                                               bool add_special) const {
  const Piece piece{text, special == SpecialText::kControl};
  return EncodePieces({&piece, 1}, add_special);
}

Result<std::vector<TokenId>> Tokenizer::EncodePieces(std::span<const Piece> pieces,
                                                     bool add_special) const {
  std::vector<kv_piece> raw;
  raw.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    raw.push_back({internal::View(piece.text), static_cast<uint8_t>(piece.trusted)});
  }
  kv_ids ids{nullptr, 0};
  internal::RustBuffer error;
  const kv_code code =
      kv_tokenizer_encode(rep_->handle, raw.data(), raw.size(), add_special, &ids, error.out());
  KVASIR_RETURN_IF_ERROR(internal::ToStatus(code, error));
  std::vector<TokenId> tokens(ids.data, ids.data + ids.size);
  kv_ids_free(ids);
  return tokens;
}

std::string_view Tokenizer::TokenBytes(TokenId token) const {
  if (token < 0 || token >= rep_->info.vocab_size) return {};
  const uint64_t begin = rep_->info.token_offsets[token];
  return {rep_->info.token_bytes + begin, rep_->info.token_offsets[token + 1] - begin};
}

bool Tokenizer::IsSpecial(TokenId token) const {
  if (token < 0 || token >= rep_->info.vocab_size) return false;
  return (rep_->info.token_flags[token] & kFlagSpecial) != 0;
}

std::string Tokenizer::Decode(std::span<const TokenId> tokens, bool skip_special) const {
  Utf8Stream stream;
  std::string text;
  for (TokenId token : tokens) {
    if (skip_special && IsSpecial(token)) continue;
    text += stream.Push(TokenBytes(token));
  }
  text += stream.Finish();
  return text;
}

int32_t Tokenizer::vocab_size() const {
  return rep_->info.vocab_size;
}
TokenId Tokenizer::bos() const {
  return rep_->info.bos;
}
TokenId Tokenizer::eos() const {
  return rep_->info.eos;
}
bool Tokenizer::add_bos() const {
  return rep_->info.add_bos != 0;
}
bool Tokenizer::strips_leading_space() const {
  return rep_->info.strips_leading_space != 0;
}
std::span<const TokenId> Tokenizer::end_tokens() const {
  return rep_->end_tokens;
}

bool Tokenizer::IsEndOfGeneration(TokenId token) const {
  if (token < 0 || token >= rep_->info.vocab_size) return false;
  return (rep_->info.token_flags[token] & kFlagEnds) != 0;
}

}  // namespace kvasir
