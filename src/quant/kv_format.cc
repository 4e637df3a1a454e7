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
    {KvType::kF32, "f32", "", 32, true},          {KvType::kF16, "f16", "", 16, true},
    {KvType::kBf16, "bf16", "", 16, true},        {KvType::kI8, "i8", "q8_0", 8, false},
    {KvType::kI4, "i4", "q4_0", 4, false},        {KvType::kFp8E4M3, "fp8_e4m3", "fp8", 8, false},
    {KvType::kFp8E5M2, "fp8_e5m2", "", 8, false},
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

size_t KvElementBits(KvType type) {
  return Row(type).bits;
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
