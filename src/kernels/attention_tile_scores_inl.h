// Scores of up to 16 rows over i8 and i4 by tile products. Only for attention_int_amx.cc, which
// says how rows are laid out.
#pragma once

#include "kernels/amx_tiles_inl.h"
#include "kernels/attention_int_vec16_inl.h"

namespace kvasir::internal {
namespace {

using V = IntVec16;

constexpr int kMostRows = 16;
constexpr int kTileBytes = 1024;
constexpr int kSums = kMostRows * 16;  // of a tile

template <KvType kType>
constexpr int kChunk = kType == KvType::kI8 ? 64 : 32;

// The entries of i4's table as signed bytes: sums of their products need no start.
__m512i SignedTable() {
  return _mm512_xor_si512(V::TableBytes(), _mm512_set1_epi8(static_cast<char>(0x80)));
}
void SignedHalves(__m512i table, __m512i both, __m512i out[2]) {
  const __m512i mask = _mm512_set1_epi8(15);
  out[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(both, mask));
  out[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask));
}

// Tile registers 0 and 1 hold sums, 2 and 3 codes of the cache, 4 to 7 rows.
TileConfig ConfigFor(int rows, int row_bytes) {
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    const bool codes = t == 2 || t == 3;
    c.rows[t] = static_cast<uint8_t>(codes ? row_bytes / 4 : rows);
    c.row_bytes[t] = static_cast<uint16_t>(t < 4 ? 64 : row_bytes);
  }
  return c;
}

// Scores, 16 tokens after 16 tokens. Sums of one step are computed while those of the step before
// become scores.
template <KvType kType, int kChunks>  // kChunks: 1, 2 (rows stay in tile registers), 0 for more
class TileScores {
 public:
  explicit TileScores(const SpanRows& in)
      : in_(in),
        shape_(ShapeOfKeys<kType>(in)),
        chunks_((in.k_dim + kChunk<kType> - 1) / kChunk<kType>),
        groups_(kType == KvType::kI8 ? 1 : chunks_),
        split_(in.block_tokens < kKvTileTokens),
        scales_(in.q + chunks_ * 2 * in.rows * kChunk<kType> / 4),
        start_(reinterpret_cast<const int32_t*>(scales_ + in.rows)) {}

  void Run() {
    LoadTileConfig(ConfigFor(in_.rows, kChunk<kType>));
    if constexpr (kChunks >= 1) {
      _tile_loadd(4, Rows(0, 0), kChunk<kType>);
      _tile_loadd(5, Rows(0, 1), kChunk<kType>);
    }
    if constexpr (kChunks == 2) {
      _tile_loadd(6, Rows(1, 0), kChunk<kType>);
      _tile_loadd(7, Rows(1, 1), kChunk<kType>);
    }
    const int vectors = (in_.visible[in_.rows - 1] + 15) / 16;
    Unpack(0);
    Multiply(0);
    if (vectors > 1) Unpack(1);
    for (int i = 0; i < vectors; ++i) {
      if (i + 1 < vectors) Multiply(i + 1);
      if (i + 2 < vectors) Unpack(i + 2);
      Fold(i);
    }
  }

 private:
  const int8_t* Rows(int chunk, int half) const {
    return reinterpret_cast<const int8_t*>(in_.q) + (chunk * 2 + half) * in_.rows * kChunk<kType>;
  }

  // The codes of 16 tokens as the products want them: where they lie, or unpacked.
  void Unpack(int index) {
    const int block = index * 16 / in_.block_tokens;
    // Else another block of rows has just read them.
    const bool fetch = in_.k_ahead[block] != in_.k[block];
    const KeyAt<V> at =
        fetch ? KeyAhead<V, 1>(in_, shape_, index) : KeyOf<V>(in_, shape_, index * V::kLanes);
    at_[index % 3] = at;
    constexpr int kChannels = kType == KvType::kI8 ? 4 : 8;
    const int lines = shape_.lines;
    const auto line = static_cast<size_t>(split_ ? 8 : 16) * 4;
    if (fetch) {
      for (int l = 0; l < lines; ++l) {
        FetchSoon(at.codes + at.soon + static_cast<size_t>(l) * line);
        FetchLater(at.codes + at.later + static_cast<size_t>(l) * line);
      }
    }
    const __m512i table = SignedTable();
    std::byte* out = codes_[index % 2];
    // Whole tiles of i8 are read in place.
    int l = kType == KvType::kI8 && !split_ ? lines / 16 * 16 : 0;
    for (; l < lines; ++l) {
      const size_t from = static_cast<size_t>(l) * line;
      __m512i key[2];
      if (split_) {
        V::LoadKey<KvType::kI8, true>(at.codes + from, at.more + from, key);
      } else {
        V::LoadKey<KvType::kI8, false>(at.codes + from, nullptr, key);
      }
      if constexpr (kType == KvType::kI4) SignedHalves(table, key[0], key);
      for (int q = 0; q < kChannels / 4; ++q) {
        _mm512_store_si512(out + (l * (kChannels / 4) + q) * 64, key[q]);
      }
    }
    MemoryIsWritten();
  }

