// Weighted sums of values in i8 and i4 by tile products, for up to 16 rows. Only for
// attention_int_amx.cc.
#pragma once

#include "kernels/attention_tile_scores_inl.h"

namespace kvasir::internal {
namespace {

// The weights of all rows and tokens, 64 bytes of each row after 64 bytes.
struct WeightRows {
  alignas(64) uint8_t codes[kMostRows][kAttentionSpan];
  alignas(16) float scales[kMostRows][kAttentionSpan / kIntSubSpan];
};

// The largest lane of each of four vectors: vector i's in all lanes of part i.
__m512i LargestOfFour(const __m512i (&x)[4]) {
  const auto max_pair = [](__m512i a, __m512i b) {
    return _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
  };
  __m512i m = max_pair(max_pair(x[0], x[1]), max_pair(x[2], x[3]));
  m = _mm512_max_epu32(m, _mm512_shuffle_epi32(m, _MM_PERM_BADC));
  return _mm512_max_epu32(m, _mm512_shuffle_epi32(m, _MM_PERM_CDAB));
}

// QuantizeWeights (attention_int_inl.h) for four times 64 tokens of a row at once: one chain of
// reductions and divisions instead of four. kWhole: the row sees all of them.
template <KvType kType, bool kWhole>
void QuantizeRow(const float* p, const float* value_scales, int visible, uint8_t* codes,
                 float* scales) {
  constexpr float kMost = kType == KvType::kI8 ? 255.0F : 127.0F;
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  __m512 w[16];
  __m512i bits[4];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    w[i] = _mm512_mul_ps(_mm512_loadu_ps(p + i * 16), _mm512_load_ps(value_scales + i * 16));
    if constexpr (!kWhole) w[i] = V::KeepFirst(w[i], visible - i * 16, _mm512_setzero_ps());
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(w[i]), magnitude);
    bits[i / 4] = i % 4 == 0 ? size : _mm512_max_epu32(bits[i / 4], size);
  }
  const __m512i most = LargestOfFour(bits);
  const __m128i four = _mm512_castsi512_si128(_mm512_permutexvar_epi32(
      _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0), most));
  const __m128 max = _mm_castsi128_ps(four);
  const __mmask8 bad = _mm_cmpge_epu32_mask(four, _mm_set1_epi32(static_cast<int>(kInfinityBits)));
  const auto some =
      static_cast<__mmask8>(~bad & _mm_cmp_ps_mask(max, _mm_set1_ps(kIntSmallest), _CMP_GE_OQ));
  const __m128 most_code = _mm_set1_ps(kMost);
  const __m128 inverse = _mm_maskz_div_ps(some, most_code, max);
  const __m128 scale = _mm_maskz_div_ps(some, max, most_code);
  _mm_store_ps(scales, _mm_mask_mov_ps(scale, bad, _mm_set1_ps(__builtin_nanf(""))));
  // Bytes of four vectors, in order.
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
#pragma GCC unroll 4
  for (int s = 0; s < 4; ++s) {
    const __m512 factor = _mm512_broadcastss_ps(_mm_permutevar_ps(inverse, _mm_set1_epi32(s)));
    const __mmask16 keep = (bad >> s & 1) != 0 ? 0 : 0xFFFF;
    __m512i code[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      code[i] = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(w[s * 4 + i], factor));
    }
    const __m512i a = _mm512_packs_epi32(code[0], code[1]);
    const __m512i b = _mm512_packs_epi32(code[2], code[3]);
    const __m512i bytes =
        kType == KvType::kI8 ? _mm512_packus_epi16(a, b) : _mm512_packs_epi16(a, b);
    _mm512_store_si512(codes + s * kIntSubSpan, _mm512_permutexvar_epi32(order, bytes));
  }
}

template <KvType kType>
void QuantizeRows(const SpanRows& in, const float* value_scales, WeightRows& weights) {
  for (int r = 0; r < in.rows; ++r) {
    const bool whole = in.visible[r] >= kAttentionSpan;
    const auto quantize = whole ? QuantizeRow<kType, true> : QuantizeRow<kType, false>;
    quantize(in.scores + r * kAttentionSpan, value_scales, in.visible[r], weights.codes[r],
             weights.scales[r]);
  }
}

