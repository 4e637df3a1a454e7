#include "server/tokenizer_from_gguf.h"

#include <limits>
#include <string>

namespace kvasir {

namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

std::string Key(std::string_view name) {
  return std::string(kPrefix) + std::string(name);
}

Result<TokenId> NamedToken(const GgufFile& file, std::string_view name) {
  // Some files say 2^32-1 for "none".
  auto id = file.Int(Key(name), -1, std::numeric_limits<uint32_t>::max());
  KVASIR_RETURN_IF_ERROR(id.status());
  if (!id->has_value() || **id == std::numeric_limits<uint32_t>::max()) return TokenId{-1};
  if (**id > std::numeric_limits<TokenId>::max()) {
    return DataLoss(Key(name) + " is " + std::to_string(**id) + ", past any vocabulary");
  }
  return static_cast<TokenId>(**id);
}

Result<bool> Flag(const GgufFile& file, std::string_view name, bool absent) {
  auto flag = file.Bool(Key(name));
  KVASIR_RETURN_IF_ERROR(flag.status());
  return flag->value_or(absent);
}

Status ReadLists(const GgufFile& file, TokenizerSpec& spec) {
  auto tokens = file.Array(Key("tokens"), GgufType::kString);
  KVASIR_RETURN_IF_ERROR(tokens.status());
  if (!tokens->has_value()) return DataLoss(file.path() + ": no key tokenizer.ggml.tokens");
  spec.tokens = (**tokens).Strings();
  auto merges = file.Array(Key("merges"), GgufType::kString);
  KVASIR_RETURN_IF_ERROR(merges.status());
  if (merges->has_value()) spec.merges = (**merges).Strings();
  auto scores = file.Array(Key("scores"), GgufType::kF32);
  KVASIR_RETURN_IF_ERROR(scores.status());
  if (scores->has_value()) {
    for (double score : (**scores).Numbers()) spec.scores.push_back(static_cast<float>(score));
  }
  auto kinds = file.Array(Key("token_type"), GgufType::kI32);
  KVASIR_RETURN_IF_ERROR(kinds.status());
  if (kinds->has_value()) {
    for (int64_t kind : (**kinds).Integers()) {
      if (kind < 0 || kind > static_cast<int64_t>(TokenKind::kByte)) {
        return DataLoss("tokenizer.ggml.token_type[" + std::to_string(spec.kinds.size()) + "] is " +
                        std::to_string(kind) + ", not 0 to 6");
      }
      spec.kinds.push_back(static_cast<uint8_t>(kind));
    }
  }
  return Status::Ok();
}

Status ReadIds(const GgufFile& file, TokenizerSpec& spec) {
  KVASIR_ASSIGN_OR_RETURN(spec.bos, NamedToken(file, "bos_token_id"));
  KVASIR_ASSIGN_OR_RETURN(spec.eos, NamedToken(file, "eos_token_id"));
  KVASIR_ASSIGN_OR_RETURN(spec.eot, NamedToken(file, "eot_token_id"));
  KVASIR_ASSIGN_OR_RETURN(spec.unk, NamedToken(file, "unknown_token_id"));
  KVASIR_ASSIGN_OR_RETURN(spec.pad, NamedToken(file, "padding_token_id"));
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file) {
  TokenizerSpec spec;
  auto model = file.String(Key("model"));
  KVASIR_RETURN_IF_ERROR(model.status());
  if (!model->has_value()) return DataLoss(file.path() + ": no key tokenizer.ggml.model");
  spec.model = std::string(**model);
  auto pre = file.String(Key("pre"));
  KVASIR_RETURN_IF_ERROR(pre.status());
  spec.pre = std::string(pre->value_or("default"));
  KVASIR_RETURN_IF_ERROR(ReadLists(file, spec));
  KVASIR_RETURN_IF_ERROR(ReadIds(file, spec));
  const bool sentencepiece = spec.model == "llama";
  const bool wants_bos = sentencepiece || spec.pre == "llama-bpe";
  KVASIR_ASSIGN_OR_RETURN(spec.add_bos, Flag(file, "add_bos_token", wants_bos));
  KVASIR_ASSIGN_OR_RETURN(spec.add_eos, Flag(file, "add_eos_token", false));
  KVASIR_ASSIGN_OR_RETURN(spec.add_space_prefix, Flag(file, "add_space_prefix", true));
  if (sentencepiece) {  // what SentencePiece gives when a file does not say
    if (spec.unk < 0 && !spec.tokens.empty()) spec.unk = 0;
    if (spec.bos < 0 && spec.tokens.size() > 2) spec.bos = 1;
    if (spec.eos < 0 && spec.tokens.size() > 2) spec.eos = 2;
  }
  return Tokenizer::FromSpec(spec);
}

Result<std::unique_ptr<ChatTemplate>> MakeChatTemplate(const GgufFile& file,
                                                       const Tokenizer& tokenizer) {
  auto source = file.String("tokenizer.chat_template");
  KVASIR_RETURN_IF_ERROR(source.status());
  return ChatTemplate::Make(source->value_or(kDefaultChatTemplate), tokenizer);
}

}  // namespace kvasir
