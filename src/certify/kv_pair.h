// A cache format as certificates and `--kv-type auto` see it: the format of K and that of V.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kvcache/kv_layout.h"
#include "model/model_config.h"
#include "quant/kv_format.h"

namespace kvasir {

struct KvPair {
  KvType k = KvType::kF16;
  KvType v = KvType::kF16;
  friend bool operator==(const KvPair&, const KvPair&) = default;
};

std::string KvPairName(KvPair pair);  // "i8", or "i8/i4": K, then V
// "i8", "i8/i4", and the short names k8v8, k8v4, k4v4. kInvalidArgument naming `field`.
Result<KvPair> ParseKvPair(std::string_view text, std::string_view field);

// Rises whenever the bytes that a format stores for given K and V, or what attention computes from
// them, change: certificates of another version no longer count. A test keeps a digest of what each
// format computes beside it.
int KvFormatVersion(KvType type);

// The layout of the pair for a model; fails where the pair is not served, as KvLayout::Make says.
Result<KvLayout> MakeKvLayout(const ModelConfig& config, KvPair pair, int block_tokens);

// What `certify` looks at unless told otherwise: of i8, i8/i4, i4 and fp8_e4m3 those that are
// served for the model; bf16 if none is.
std::vector<KvPair> PairsWorthHaving(const ModelConfig& config);

}  // namespace kvasir