  const std::byte* Codes(int index, int chunk) const {
    const bool in_place = kType == KvType::kI8 && !split_ && (chunk + 1) * 64 < in_.k_dim + 4;
    return in_place ? at_[index % 3].codes + chunk * kTileBytes
                    : codes_[index % 2] + chunk * 16 * kChunk<kType>;
  }

  // kSums, kRows, kCodes: tile registers.
  template <int kSum, int kRow, int kCode>
  static void Product() {
    if constexpr (kType == KvType::kI8) {
      asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kRow), "i"(kCode));
    } else {
      asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kRow), "i"(kCode));
    }
  }

  void Store(int32_t* sums) {
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kSums, 64);
  }

  void Multiply(int index) {
    int32_t* sums = sums_[index % 2];
    if constexpr (kChunks >= 1) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_loadd(2, Codes(index, 0), 64);
      Product<0, 4, 2>();
      Product<1, 5, 2>();
      if constexpr (kChunks == 2) {
        if constexpr (kType == KvType::kI4) {
          Store(sums);
          sums += 2 * kSums;
          _tile_zero(0);
          _tile_zero(1);
        }
        _tile_loadd(3, Codes(index, 1), 64);
        Product<0, 6, 3>();
        Product<1, 7, 3>();
      }
      Store(sums);
    } else {
      for (int chunk = 0; chunk < chunks_; ++chunk) {
        if (kType == KvType::kI4 || chunk == 0) {
          _tile_zero(0);
          _tile_zero(1);
        }
        _tile_loadd(2, Codes(index, chunk), 64);
        _tile_loadd(4, Rows(chunk, 0), kChunk<kType>);
        _tile_loadd(5, Rows(chunk, 1), kChunk<kType>);
        Product<0, 4, 2>();
        Product<1, 5, 2>();
        if (kType == KvType::kI4 || chunk + 1 == chunks_) {
          Store(sums);
          sums += 2 * kSums;
        }
      }
    }
    MemoryIsWritten();
  }

  template <int kGroups>
  void FoldGroups(int index, int groups) {
    const KeyAt<V>& at = at_[index % 3];
    const auto group_bytes = static_cast<size_t>(in_.block_tokens) * 2;
    __m512 scale[kGroups == 0 ? kIntTileDimMax / kKvI4Group : kGroups];
    for (int g = 0; g < groups; ++g) {
      const size_t from = static_cast<size_t>(g) * group_bytes;
      scale[g] = split_ ? V::LoadScales<true>(at.scales + from, at.more_scales + from)
                        : V::LoadScales<false>(at.scales + from, nullptr);
    }
    const int32_t* sums = sums_[index % 2];
    float* out = in_.scores + index * 16;
    for (int r = 0; r < in_.rows; ++r, sums += 16, out += kAttentionSpan) {
      __m512 score = _mm512_setzero_ps();
#pragma GCC unroll 2
      for (int g = 0; g < groups; ++g) {
        const __m512i high = _mm512_load_si512(sums + g * 2 * kSums);
        const __m512i low = _mm512_load_si512(sums + g * 2 * kSums + kSums);
        __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
        if constexpr (kType == KvType::kI8) {
          dot = _mm512_add_epi32(dot, _mm512_set1_epi32(start_[r]));
        }
        score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale[g], score);
      }
      _mm512_storeu_ps(out, _mm512_mul_ps(score, _mm512_set1_ps(scales_[r])));
    }
  }
  void Fold(int index) {
    if constexpr (kType == KvType::kI8 || kChunks == 1) {
      FoldGroups<1>(index, 1);
    } else if constexpr (kChunks == 2) {
      FoldGroups<2>(index, 2);
    } else {
      FoldGroups<0>(index, groups_);
    }
  }

  static constexpr int kGroupsMost = kType == KvType::kI8 ? 1
                                     : kChunks == 0       ? kIntTileDimMax / kKvI4Group
                                                          : kChunks;
  const SpanRows& in_;
  const KeyShape shape_;
  int chunks_, groups_;
  bool split_;
  const float* scales_;
  const int32_t* start_;
  KeyAt<V> at_[3];  // of the step that is folded, the one multiplied, the one unpacked
  alignas(64) std::byte codes_[2][kIntTileDimMax * 16];
  // Not 4 KiB apart: loads of one would wait for stores to the other.
  alignas(64) int32_t sums_[2][kGroupsMost * 2 * kSums + 16];
};

}  // namespace
}  // namespace kvasir::internal
