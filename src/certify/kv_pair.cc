#include "certify/kv_pair.h"

#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr int kBlockTokens = 16;  // whether a pair is served does not depend on it

constexpr std::pair<std::string_view, KvPair> kShortNames[] = {
    {"k8v8", {KvType::kI8, KvType::kI8}},
    {"k8v4", {KvType::kI8, KvType::kI4}},
    {"k4v4", {KvType::kI4, KvType::kI4}},
};

}  // namespace

std::string KvPairName(KvPair pair) {
  std::string name(KvTypeName(pair.k));
  if (pair.k != pair.v) name += "/" + std::string(KvTypeName(pair.v));
  return name;
}

Result<KvPair> ParseKvPair(std::string_view text, std::string_view field) {
  for (const auto& [name, pair] : kShortNames) {
    if (text == name) return pair;
  }
  const size_t slash = text.find('/');
  KvPair pair;
  KVASIR_ASSIGN_OR_RETURN(pair.k, ParseKvType(text.substr(0, slash), field));
  pair.v = pair.k;
  if (slash != std::string_view::npos) {
    KVASIR_ASSIGN_OR_RETURN(pair.v, ParseKvType(text.substr(slash + 1), field));
  }
  return pair;
}

int KvFormatVersion(KvType type) {
  switch (type) {
    case KvType::kF32:
    case KvType::kF16:
    case KvType::kBf16:
    case KvType::kI8:
    case KvType::kI4:
    case KvType::kFp8E4M3:
    case KvType::kFp8E5M2:
      return 1;
  }
  KVASIR_CHECK(false && "not a KvType");
  return 0;
}

Result<KvLayout> MakeKvLayout(const ModelConfig& config, KvPair pair, int block_tokens) {
  return KvLayout::Make(config.cache, block_tokens, pair.k, pair.v);
}

std::vector<KvPair> PairsWorthHaving(const ModelConfig& config) {
  constexpr KvPair kCandidates[] = {{KvType::kI8, KvType::kI8},
                                    {KvType::kI8, KvType::kI4},
                                    {KvType::kI4, KvType::kI4},
                                    {KvType::kFp8E4M3, KvType::kFp8E4M3}};
  std::vector<KvPair> pairs;
  for (const KvPair pair : kCandidates) {
    if (MakeKvLayout(config, pair, kBlockTokens).ok()) pairs.push_back(pair);
  }
  if (pairs.empty()) pairs.push_back({KvType::kBf16, KvType::kBf16});
  return pairs;
}

}  // namespace kvasir
