// The flags about the KV cache that several commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvasir {

struct KvFlags {
  int32_t block_size = 16;
  std::string kv_type = "auto";  // or a format, or K's/V's: certify/cache_format.h
  std::string kv_quality = "balanced";
  std::string kv_type_k, kv_type_v;  // "": as kv_type; all three: quant/kv_type_spec.h
  std::string kv_mem;                // "": half of free memory
  int64_t kv_blocks = 0;             // 0: by kv_mem

  bool is_auto() const { return kv_type == "auto" && kv_type_k.empty() && kv_type_v.empty(); }
  // What the three come to. Beside auto, a format of K or of V alone is that of both.
  std::string type_k() const;
  std::string type_v() const;
  // Of formats against a model's layers (field "K" or "V"): with the flag at fault in front.
  Status NameFlag(const Status& status) const;
  // Names the flag and what is possible: formats without kernels are refused here, with the list of
  // those served.
  Status Validate() const;
  Status ValidateSize() const;  // the part about --kv-mem and --kv-blocks
  std::vector<std::string> Notices()
      const;  // for the log: names and flags left out, and what they became
};

void AddKvTypeFlags(CLI::App* app,
                    KvFlags* flags);  // --block-size, --kv-type, --kv-type-k, --kv-type-v
void AddKvQualityFlag(CLI::App* app, KvFlags* flags);  // --kv-quality
void AddKvSizeFlags(CLI::App* app, KvFlags* flags);    // --kv-mem, --kv-blocks

}  // namespace kvasir
