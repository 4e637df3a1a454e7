// A cache format as certificates and `--kv-type auto` see it: the format of K and that of V, as
// they are written on the command line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kvcache/kv_layout.h"
#include "model/model_config.h"
#include "quant/kv_format.h"

namespace kvasir {

struct CacheFormat {
  std::string k = "f16";  // canonical, see quant/kv_type_spec.h: "i4,layers=0-1:i8"
  std::string v = "f16";
  static CacheFormat Of(std::string_view both) { return {std::string(both), std::string(both)}; }
  friend bool operator==(const CacheFormat&, const CacheFormat&) = default;
};

std::string CacheFormatName(const CacheFormat& format);  // "i8", or "i8/i4": K, then V
// "i8", "i8/i4", and the short names k8v8, k8v4, k4v4. kInvalidArgument naming `field`.
Result<CacheFormat> ParseCacheFormat(std::string_view text, std::string_view field);

// Number formats that occur in it, ascending, each once. Empty if it is not well formed.
std::vector<KvType> TypesIn(const CacheFormat& format);

// Rises whenever the bytes that a number format stores for given K and V, or what attention
// computes from them, change, or how the constants are found that keys are conditioned with:
// certificates of another version no longer count. A test keeps a digest of what each computes.
int KvFormatVersion(KvType type);
std::string VersionText(const CacheFormat& format);  // "i8.1 i4.1": of all that occur

// The layout of the format for a model; fails where it is not served, as KvLayout::Make says.
Result<KvLayout> MakeKvLayout(const ModelConfig& config, const CacheFormat& format,
                              int block_tokens);

// What `certify` looks at unless told otherwise: of i8, i8/i4, i4 (with and without i8 in the two
// layers at each end) and fp8_e4m3 those that are served for the model; bf16 if none is.
std::vector<CacheFormat> FormatsWorthHaving(const ModelConfig& config);

}  // namespace kvasir
