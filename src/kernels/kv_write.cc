// Writing K and V into the cache. A row is brought to the form of its format as a whole, then
// spread over its tile.
#include <cstring>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/attention_fp8.h"
#include "kernels/attention_int.h"
#include "kernels/attention_kernels.h"
#include "quant/kv_codec.h"

namespace kvasir {
namespace {

using internal::AttentionKernels;
using internal::IntKernels;
using internal::kIntDimMax;

constexpr int kFp8DimMax = 4096;            // KvLayout refuses wider heads
constexpr int kStageElements = 64;          // channels converted at a time
constexpr size_t kElementsPerPart = 16384;  // below this a second thread costs more than it saves

template <typename T>
void Scatter(const std::byte* from, std::byte* to, size_t stride_elements, int n) {
  for (int i = 0; i < n; ++i) {
    std::memcpy(to + static_cast<size_t>(i) * stride_elements * sizeof(T),
                from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  }
}

// Where one token of one head goes: its head's codes and scales inside a block.
struct Place {
  std::byte* codes;
  std::byte* scales;
  int in_block;
};

class Writer {
 public:
  Writer(const PagedKv& kv, const float* k, size_t ldk, const float* v, size_t ldv)
      : kv_(kv),
        k_(k),
        v_(v),
        ldk_(ldk),
        ldv_(ldv),
        k_plane_(KvKeyPlane(kv.k_type, kv.block_tokens, kv.k_dim)),
        v_plane_(KvValuePlane(kv.v_type, kv.block_tokens, kv.v_dim)),
        kernels_(internal::CurrentAttention()),
        codecs_(internal::CurrentInt()) {}

  void Token(const AttentionSpanOfSequence& sequence, int token) const {
    const int position = sequence.position + token;
    const auto row = static_cast<size_t>(sequence.row + token);
    const int in_block = position % kv_.block_tokens;
    const int32_t number = sequence.block_table[position / kv_.block_tokens];
    KVASIR_DCHECK(number >= 0);
    std::byte* block = kv_.base + static_cast<size_t>(number) * kv_.block_stride;
    for (int head = 0; head < kv_.kv_heads; ++head) {
      const float* k = k_ + row * ldk_ + static_cast<size_t>(head) * static_cast<size_t>(kv_.k_dim);
      const float* v = v_ + row * ldv_ + static_cast<size_t>(head) * static_cast<size_t>(kv_.v_dim);
      const Place key = PlaceOf(block + kv_.k_offset, k_plane_, head, in_block);
      const Place value = PlaceOf(block + kv_.v_offset, v_plane_, head, in_block);
      if (KvTypeIsInteger(kv_.k_type)) {
        IntKey(key, head, k);
        IntValue(value, v);
        continue;
      }
      internal::IsFp8(kv_.k_type) ? Fp8Key(key, k) : Key(key, k);
      internal::IsFp8(kv_.v_type) ? Fp8Value(value, v) : Value(value, v);
    }
  }

 private:
  Place PlaceOf(std::byte* plane, const KvPlane& bytes, int head, int in_block) const {
    const auto h = static_cast<size_t>(head);
    return {plane + h * bytes.codes,
            plane + static_cast<size_t>(kv_.kv_heads) * bytes.codes + h * bytes.scales, in_block};
  }
  void PutScale(const Place& at, int group, uint16_t scale) const {
    const auto index = static_cast<size_t>(group * kv_.block_tokens + at.in_block);
    std::memcpy(at.scales + index * sizeof(scale), &scale, sizeof(scale));
  }

  void Key(const Place& at, const float* in) const {
    const size_t bytes = KvElementBytes(kv_.k_type);
    const size_t first = KvKeyIndex(kv_.block_tokens, kv_.k_dim, at.in_block, 0);
    const auto stride = static_cast<size_t>(KvTile(kv_.block_tokens));
    alignas(64) std::byte stage[kStageElements * sizeof(float)];
    for (int c = 0; c < kv_.k_dim; c += kStageElements) {
      const int n = kv_.k_dim - c < kStageElements ? kv_.k_dim - c : kStageElements;
      kernels_.store(kv_.k_type, in + c, stage, static_cast<size_t>(n));
      std::byte* to = at.codes + (first + static_cast<size_t>(c) * stride) * bytes;
      if (bytes == 4) {
        Scatter<uint32_t>(stage, to, stride, n);
      } else {
        Scatter<uint16_t>(stage, to, stride, n);
      }
    }
  }

  void Value(const Place& at, const float* in) const {
    const auto dim = static_cast<size_t>(kv_.v_dim);
    kernels_.store(kv_.v_type, in,
                   at.codes + static_cast<size_t>(at.in_block) * dim * KvElementBytes(kv_.v_type),
                   dim);
  }

  // Codes of a row; e4m3 also its scale.
  void Fp8Codes(KvType type, const float* in, int dim, uint8_t* codes, const Place& at) const {
    if (type == KvType::kFp8E4M3) {
      PutScale(at, 0, EncodeE4M3(in, dim, codes));
      return;
    }
    for (int c = 0; c < dim; ++c) codes[c] = F32ToE5M2(in[c]);
  }

  void Fp8Key(const Place& at, const float* in) const {
    uint8_t codes[kFp8DimMax];
    Fp8Codes(kv_.k_type, in, kv_.k_dim, codes, at);
    std::byte* to = at.codes + KvKeyIndex(kv_.block_tokens, kv_.k_dim, at.in_block, 0);
    const int stride = KvTile(kv_.block_tokens);
    for (int c = 0; c < kv_.k_dim; ++c) to[c * stride] = std::byte{codes[c]};
  }

  void Fp8Value(const Place& at, const float* in) const {
    uint8_t codes[kFp8DimMax];
    Fp8Codes(kv_.v_type, in, kv_.v_dim, codes, at);
    std::memcpy(at.codes + KvValueIndex(kv_.v_dim, at.in_block, 0), codes,
                static_cast<size_t>(kv_.v_dim));
  }

  void IntKey(const Place& at, int head, const float* in) const {
    alignas(64) float x[kIntDimMax];
    const int dim = kv_.k_dim;
    const auto first = static_cast<size_t>(head) * static_cast<size_t>(dim);
    std::memcpy(x, in, static_cast<size_t>(dim) * sizeof(float));
    if (!kv_.k_centre.empty()) {
      const float* centre = kv_.k_centre.data() + first;
      for (int c = 0; c < dim; ++c) x[c] -= centre[c];
    }
    if (!kv_.k_balance.empty()) {
      const float* balance = kv_.k_balance.data() + first;
      for (int c = 0; c < dim; ++c) x[c] /= balance[c];
    }
    codecs_.rotate(x, dim);
    alignas(64) uint8_t codes[kIntDimMax + 32];
    Encode(kv_.k_type, x, dim, codes, at);
    const bool halves = kv_.k_type == KvType::kI4;
    const int channels = halves ? 8 : 4;  // of a line
    const int padded = (dim + channels - 1) / channels * channels;
    for (int c = dim; c < padded; ++c) codes[c] = 0;
    const auto line = static_cast<size_t>(KvTile(kv_.block_tokens)) * 4;
    std::byte* to = at.codes + KvKeyCode(kv_.k_type, kv_.block_tokens, dim, at.in_block, 0).byte;
    for (int c = 0; c < padded; c += channels, to += line) {
      uint8_t four[4];
      for (int i = 0; i < 4; ++i) {
        four[i] = static_cast<uint8_t>(halves ? codes[c + i] | codes[c + 4 + i] << 4
                                              : codes[c + i] ^ 0x80);
      }
      std::memcpy(to, four, sizeof(four));
    }
  }

  void IntValue(const Place& at, const float* in) const {
    alignas(64) float x[kIntDimMax];
    const int dim = kv_.v_dim;
    std::memcpy(x, in, static_cast<size_t>(dim) * sizeof(float));
    codecs_.rotate(x, dim);
    alignas(64) uint8_t codes[kIntDimMax + 32];
    Encode(kv_.v_type, x, dim, codes, at);
    std::byte* to = at.codes + KvValueCode(kv_.v_type, dim, at.in_block, 0).byte;
    if (kv_.v_type == KvType::kI8) {
      for (int c = 0; c < dim; ++c) to[static_cast<size_t>(c) * 4] = std::byte{codes[c]};
      return;
    }
    for (int group = 0; group < dim; group += kKvI4Group) {
      const int n = dim - group < kKvI4Group ? dim - group : kKvI4Group;
      const int half = (n + 1) / 2;
      if (n % 2 != 0) codes[group + n] = 0;
      for (int c = 0; c < half; ++c, to += 4) {
        *to = static_cast<std::byte>(codes[group + c] | codes[group + half + c] << 4);
      }
    }
  }

  // Codes of a rotated row, its scales put in place. codes: room for 32 more.
  void Encode(KvType type, const float* x, int dim, uint8_t* codes, const Place& at) const {
    if (type == KvType::kI8) {
      PutScale(at, 0, codecs_.encode_i8(x, dim, reinterpret_cast<int8_t*>(codes)));
      return;
    }
    for (int c = 0; c < dim; c += kKvI4Group) {
      const int n = dim - c < kKvI4Group ? dim - c : kKvI4Group;
      PutScale(at, c / kKvI4Group, codecs_.encode_i4(x + c, n, codes + c));
    }
  }

  const PagedKv& kv_;
  const float* k_;
  const float* v_;
  size_t ldk_, ldv_;
  KvPlane k_plane_, v_plane_;
  const AttentionKernels& kernels_;
  const IntKernels& codecs_;
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
