#include "apps/kv_flags.h"

#include <utility>

#include "apps/flag_values.h"
#include "base/units.h"
#include "certify/cache_format.h"
#include "quant/kv_type_spec.h"

namespace kvasir {
namespace {

Result<KvTypeSpec> Spec(const std::string& text, const std::string& flag) {
  KVASIR_ASSIGN_OR_RETURN(KvTypeSpec spec, ParseKvTypeSpec(text, flag));
  if (KvTypeServed(spec.type)) return spec;
  return InvalidArgument(flag + " " + text + " (" + std::string(KvTypeName(spec.type)) +
                             "): not served yet; served are " + KvTypesServedList(),
                         flag);
}

// K's and V's part of "i8/i4", "k8v4" or "i8". Text that means nothing comes back as it is, and is
// refused by Validate.
std::pair<std::string, std::string> Halves(const std::string& text) {
  const Result<CacheFormat> format = ParseCacheFormat(text, "");
  return format.ok() ? std::pair(format->k, format->v) : std::pair(text, text);
}

bool BeginsWithAuto(const std::string& text) {
  return text.substr(0, text.find_first_of(",/")) == "auto";
}

// --kv-type itself.
Status ValidateBoth(const std::string& text) {
  if (text == "auto") return Status::Ok();
  if (BeginsWithAuto(text)) {
    return InvalidArgument("--kv-type " + text +
                               ": auto chooses for K and V of all layers, and takes neither "
                               "exceptions nor a second format",
                           "kv-type");
  }
  Status parsed = ParseCacheFormat(text, "--kv-type").status();
  if (!parsed.ok() && !ParseKvType(text.substr(0, text.find_first_of(",/")), "").ok())
    return InvalidArgument(parsed.message() + ", and auto", parsed.field());
  return parsed;
}

// --kv-type-k or --kv-type-v.
Status ValidateOwn(const std::string& text, const std::string& flag) {
  if (text.empty()) return Status::Ok();
  if (BeginsWithAuto(text))
    return InvalidArgument(flag + " " + text + ": only --kv-type, for K and V, can be auto", flag);
  return Spec(text, flag).status();
}

}  // namespace

std::string KvFlags::type_k() const {
  if (!kv_type_k.empty()) return kv_type_k;
  return kv_type == "auto" && !kv_type_v.empty() ? kv_type_v : Halves(kv_type).first;
}

std::string KvFlags::type_v() const {
  if (!kv_type_v.empty()) return kv_type_v;
  return kv_type == "auto" && !kv_type_k.empty() ? kv_type_k : Halves(kv_type).second;
}

Status KvFlags::NameFlag(const Status& status) const {
  if (status.ok() || (status.field() != "K" && status.field() != "V")) return status;
  const bool k = status.field() == "K";
  const std::string& own = k ? kv_type_k : kv_type_v;
  const std::string& other = k ? kv_type_v : kv_type_k;
  const std::string own_flag = k ? "--kv-type-k " : "--kv-type-v ";
  const std::string other_flag = k ? "--kv-type-v " : "--kv-type-k ";
  std::string flag = "--kv-type " + kv_type;
  if (!own.empty()) {
    flag = own_flag + own;
  } else if (kv_type == "auto") {
    flag = other_flag + other;
  }
  return Status(status.code(), flag + ": " + status.message(), flag.substr(2, flag.find(' ') - 2));
}

Status KvFlags::Validate() const {
  if (block_size < 8 || block_size > 256 || (block_size & (block_size - 1)) != 0) {
    return InvalidArgument(
        "--block-size " + std::to_string(block_size) + ": must be a power of two from 8 to 256",
        "block-size");
  }
  if (is_auto()) return ValidateSize();
  KVASIR_RETURN_IF_ERROR(ValidateBoth(kv_type));
  KVASIR_RETURN_IF_ERROR(ValidateOwn(kv_type_k, "--kv-type-k"));
  KVASIR_RETURN_IF_ERROR(ValidateOwn(kv_type_v, "--kv-type-v"));
  KVASIR_ASSIGN_OR_RETURN(const KvTypeSpec k, Spec(type_k(), "--kv-type"));
  KVASIR_ASSIGN_OR_RETURN(const KvTypeSpec v, Spec(type_v(), "--kv-type"));
  if (!KvPairServed(k.type, v.type)) {
    const std::string pair = kv_type_k.empty() && kv_type_v.empty()
                                 ? "--kv-type " + kv_type
                                 : "--kv-type-k " + std::string(KvTypeName(k.type)) +
                                       " with --kv-type-v " + std::string(KvTypeName(v.type));
    return InvalidArgument(pair + ": not served; served are " + KvPairsServedList(), "kv-type-k");
  }
  return ValidateSize();
}

Status KvFlags::ValidateSize() const {
  if (!kv_mem.empty()) {
    if (kv_blocks != 0)
      return InvalidArgument("--kv-mem and --kv-blocks exclude each other", "kv-blocks");
    KVASIR_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(kv_mem, "--kv-mem"));
    if (bytes == 0)
      return InvalidArgument("--kv-mem " + kv_mem + ": must be more than 0", "kv-mem");
  }
  return Status::Ok();
}

std::vector<std::string> KvFlags::Notices() const {
  std::vector<std::string> notices;
  if (kv_type == "auto" && kv_type_k.empty() != kv_type_v.empty()) {
    notices.push_back(kv_type_v.empty() ? "--kv-type-k " + kv_type_k + " alone: V has it too"
                                        : "--kv-type-v " + kv_type_v + " alone: K has it too");
  }
  const size_t slash = kv_type.find('/');
  const std::string second = slash == std::string::npos ? std::string() : kv_type.substr(slash + 1);
  for (const std::string& text : {kv_type, second, kv_type_k, kv_type_v}) {
    const std::string name = text.substr(0, text.find_first_of(",/"));
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
                      KvTypesServedList() +
                      ", or K/V as i8/i4; exceptions by layer as i4,layers=0-1:i8,-2--1:i8")
      ->capture_default_str();
  app->add_option(
         "--kv-type-k", flags->kv_type_k,
         "format of K (default: as --kv-type; beside auto: as --kv-type-v); served pairs: " +
             KvPairsServedList())
      ->check(NotEmpty());
  app->add_option("--kv-type-v", flags->kv_type_v,
                  "format of V (default: as --kv-type; beside auto: as --kv-type-k)")
      ->check(NotEmpty());
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
                  "size of the KV pool, as 512MiB or 4GiB (default: half of free memory)")
      ->check(NotEmpty());
  app->add_option("--kv-blocks", flags->kv_blocks,
                  "size of the KV pool in blocks, instead of --kv-mem")
      ->check(CLI::Range(int64_t{1}, int64_t{2'000'000'000}));
}

}  // namespace kvasir
