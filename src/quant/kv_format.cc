#include "quant/kv_format.h"

#include "base/check.h"

namespace kvasir {
namespace {

struct KvTypeRow {
  KvType type;
  std::string_view name;
  std::string_view alias;  // the name other engines use, "" if none
  size_t bits;             // per element, without scales
  bool served;
};

constexpr KvTypeRow kTable[] = {
    {KvType::kF32, "f32", "", 32, true},         {KvType::kF16, "f16", "", 16, true},
    {KvType::kBf16, "bf16", "", 16, true},       {KvType::kI8, "i8", "q8_0", 8, true},
    {KvType::kI4, "i4", "q4_0", 4, true},        {KvType::kFp8E4M3, "fp8_e4m3", "fp8", 8, true},
    {KvType::kFp8E5M2, "fp8_e5m2", "", 8, true},
};

const KvTypeRow& Row(KvType type) {
  for (const KvTypeRow& row : kTable) {
    if (row.type == type) return row;
  }
  KVASIR_CHECK(false && "not a KvType");
  return kTable[0];
}

}  // namespace

std::string_view KvTypeName(KvType type) {
  return Row(type).name;
}

bool KvTypeServed(KvType type) {
  return Row(type).served;
}

bool KvTypeIsInteger(KvType type) {
  return type == KvType::kI8 || type == KvType::kI4;
}

bool KvPairServed(KvType k_type, KvType v_type) {
  if (!KvTypeServed(k_type) || !KvTypeServed(v_type)) return false;
  if (KvTypeIsInteger(k_type) != KvTypeIsInteger(v_type)) return false;
  return !(k_type == KvType::kI4 && v_type == KvType::kI8);
}

std::string KvPairsServedList() {
  std::string floats;
  for (const KvTypeRow& row : kTable) {
    if (KvTypeIsInteger(row.type) || !row.served) continue;
    if (!floats.empty()) floats += ", ";
    floats += row.name;
  }
  return "i8/i8, i8/i4, i4/i4 (K/V), and any two of " + floats;
}

size_t KvElementBytes(KvType type) {
  KVASIR_CHECK(!KvTypeIsInteger(type));
  return Row(type).bits / 8;
}

int KvScaleGroups(KvType type, int dim) {
  if (type == KvType::kI8 || type == KvType::kFp8E4M3) return 1;
  return type == KvType::kI4 ? (dim + kKvI4Group - 1) / kKvI4Group : 0;
}

namespace {

// Bytes of the codes of one token's V in i4: half a byte a channel, rounded up.
size_t ValueHalves(int v_dim) {
  return static_cast<size_t>(v_dim / kKvI4Group * (kKvI4Group / 2) + (v_dim % kKvI4Group + 1) / 2);
}

KvPlane PlaneOf(KvType type, int block_tokens, int dim, size_t codes) {
  return {codes, static_cast<size_t>(KvScaleGroups(type, dim)) * static_cast<size_t>(block_tokens) *
                     sizeof(uint16_t)};
}

}  // namespace

KvPlane KvKeyPlane(KvType type, int block_tokens, int k_dim) {
  const auto tokens = static_cast<size_t>(block_tokens);
  const auto dim = static_cast<size_t>(k_dim);
  if (type == KvType::kI8) return PlaneOf(type, block_tokens, k_dim, (dim + 3) / 4 * 4 * tokens);
  if (type == KvType::kI4) return PlaneOf(type, block_tokens, k_dim, (dim + 7) / 8 * 4 * tokens);
  return PlaneOf(type, block_tokens, k_dim, dim * tokens * KvElementBytes(type));
}

KvPlane KvValuePlane(KvType type, int block_tokens, int v_dim) {
  const auto tokens = static_cast<size_t>(block_tokens);
  if (type == KvType::kI4) {
    return PlaneOf(type, block_tokens, v_dim, ValueHalves(v_dim) * tokens);
  }
  const size_t element = type == KvType::kI8 ? 1 : KvElementBytes(type);
  return PlaneOf(type, block_tokens, v_dim, static_cast<size_t>(v_dim) * tokens * element);
}

KvCodePlace KvKeyCode(KvType type, int block_tokens, int k_dim, int token, int channel) {
  const int tile = KvTile(block_tokens);
  const int channels = type == KvType::kI8 ? 4 : 8;  // of one line
  const int lines = (k_dim + channels - 1) / channels;
  const int at = ((token / tile * lines + channel / channels) * tile + token % tile) * 4;
  return {static_cast<size_t>(at + channel % 4), channel % channels >= 4};
}

KvCodePlace KvValueCode(KvType type, int v_dim, int token, int channel) {
  const auto in_four = static_cast<size_t>(token % 4);
  const auto four = static_cast<size_t>(token / 4);
  if (type == KvType::kI8) {
    return {(four * static_cast<size_t>(v_dim) + static_cast<size_t>(channel)) * 4 + in_four,
            false};
  }
  const int group = channel / kKvI4Group;
  const int rest = v_dim - group * kKvI4Group;
  const int half = ((rest < kKvI4Group ? rest : kKvI4Group) + 1) / 2;
  const int in_group = channel % kKvI4Group;
  const size_t at =
      four * ValueHalves(v_dim) + static_cast<size_t>(group * (kKvI4Group / 2) + in_group % half);
  return {at * 4 + in_four, in_group >= half};
}

std::string KvTypesServedList() {
  std::string list;
  for (const KvTypeRow& row : kTable) {
    if (!row.served) continue;
    if (!list.empty()) list += ", ";
    list += row.name;
  }
  return list;
}

Result<KvType> ParseKvType(std::string_view name, std::string_view field) {
  std::string known;
  for (const KvTypeRow& row : kTable) {
    if (name == row.name || (!row.alias.empty() && name == row.alias)) return row.type;
    if (!known.empty()) known += ", ";
    known += row.name;
    if (!row.alias.empty()) known += " (or " + std::string(row.alias) + ")";
  }
  // A name from outside may be anything: show a little of it, printable only.
  std::string shown;
  for (const char c : name.substr(0, 32)) shown += c >= ' ' && c <= '~' ? c : '?';
  if (name.size() > 32) shown += "...";
  return InvalidArgument(
      std::string(field) + ": unknown KV format \"" + shown + "\"; known are " + known,
      std::string(field));
}

}  // namespace kvasir