// Values, by 64 tokens. A unit of work is a product of the rows' weights with 16 channels; its sums
// are computed while those of the unit before are folded.
class TileValues {
 public:
  explicit TileValues(const SpanRows& in)
      : in_(in),
        seen_(in.visible[in.rows - 1]),
        subs_((seen_ + kIntSubSpan - 1) / kIntSubSpan),
        shift_(__builtin_ctz(static_cast<unsigned>(in.block_tokens)) - 2) {}

  void Run() {
    LoadTileConfig(ConfigFor(in_.rows, 64));
    if (in_.v_type == KvType::kI8) {
      RunI8();
    } else {
      RunI4();
    }
  }

 private:
  // V of `tiles` times 16 channels and the tokens of a sub-span, 16 quads of tokens to a tile. kI4:
  // of a group of 32, whose two halves become two tiles.
  template <KvType kType>
  void Unpack(int sub, size_t quad_bytes, size_t first, size_t bytes, std::byte* out) {
    const int left_quads = (seen_ + 3) / 4 - sub * kSubQuads;
    const int quads = left_quads < kSubQuads ? left_quads : kSubQuads;
    const __m512i table = SignedTable();
    for (int i = 0; i < quads; ++i, out += 64) {
      const int quad = sub * kSubQuads + i;
      const std::byte* v = ValueQuad(in_, quad, shift_, quad_bytes) + first;
      const ptrdiff_t soon = BlockAhead(in_, quad >> shift_);
      const ptrdiff_t later = in_.v_ahead[quad >> shift_] - in_.v[quad >> shift_];
      for (size_t at = 0; at < bytes; at += 64) {
        if (later != 0) {
          FetchSoon(v + soon + at);
          FetchLater(v + later + at);
        }
        const auto left = static_cast<int>((bytes - at) / 4);
        const __m512i codes =
            left >= 16 ? _mm512_loadu_si512(v + at) : V::LoadValuePart(v + at, left);
        if constexpr (kType == KvType::kI8) {
          _mm512_store_si512(out + at * 16, codes);
        } else {
          __m512i halves[2];
          SignedHalves(table, codes, halves);
          _mm512_store_si512(out, halves[0]);
          _mm512_store_si512(out + kTileBytes, halves[1]);
        }
      }
    }
    for (int i = quads; i < kSubQuads; ++i, out += 64) {  // times nothing
      for (size_t at = 0; at < (kType == KvType::kI8 ? bytes : size_t{128}); at += 64) {
        _mm512_store_si512(out + at * 16, _mm512_setzero_si512());
      }
    }
    MemoryIsWritten();
  }

