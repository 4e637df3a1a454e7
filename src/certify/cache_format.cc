#include "certify/cache_format.h"

#include <set>
#include <utility>

#include "base/check.h"
#include "quant/kv_type_spec.h"

namespace kvasir {
namespace {

constexpr size_t kLayersWithEdges = 8;
constexpr int kBlockTokens = 16;  // whether a format is served does not depend on it

constexpr std::pair<std::string_view, std::string_view> kShortNames[] = {
    {"k8v8", "i8"}, {"k8v4", "i8/i4"}, {"k4v4", "i4"}};

Result<std::string> Canonical(std::string_view text, std::string_view field) {
  KVASIR_ASSIGN_OR_RETURN(const KvTypeSpec spec, ParseKvTypeSpec(text, field));
  return spec.Text();
}

}  // namespace

std::string CacheFormatName(const CacheFormat& format) {
  return format.k == format.v ? format.k : format.k + "/" + format.v;
}

Result<CacheFormat> ParseCacheFormat(std::string_view text, std::string_view field) {
  for (const auto& [name, meaning] : kShortNames) {
    if (text == name) text = meaning;
  }
  const size_t slash = text.find('/');
  CacheFormat format;
  KVASIR_ASSIGN_OR_RETURN(format.k, Canonical(text.substr(0, slash), field));
  format.v = format.k;
  if (slash != std::string_view::npos) {
    KVASIR_ASSIGN_OR_RETURN(format.v, Canonical(text.substr(slash + 1), field));
  }
  return format;
}

std::vector<KvType> TypesIn(const CacheFormat& format) {
  std::set<KvType> types;
  for (const std::string& text : {format.k, format.v}) {
    const Result<KvTypeSpec> spec = ParseKvTypeSpec(text, "");
    if (!spec.ok()) return {};
    types.insert(spec->type);
    for (const KvTypeSpec::Part& part : spec->parts) types.insert(part.type);
  }
  return {types.begin(), types.end()};
}

int KvFormatVersion(KvType type) {
  switch (type) {
    case KvType::kF32:
    case KvType::kF16:
    case KvType::kBf16:
    case KvType::kI8:
    case KvType::kFp8E4M3:
    case KvType::kFp8E5M2:
      return 1;
    case KvType::kI4:
      return 2;  // 2: with a tail (model/kv_tail.h)
  }
  KVASIR_CHECK(false && "not a KvType");
  return 0;
}

std::string VersionText(const CacheFormat& format) {
  std::string text;
  for (const KvType type : TypesIn(format)) {
    if (!text.empty()) text += " ";
    text += std::string(KvTypeName(type)) + "." + std::to_string(KvFormatVersion(type));
  }
  return text;
}

Result<KvLayout> MakeKvLayout(const ModelConfig& config, const CacheFormat& format,
                              int block_tokens) {
  KVASIR_ASSIGN_OR_RETURN(const KvTypeSpec k, ParseKvTypeSpec(format.k, "K"));
  KVASIR_ASSIGN_OR_RETURN(const KvTypeSpec v, ParseKvTypeSpec(format.v, "V"));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<KvPair> types,
                          ResolveKvTypes(k, v, static_cast<int>(config.cache.size())));
  return KvLayout::Make(config.cache, block_tokens, types);
}

std::vector<CacheFormat> FormatsWorthHaving(const ModelConfig& config) {
  std::vector<CacheFormat> candidates = {CacheFormat::Of("i8"), {"i8", "i4"}};
  // The first and last layers are the ones that four bits hurt most.
  if (config.cache.size() >= kLayersWithEdges) {
    candidates.push_back(CacheFormat::Of("i4,layers=0-1:i8,-2--1:i8"));
  }
  candidates.push_back(CacheFormat::Of("i4"));
  candidates.push_back(CacheFormat::Of("fp8_e4m3"));
  std::vector<CacheFormat> formats;
  for (const CacheFormat& format : candidates) {
    if (MakeKvLayout(config, format, kBlockTokens).ok()) formats.push_back(format);
  }
  if (formats.empty()) formats.push_back(CacheFormat::Of("bf16"));
  return formats;
}

}  // namespace kvasir
