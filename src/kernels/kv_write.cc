// Writing K and V into the cache. V of a token is contiguous; K is spread over its tile, one
// element per channel, after the conversion of the whole row.
#include <cstring>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/attention_kernels.h"

namespace kvasir {
namespace {

using internal::AttentionKernels;

constexpr int kStageElements = 64;          // channels converted at a time
constexpr size_t kElementsPerPart = 16384;  // below this a second thread costs more than it saves

template <typename T>
void Scatter(const std::byte* from, std::byte* to, size_t stride_elements, int n) {
  for (int i = 0; i < n; ++i) {
    std::memcpy(to + static_cast<size_t>(i) * stride_elements * sizeof(T),
                from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  }
}

class Writer {
 public:
  Writer(const PagedKv& kv, const float* k, size_t ldk, const float* v, size_t ldv)
      : kv_(kv),
        k_(k),
        v_(v),
        ldk_(ldk),
        ldv_(ldv),
        k_bytes_(internal::KvElementBytes(kv.k_type)),
        v_bytes_(internal::KvElementBytes(kv.v_type)),
        kernels_(internal::CurrentAttention()) {}

  void Token(const AttentionSpanOfSequence& sequence, int token) const {
    const int position = sequence.position + token;
    const auto row = static_cast<size_t>(sequence.row + token);
    const int in_block = position % kv_.block_tokens;
    const int32_t number = sequence.block_table[position / kv_.block_tokens];
    KVASIR_DCHECK(number >= 0);
    std::byte* block = kv_.base + static_cast<size_t>(number) * kv_.block_stride;
    for (int head = 0; head < kv_.kv_heads; ++head) {
      Key(block + kv_.k_offset, head, in_block, k_ + row * ldk_);
      Value(block + kv_.v_offset, head, in_block, v_ + row * ldv_);
    }
  }

 private:
  void Key(std::byte* keys, int head, int in_block, const float* row) const {
    const float* in = row + static_cast<size_t>(head) * static_cast<size_t>(kv_.k_dim);
    const size_t head_elements =
        static_cast<size_t>(kv_.block_tokens) * static_cast<size_t>(kv_.k_dim);
    const size_t first = KvKeyIndex(kv_.block_tokens, kv_.k_dim, in_block, 0);
    const auto stride =
        static_cast<size_t>(kv_.block_tokens < kKvTileTokens ? kv_.block_tokens : kKvTileTokens);
    std::byte* out = keys + (static_cast<size_t>(head) * head_elements + first) * k_bytes_;
    alignas(64) std::byte stage[kStageElements * sizeof(float)];
    for (int c = 0; c < kv_.k_dim; c += kStageElements) {
      const int n = kv_.k_dim - c < kStageElements ? kv_.k_dim - c : kStageElements;
      kernels_.store(kv_.k_type, in + c, stage, static_cast<size_t>(n));
      std::byte* to = out + static_cast<size_t>(c) * stride * k_bytes_;
      if (k_bytes_ == 4) {
        Scatter<uint32_t>(stage, to, stride, n);
      } else {
        Scatter<uint16_t>(stage, to, stride, n);
      }
    }
  }

  void Value(std::byte* values, int head, int in_block, const float* row) const {
    const auto dim = static_cast<size_t>(kv_.v_dim);
    const size_t token = static_cast<size_t>(head) * static_cast<size_t>(kv_.block_tokens) +
                         static_cast<size_t>(in_block);
    kernels_.store(kv_.v_type, row + static_cast<size_t>(head) * dim,
                   values + token * dim * v_bytes_, dim);
  }

  const PagedKv& kv_;
  const float* k_;
  const float* v_;
  size_t ldk_, ldv_;
  size_t k_bytes_, v_bytes_;
  const AttentionKernels& kernels_;
};

}  // namespace

void WriteKv(const PagedKv& kv, std::span<const AttentionSpanOfSequence> sequences, const float* k,
             size_t ldk, const float* v, size_t ldv, Executor& executor) {
  internal::CheckPagedKv(kv);
  size_t total = 0;
  for (const AttentionSpanOfSequence& sequence : sequences) {
    internal::CheckSequence(sequence);
    total += static_cast<size_t>(sequence.tokens);
  }
  const Writer writer(kv, k, ldk, v, ldv);
  // Tokens [first, last) of all sequences laid end to end.
  auto range = [&](size_t first, size_t last) {
    size_t begin = 0;
    for (const AttentionSpanOfSequence& sequence : sequences) {
      const auto tokens = static_cast<size_t>(sequence.tokens);
      for (size_t t = first > begin ? first - begin : 0; t < tokens && begin + t < last; ++t) {
        writer.Token(sequence, static_cast<int>(t));
      }
      begin += tokens;
      if (begin >= last) return;
    }
  };
  const size_t per_token =
      static_cast<size_t>(kv.kv_heads) * static_cast<size_t>(kv.k_dim + kv.v_dim);
  const size_t step = (kElementsPerPart + per_token - 1) / per_token;
  const size_t parts = (total + step - 1) / step;
  if (parts <= 1) {
    range(0, total);
    return;
  }
  executor.ParallelFor(parts, [&](size_t part, int) {
    const size_t last = (part + 1) * step;
    range(part * step, last < total ? last : total);
  });
}

}  // namespace kvasir
