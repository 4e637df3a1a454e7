#include "kernels/attention_fp8.h"

#include <cstring>

#include "kernels/isa.h"
#include "quant/float16.h"

namespace kvasir::internal {
namespace {

void LoadScales(KvType type, const std::byte* at, int tokens, float* scales) {
  for (int t = 0; t < tokens; ++t) {
    scales[t] = 1.0F;
    if (type != KvType::kFp8E4M3) continue;
    uint16_t h;
    std::memcpy(&h, at + static_cast<size_t>(t) * sizeof(h), sizeof(h));
    scales[t] = F16ToF32(h);
  }
}

const Fp8Kernels& CurrentFp8() {
  switch (CurrentIsa()) {
    case Isa::kAmx:
    case Isa::kAvx512:
      return Avx512Fp8();
    case Isa::kAvx2:
      return Avx2Fp8();
    case Isa::kPortable:
      break;
  }
  return PortableFp8();
}

}  // namespace

void WidenSpan(const PagedKv& kv, SpanRows& in, float* scratch) {
  const Fp8Kernels& kernels = CurrentFp8();
  float scales[kAttentionSpan];
  const int tokens = kv.block_tokens;
  const size_t k_floats = static_cast<size_t>(tokens) * static_cast<size_t>(kv.k_dim);
  const size_t v_floats = static_cast<size_t>(tokens) * static_cast<size_t>(kv.v_dim);
  for (int i = 0; i < in.blocks && IsFp8(kv.k_type); ++i, scratch += k_floats) {
    LoadScales(kv.k_type, in.k[i] + in.k_scales, tokens, scales);
    const Fp8Kernels::Widen widen = kernels.keys[kv.k_type == KvType::kFp8E4M3 ? 0 : 1];
    widen(in.k[i], scales, tokens, kv.k_dim, scratch);
    in.k[i] = in.k_ahead[i] = reinterpret_cast<const std::byte*>(scratch);
  }
  for (int i = 0; i < in.blocks && IsFp8(kv.v_type); ++i, scratch += v_floats) {
    LoadScales(kv.v_type, in.v[i] + in.v_scales, tokens, scales);
    const Fp8Kernels::Widen widen = kernels.values[kv.v_type == KvType::kFp8E4M3 ? 0 : 1];
    widen(in.v[i], scales, tokens, kv.v_dim, scratch);
    in.v[i] = in.v_ahead[i] = reinterpret_cast<const std::byte*>(scratch);
  }
}

}  // namespace kvasir::internal
