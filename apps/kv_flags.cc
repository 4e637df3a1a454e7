#include "apps/kv_flags.h"

#include "base/units.h"
#include "quant/kv_type_spec.h"

namespace kvasir {
namespace {

Result<KvTypeSpec> Spec(const std::string& text, const char* field) {
  KVASIR_ASSIGN_OR_RETURN(KvTypeSpec spec, ParseKvTypeSpec(text, std::string("--") + field));
  if (KvTypeServed(spec.type)) return spec;
  return InvalidArgument("--" + std::string(field) + " " + text + " (" +
                             std::string(KvTypeName(spec.type)) + "): not served yet; served are " +
                             KvTypesServedList(),
                         field);
}

}  // namespace

const std::string& KvFlags::Type(const std::string& own) const {
  static const std::string f16 = "f16";
  if (!own.empty()) return own;
  return kv_type == "auto" && !is_auto() ? f16 : kv_type;
}

Status KvFlags::Validate() const {
  if (block_size < 8 || block_size > 256 || (block_size & (block_size - 1)) != 0) {
    return InvalidArgument(
        "--block-size " + std::to_string(block_size) + ": must be a power of two from 8 to 256",
        "block-size");
  }
  if (is_auto()) return ValidateSize();
  if (kv_type != "auto") KVASIR_RETURN_IF_ERROR(Spec(kv_type, "kv-type").status());
  KVASIR_ASSIGN_OR_RETURN(const KvTypeSpec k, Spec(type_k(), "kv-type-k"));
  KVASIR_ASSIGN_OR_RETURN(const KvTypeSpec v, Spec(type_v(), "kv-type-v"));
  if (!KvPairServed(k.type, v.type)) {
    return InvalidArgument("--kv-type-k " + std::string(KvTypeName(k.type)) + " with --kv-type-v " +
                               std::string(KvTypeName(v.type)) + ": not served; served are " +
                               KvPairsServedList(),
                           "kv-type-k");
  }
  return ValidateSize();
}

Status KvFlags::ValidateSize() const {
  if (!kv_mem.empty()) {
    if (kv_blocks != 0)
      return InvalidArgument("--kv-mem and --kv-blocks exclude each other", "kv-blocks");
    KVASIR_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(kv_mem, "kv-mem"));
    if (bytes == 0)
      return InvalidArgument("--kv-mem " + kv_mem + ": must be more than 0", "kv-mem");
  }
  return Status::Ok();
}

std::vector<std::string> KvFlags::Notices() const {
  std::vector<std::string> notices;
  for (const std::string& text : {kv_type, kv_type_k, kv_type_v}) {
    const std::string name = text.substr(0, text.find(','));
    const Result<KvType> type = ParseKvType(name, "");
    if (!type.ok() || KvTypeName(*type) == name) continue;
    notices.push_back("KV format " + name + " is another engine's name; taken as " +
                      std::string(KvTypeName(*type)) + ", which has a layout of its own");
  }
  return notices;
}

void AddKvTypeFlags(CLI::App* app, KvFlags* flags) {
  app->add_option("--block-size", flags->block_size,
                  "tokens in a KV block, a power of two from 8 to 256")
      ->capture_default_str();
  app->add_option("--kv-type", flags->kv_type,
                  "format of K and V in the cache: auto (the smallest that is certified for the "
                  "model, see kvasir certify), " +
                      KvTypesServedList() + "; exceptions by layer as i4,layers=0-1:i8,-2--1:i8")
      ->capture_default_str();
  app->add_option("--kv-type-k", flags->kv_type_k,
                  "format of K (default: as --kv-type); served pairs: " + KvPairsServedList());
  app->add_option("--kv-type-v", flags->kv_type_v, "format of V (default: as --kv-type)");
}

void AddKvQualityFlag(CLI::App* app, KvFlags* flags) {
  app->add_option("--kv-quality", flags->kv_quality,
                  "what --kv-type auto may cost: strict, balanced or small; and what a format is "
                  "held against in the log and in /v1/kvcache")
      ->check(CLI::IsMember({"strict", "balanced", "small"}))
      ->capture_default_str();
}

void AddKvSizeFlags(CLI::App* app, KvFlags* flags) {
  app->add_option("--kv-mem", flags->kv_mem,
                  "size of the KV pool, as 512MiB or 4GiB (default: half of free memory)");
  app->add_option("--kv-blocks", flags->kv_blocks,
                  "size of the KV pool in blocks, instead of --kv-mem")
      ->check(CLI::Range(int64_t{1}, int64_t{2'000'000'000}));
}

}  // namespace kvasir
