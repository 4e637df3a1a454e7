// Which format each layer's K (or V) has: one for all, with exceptions by layer.
//
//   i4                                every layer
//   i4,layers=0-1:i8,-2--1:i8         the first two and the last two in i8
//
// Layers count from 0; negative ones from the end (-1 is the last). `A-B` includes both, `A` alone
// is one layer. No layer may be given two different formats.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "quant/kv_format.h"

namespace kvasir {

struct KvTypeSpec {
  struct Part {
    int first = 0;
    int last = 0;
    KvType type = KvType::kF16;
  };
  KvType type = KvType::kF16;
  std::vector<Part> parts;

  std::string Text() const;  // canonical names: "i4,layers=0-1:i8"
  // One per layer. Parts outside the model and layers of two formats are errors that begin `field`.
  Result<std::vector<KvType>> Layers(int layers, std::string_view field) const;
};

// field: the flag, for messages. Unknown formats and malformed parts are errors.
Result<KvTypeSpec> ParseKvTypeSpec(std::string_view text, std::string_view field);

// K and V of every layer; a pair without kernels is an error that names the first such layer and
// lists what works. The field of an error is "K" or "V"; the flag behind it only the caller knows.
struct KvPair {
  KvType k = KvType::kF16;
  KvType v = KvType::kF16;
  bool operator==(const KvPair&) const = default;
};
Result<std::vector<KvPair>> ResolveKvTypes(const KvTypeSpec& k, const KvTypeSpec& v, int layers);

}  // namespace kvasir
