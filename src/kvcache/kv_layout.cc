#include "kvcache/kv_layout.h"

#include <bit>
#include <cstdio>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr size_t kAlignment = 64;
// A head wider than this, or more heads, is no model we know: it keeps every product below far from
// overflow.
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 4096;
constexpr int kMaxIntegerDim = 1024;  // of the kernels for i8 and i4

size_t AlignUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

const char* KindName(LayerCacheKind kind) {
  switch (kind) {
    case LayerCacheKind::kFull:
      return "full";
    case LayerCacheKind::kWindow:
      return "window";
    case LayerCacheKind::kChunked:
      return "chunked";
    case LayerCacheKind::kLatent:
      return "latent";
    case LayerCacheKind::kShared:
      return "shared";
    case LayerCacheKind::kRecurrent:
      return "recurrent";
  }
  return "unknown";
}

std::string LayerText(size_t layer) {
  return "layer " + std::to_string(layer);
}

Status CheckLayer(const LayerKv& spec, size_t layer) {
  if (spec.kind != LayerCacheKind::kFull) {
    return Unimplemented(LayerText(layer) + ": cache kind '" + KindName(spec.kind) +
                         "' is not served; served: full");
  }
  const auto check = [&](const char* name, int value, int limit) -> Status {
    if (value >= 1 && value <= limit) return Status::Ok();
    return InvalidArgument(LayerText(layer) + ": " + name + " is " + std::to_string(value) +
                           ", must be 1 to " + std::to_string(limit));
  };
  KVASIR_RETURN_IF_ERROR(check("kv_heads", spec.kv_heads, kMaxHeads));
  KVASIR_RETURN_IF_ERROR(check("k_dim", spec.k_dim, kMaxHeadDim));
  return check("v_dim", spec.v_dim, kMaxHeadDim);
}

Status CheckPair(const LayerKv& spec, KvType k_type, KvType v_type, size_t layer) {
  const std::string pair = LayerText(layer) + ": K in " + std::string(KvTypeName(k_type)) +
                           " with V in " + std::string(KvTypeName(v_type));
  if (!KvPairServed(k_type, v_type)) {
    return Unimplemented(pair + " is not served; served are " + KvPairsServedList());
  }
  const int dim = spec.k_dim > spec.v_dim ? spec.k_dim : spec.v_dim;
  if (KvTypeIsInteger(k_type) && dim > kMaxIntegerDim) {
    return Unimplemented(pair + " is served for heads of at most " +
                         std::to_string(kMaxIntegerDim) + " channels, this one has " +
                         std::to_string(dim));
  }
  return Status::Ok();
}

bool SameShape(const LayerSlot& a, const LayerSlot& b) {
  return a.spec.kind == b.spec.kind && a.spec.kv_heads == b.spec.kv_heads &&
         a.spec.k_dim == b.spec.k_dim && a.spec.v_dim == b.spec.v_dim && a.k_type == b.k_type &&
         a.v_type == b.v_type;
}

}  // namespace

Result<KvLayout> KvLayout::Make(std::span<const LayerKv> layers, int block_tokens, KvType k_type,
                                KvType v_type) {
  return Make(layers, block_tokens, std::vector<KvPair>(layers.size(), {k_type, v_type}));
}

Result<KvLayout> KvLayout::Make(std::span<const LayerKv> layers, int block_tokens,
                                std::span<const KvPair> types) {
  KVASIR_CHECK(types.size() == layers.size());
  if (block_tokens < 8 || block_tokens > 256 ||
      !std::has_single_bit(static_cast<unsigned>(block_tokens))) {
    return InvalidArgument("block size is " + std::to_string(block_tokens) +
                               " tokens, must be a power of two from 8 to 256",
                           "--block-size");
  }
  if (layers.empty()) return InvalidArgument("a KV layout needs at least one layer");

  KvLayout layout;
  layout.block_tokens_ = block_tokens;
  layout.layers_.reserve(layers.size());
  size_t offset = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerKv& spec = layers[i];
    const auto [k_type, v_type] = types[i];
    KVASIR_RETURN_IF_ERROR(CheckLayer(spec, i));
    KVASIR_RETURN_IF_ERROR(CheckPair(spec, k_type, v_type, i));
    LayerSlot slot;
    slot.spec = spec;
    slot.k_type = k_type;
    slot.v_type = v_type;
    const auto heads = static_cast<size_t>(spec.kv_heads);
    slot.k_bytes = heads * KvKeyPlane(k_type, block_tokens, spec.k_dim).head();
    slot.v_bytes = heads * KvValuePlane(v_type, block_tokens, spec.v_dim).head();
    slot.k_offset = offset;
    offset = AlignUp(offset + slot.k_bytes);
    slot.v_offset = offset;
    offset = AlignUp(offset + slot.v_bytes);
    bytes += slot.k_bytes + slot.v_bytes;
    layout.layers_.push_back(slot);
  }
  layout.block_bytes_ = offset;
  layout.bytes_per_token_ = static_cast<double>(bytes) / block_tokens;
  return layout;
}

std::string KvLayout::Describe() const {
  std::string text;
  for (size_t first = 0; first < layers_.size();) {
    size_t last = first;
    while (last + 1 < layers_.size() && SameShape(layers_[first], layers_[last + 1])) ++last;
    const LayerSlot& slot = layers_[first];
    char line[200];
    std::snprintf(line, sizeof(line),
                  "layers %zu-%zu: %s, %d KV heads, K %d x %.*s, V %d x %.*s, %zu bytes a block\n",
                  first, last, KindName(slot.spec.kind), slot.spec.kv_heads, slot.spec.k_dim,
                  static_cast<int>(KvTypeName(slot.k_type).size()), KvTypeName(slot.k_type).data(),
                  slot.spec.v_dim, static_cast<int>(KvTypeName(slot.v_type).size()),
                  KvTypeName(slot.v_type).data(),
                  (last - first + 1) * (slot.k_bytes + slot.v_bytes));
    text += line;
    first = last + 1;
  }
  return text;
}

}  // namespace kvasir
