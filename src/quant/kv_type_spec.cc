#include "quant/kv_type_spec.h"

#include <charconv>

namespace kvasir {
namespace {

constexpr std::string_view kLayers = "layers=";
constexpr int kMostLayers = 100000;

// A whole number of at most a few digits at the front of `text`, taken off it.
bool TakeInt(std::string_view& text, int* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error != std::errc() || *out > kMostLayers || *out < -kMostLayers) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

Status Malformed(std::string_view field) {
  return InvalidArgument(std::string(field) +
                             ": exceptions are written as layers=0-1:i8,-2--1:i8 (layers count "
                             "from 0, negative ones from the end)",
                         std::string(field));
}

std::string RangeText(const KvTypeSpec::Part& part) {
  std::string text = std::to_string(part.first);
  if (part.last != part.first) text += "-" + std::to_string(part.last);
  return text;
}

}  // namespace

std::string KvTypeSpec::Text() const {
  std::string text(KvTypeName(type));
  for (size_t i = 0; i < parts.size(); ++i) {
    text += i == 0 ? ",layers=" : ",";
    text += RangeText(parts[i]) + ":" + std::string(KvTypeName(parts[i].type));
  }
  return text;
}

Result<std::vector<KvType>> KvTypeSpec::Layers(int layers, std::string_view field) const {
  std::vector<KvType> types(static_cast<size_t>(layers), type);
  std::vector<bool> excepted(types.size());
  for (const Part& part : parts) {
    const int first = part.first < 0 ? part.first + layers : part.first;
    const int last = part.last < 0 ? part.last + layers : part.last;
    if (first < 0 || first > last || last >= layers) {
      return InvalidArgument(std::string(field) + ": layers " + RangeText(part) +
                                 " is not a range of this model's " + std::to_string(layers) +
                                 " layers",
                             std::string(field));
    }
    for (auto i = static_cast<size_t>(first); i <= static_cast<size_t>(last); ++i) {
      if (excepted[i] && types[i] != part.type) {
        return InvalidArgument(std::string(field) + ": layer " + std::to_string(i) +
                                   " is to be both " + std::string(KvTypeName(types[i])) + " and " +
                                   std::string(KvTypeName(part.type)),
                               std::string(field));
      }
      types[i] = part.type;
      excepted[i] = true;
    }
  }
  return types;
}

Result<KvTypeSpec> ParseKvTypeSpec(std::string_view text, std::string_view field) {
  KvTypeSpec spec;
  const size_t comma = text.find(',');
  KVASIR_ASSIGN_OR_RETURN(spec.type, ParseKvType(text.substr(0, comma), field));
  if (comma == std::string_view::npos) return spec;
  std::string_view rest = text.substr(comma + 1);
  if (!rest.starts_with(kLayers)) return Malformed(field);
  rest.remove_prefix(kLayers.size());
  for (bool more = true; more;) {
    KvTypeSpec::Part part;
    if (!TakeInt(rest, &part.first)) return Malformed(field);
    part.last = part.first;
    if (rest.starts_with('-')) {
      rest.remove_prefix(1);
      if (!TakeInt(rest, &part.last)) return Malformed(field);
    }
    if (!rest.starts_with(':')) return Malformed(field);
    rest.remove_prefix(1);
    const size_t end = rest.find(',');
    KVASIR_ASSIGN_OR_RETURN(part.type, ParseKvType(rest.substr(0, end), field));
    spec.parts.push_back(part);
    more = end != std::string_view::npos;
    if (more) rest.remove_prefix(end + 1);
  }
  return spec;
}

Result<std::vector<KvPair>> ResolveKvTypes(const KvTypeSpec& k, const KvTypeSpec& v, int layers) {
  KVASIR_ASSIGN_OR_RETURN(const std::vector<KvType> k_types, k.Layers(layers, "K"));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<KvType> v_types, v.Layers(layers, "V"));
  std::vector<KvPair> pairs(k_types.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    pairs[i] = {k_types[i], v_types[i]};
    if (KvPairServed(pairs[i].k, pairs[i].v)) continue;
    return InvalidArgument("layer " + std::to_string(i) + ": K in " +
                               std::string(KvTypeName(pairs[i].k)) + " with V in " +
                               std::string(KvTypeName(pairs[i].v)) + " is not served; served are " +
                               KvPairsServedList(),
                           "K");
  }
  return pairs;
}

}  // namespace kvasir
