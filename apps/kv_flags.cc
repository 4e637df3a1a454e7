#include "apps/kv_flags.h"

#include "base/units.h"
#include "quant/kv_format.h"

namespace kvasir {
namespace {

Status CheckType(const std::string& name, const char* field) {
  KVASIR_ASSIGN_OR_RETURN(const KvType type, ParseKvType(name, field));
  if (KvTypeServed(type)) return Status::Ok();
  const std::string canonical(KvTypeName(type));
  const std::string alias = canonical == name ? "" : " (" + canonical + ")";
  return InvalidArgument(std::string("--") + field + " " + name + alias +
                             ": not served yet; served are " + KvTypesServedList(),
                         field);
}

}  // namespace

Status KvFlags::Validate() const {
  if (block_size < 8 || block_size > 256 || (block_size & (block_size - 1)) != 0) {
    return InvalidArgument(
        "--block-size " + std::to_string(block_size) + ": must be a power of two from 8 to 256",
        "block-size");
  }
  KVASIR_RETURN_IF_ERROR(CheckType(kv_type, "kv-type"));
  KVASIR_RETURN_IF_ERROR(CheckType(type_k(), "kv-type-k"));
  KVASIR_RETURN_IF_ERROR(CheckType(type_v(), "kv-type-v"));
  if (!kv_mem.empty()) {
    if (kv_blocks != 0)
      return InvalidArgument("--kv-mem and --kv-blocks exclude each other", "kv-blocks");
    KVASIR_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(kv_mem, "kv-mem"));
    if (bytes == 0)
      return InvalidArgument("--kv-mem " + kv_mem + ": must be more than 0", "kv-mem");
  }
  return Status::Ok();
}

void AddKvTypeFlags(CLI::App* app, KvFlags* flags) {
  app->add_option("--block-size", flags->block_size,
                  "tokens in a KV block, a power of two from 8 to 256")
      ->capture_default_str();
  app->add_option("--kv-type", flags->kv_type,
                  "format of K and V in the cache: " + KvTypesServedList())
      ->capture_default_str();
  app->add_option("--kv-type-k", flags->kv_type_k, "format of K (default: as --kv-type)");
  app->add_option("--kv-type-v", flags->kv_type_v, "format of V (default: as --kv-type)");
}

void AddKvSizeFlags(CLI::App* app, KvFlags* flags) {
  app->add_option("--kv-mem", flags->kv_mem,
                  "size of the KV pool, as 512MiB or 4GiB (default: half of free memory)");
  app->add_option("--kv-blocks", flags->kv_blocks,
                  "size of the KV pool in blocks, instead of --kv-mem")
      ->check(CLI::Range(int64_t{1}, int64_t{2'000'000'000}));
}

}  // namespace kvasir