  // acc[channels of the tile] = fma(sums, scale, acc) for each row; `most` of them.
  void Fold(int sub, const int32_t* sums, int channel, __mmask16 most) {
    for (int r = 0; r < in_.rows; ++r) {
      if (in_.visible[r] <= 0) continue;
      float* to = in_.acc + static_cast<size_t>(r) * in_.acc_stride + channel;
      const __m512i sum = _mm512_load_si512(sums + r * 16);
      const __m512 before = sub == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(most, to);
      const __m512 scale = _mm512_set1_ps(weights_.scales[r][sub]);
      _mm512_mask_storeu_ps(to, most, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, before));
    }
  }

  void RunI8() {
    LoadValueScales<V>(in_, 0, seen_, scales_);
    QuantizeRows<KvType::kI8>(in_, scales_, weights_);
    MemoryIsWritten();
    const int tiles = (in_.v_dim + 15) / 16;
    const auto quad_bytes = static_cast<size_t>(in_.v_dim) * 4;
    int before = -1;  // unit whose sums are still to be folded
    Unpack<KvType::kI8>(0, quad_bytes, 0, quad_bytes, codes_[0]);
    for (int sub = 0; sub < subs_; ++sub) {
      const std::byte* codes = codes_[sub % 2];
      if (sub + 1 < subs_) {
        Unpack<KvType::kI8>(sub + 1, quad_bytes, 0, quad_bytes, codes_[(sub + 1) % 2]);
      }
      _tile_loadd(4, weights_.codes[0] + sub * kIntSubSpan, kAttentionSpan);
      for (int tile = 0; tile < tiles; ++tile) {
        const int unit = sub * tiles + tile;
        _tile_zero(0);
        _tile_loadd(2, codes + tile * kTileBytes, 64);
        _tile_dpbusd(0, 4, 2);
        _tile_stored(0, sums_[unit % 2], 64);
        MemoryIsWritten();
        if (before >= 0) FoldI8(before, tiles);
        before = unit;
      }
    }
    FoldI8(before, tiles);
  }
  void FoldI8(int unit, int tiles) {
    Fold(unit / tiles, sums_[unit % 2], unit % tiles * 16, 0xFFFF);
  }

  void RunI4() {
    for (int r = 0; r < in_.rows; ++r) {  // padding that is folded but never seen
      if (in_.visible[r] <= 0) continue;
      float* acc = in_.acc + static_cast<size_t>(r) * in_.acc_stride;
      for (auto c = static_cast<size_t>(in_.v_dim); c < in_.acc_stride; ++c) acc[c] = 0;
    }
    const auto quad_bytes =
        static_cast<size_t>(in_.v_dim / kKvI4Group * 16 + (in_.v_dim % kKvI4Group + 1) / 2) * 4;
    for (int g = 0; g * kKvI4Group < in_.v_dim; ++g) {
      LoadValueScales<V>(in_, g, seen_, scales_);
      QuantizeRows<KvType::kI4>(in_, scales_, weights_);
      MemoryIsWritten();
      const int rest = in_.v_dim - g * kKvI4Group;
      const int channels = rest < kKvI4Group ? rest : kKvI4Group;
      const auto bytes = static_cast<size_t>((channels + 1) / 2) * 4;
      const size_t from = static_cast<size_t>(g) * 64;
      Unpack<KvType::kI4>(0, quad_bytes, from, bytes, codes_[0]);
      for (int sub = 0; sub < subs_; ++sub) {
        const std::byte* codes = codes_[sub % 2];
        if (sub + 1 < subs_) {
          Unpack<KvType::kI4>(sub + 1, quad_bytes, from, bytes, codes_[(sub + 1) % 2]);
        }
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(4, weights_.codes[0] + sub * kIntSubSpan, kAttentionSpan);
        _tile_loadd(2, codes, 64);
        _tile_loadd(3, codes + kTileBytes, 64);
        _tile_dpbssd(0, 4, 2);
        _tile_dpbssd(1, 4, 3);
        _tile_stored(0, sums_[sub % 2], 64);
        _tile_stored(1, sums_[sub % 2] + kSums, 64);
        MemoryIsWritten();
        if (sub > 0) FoldI4(sub - 1, g, channels);
      }
      FoldI4(subs_ - 1, g, channels);
    }
  }
  void FoldI4(int sub, int group, int channels) {
    const int half = (channels + 1) / 2;
    const auto low = static_cast<__mmask16>((1u << half) - 1);
    const auto high = static_cast<__mmask16>((1u << (channels - half)) - 1);
    const int first = group * kKvI4Group;
    Fold(sub, sums_[sub % 2], first, low);
    Fold(sub, sums_[sub % 2] + kSums, first + half, high);
  }

  const SpanRows& in_;
  int seen_, subs_, shift_;
  WeightRows weights_;
  alignas(64) float scales_[kAttentionSpan] = {};
  alignas(64) std::byte codes_[2][kIntTileDimMax * 64];
  // Not 4 KiB apart: loads of one would wait for stores to the other.
  alignas(64) int32_t sums_[2][2 * kSums + 16];
};

}  // namespace
}  // namespace kvasir::internal
