// Which kernels a call of attention runs on, and what it may be asked.
#include <bit>

#include "base/check.h"
#include "kernels/attention_int.h"
#include "kernels/attention_kernels.h"
#include "kernels/isa.h"

namespace kvasir {

namespace internal {

const AttentionKernels& CurrentAttention() {
  switch (CurrentIsa()) {
    case Isa::kAmx:
    case Isa::kAvx512:
      return Avx512Attention();
    case Isa::kAvx2:
      return Avx2Attention();
    case Isa::kPortable:
      break;
  }
  return PortableAttention();
}

void CheckPagedKv(const PagedKv& kv) {
  KVASIR_CHECK(kv.base != nullptr);
  KVASIR_CHECK(kv.block_tokens >= 8 && kv.block_tokens <= kAttentionSpan);
  KVASIR_CHECK(std::has_single_bit(static_cast<unsigned>(kv.block_tokens)));
  KVASIR_CHECK(kv.kv_heads > 0 && kv.k_dim > 0 && kv.v_dim > 0);
  KVASIR_CHECK(KvPairServed(kv.k_type, kv.v_type));
  if (!KvTypeIsInteger(kv.k_type)) return;
  KVASIR_CHECK(kv.k_dim <= kIntDimMax && kv.v_dim <= kIntDimMax);
  const auto channels = static_cast<size_t>(kv.kv_heads) * static_cast<size_t>(kv.k_dim);
  KVASIR_CHECK(kv.k_centre.empty() || kv.k_centre.size() == channels);
  KVASIR_CHECK(kv.k_balance.empty() || kv.k_balance.size() == channels);
}

void CheckSequence(const AttentionSpanOfSequence& sequence) {
  KVASIR_CHECK(sequence.position >= 0 && sequence.tokens >= 0 && sequence.row >= 0);
  KVASIR_CHECK(sequence.tokens == 0 || sequence.block_table != nullptr);
}

}  // namespace internal

}  // namespace kvasir
