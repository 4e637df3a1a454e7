// More than a few rows on AMX: one instruction multiplies 16 (or the last 8) rows of X with 16
// output rows over a block of 32 columns (Q6_K: over its two halves), the fold is the AVX-512
// path's, line for line, so the bits are the same. The first group of rows unpacks a tile's codes
// for all of them, less the zero point, so that the tile product of signed with signed is the whole
// integer sum. Up to kFewRows that are left take the AVX-512 kernels. Instances of
// MatmulBody<Avx512> in this file may be merged with those of matmul_avx512.cc: tile instructions
// come only from the functions written here.
#include <algorithm>

#include "kernels/amx_tiles_inl.h"
#include "kernels/matmul_inl.h"
#include "kernels/simd_avx512.h"

namespace kvasir::internal {
namespace {

using Body = MatmulBody<Avx512>;

// Tile registers 0 and 1 hold sums of 16 rows, 2 and 3 of 8; 4 activations of 16 rows, 5 of 8; 6
// and 7 codes.
constexpr TileConfig ConfigFor(int columns) {
  TileConfig c;
  for (int t = 0; t < 4; ++t) {
    c.row_bytes[t] = 64;
    c.rows[t] = t < 2 ? kWideGroupRows : kGroupRows;
  }
  for (int t = 4; t < 6; ++t) {
    c.row_bytes[t] = static_cast<uint16_t>(columns);
    c.rows[t] = t < 5 ? kWideGroupRows : kGroupRows;
  }
  for (int t = 6; t < 8; ++t) {
    c.row_bytes[t] = 64;
    c.rows[t] = static_cast<uint8_t>(columns / 4);
  }
  return c;
}
constexpr TileConfig kWholeBlocks = ConfigFor(32);
constexpr TileConfig kHalfBlocks = ConfigFor(16);

// Unpacks the blocks of a tile in order, and asks for what lies Avx512::kPrefetchBytes further on,
// scales and codes alike.
template <WeightType kType>
struct Unpacker {
  static constexpr TileFormat kFormat = TileFormatOf(kType);
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* ahead;

  inline __attribute__((always_inline)) void Block(int64_t b, uint8_t* out) {
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(kFormat.zero));
    constexpr int kPerBlock = kFormat.code_bytes + kFormat.scale_bytes / kFormat.super_blocks;
    KVASIR_UNROLL for (int line = 0; line < kPerBlock; line += 64) {
      __builtin_prefetch(ahead + line);
    }
    ahead += kPerBlock;
    const Avx512::Codes<kFormat.code_bits> block(codes);
    KVASIR_UNROLL for (int v = 0; v < 8; ++v) {
      _mm512_store_si512(out + 64 * v, _mm512_sub_epi8(block.w[v], zero));
    }
    const Body::Scales w = Body::LoadScales<kType>(scales, b);
    auto* floats = reinterpret_cast<float*>(out + kUnpackedCodes);
    _mm512_store_ps(floats, w.low);
    _mm512_store_ps(floats + 16, w.high);
    _mm512_store_ps(floats + 32, w.min);
    codes += kFormat.code_bytes;
    MemoryIsWritten();
  }
};

// Integer sums of columns 0 to 31 of a block into out[kRows][16].
template <int kRows>
inline __attribute__((always_inline)) void Sums(const uint8_t* q, const uint8_t* codes,
                                                int32_t* out) {
  if constexpr (kRows == kWideGroupRows) {
    _tile_zero(0);
    _tile_loadd(4, q, 32);
    _tile_loadd(6, codes, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, out, 64);
  } else {
    _tile_zero(2);
    _tile_loadd(5, q, 32);
    _tile_loadd(6, codes, 64);
    _tile_dpbssd(2, 5, 6);
    _tile_stored(2, out, 64);
  }
}

// The same of columns 16 to 31 where the tile registers hold half blocks.
template <int kRows>
inline __attribute__((always_inline)) void HighSums(const uint8_t* q, const uint8_t* codes,
                                                    int32_t* out) {
  if constexpr (kRows == kWideGroupRows) {
    _tile_zero(1);
    _tile_loadd(4, q + 16, 32);
    _tile_loadd(7, codes + 256, 64);
    _tile_dpbssd(1, 4, 7);
    _tile_stored(1, out, 64);
  } else {
    _tile_zero(3);
    _tile_loadd(5, q + 16, 32);
    _tile_loadd(7, codes + 256, 64);
    _tile_dpbssd(3, 5, 7);
    _tile_stored(3, out, 64);
  }
}

template <int kRows>
inline __attribute__((always_inline)) void FoldSums(const int32_t* sums, __m512 w,
                                                    const uint8_t* scales, __m512* acc) {
  KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * r));
    const __m512 scale = _mm512_mul_ps(w, _mm512_set1_ps(Body::FloatAt(scales + 4 * r)));
    acc[r] = _mm512_fmadd_ps(sum, scale, acc[r]);
  }
}

template <WeightType kType, int kRows>
struct Block {
  static constexpr bool kHalf = kType == WeightType::kQ6_K;
  static constexpr int kSums = 16 * kRows;
  static constexpr int kSumsPerTerm = kHalf ? 2 * kSums : kSums;
  static constexpr size_t kTermBytes = ActTermBytes(kRows);

  static inline __attribute__((always_inline)) void MultiplyTerm(const uint8_t* q,
                                                                 const uint8_t* unpacked,
                                                                 int32_t* sums) {
    Sums<kRows>(q, unpacked, sums);
    if constexpr (kHalf) HighSums<kRows>(q, unpacked, sums + kSums);
  }
  static inline __attribute__((always_inline)) void Multiply(int terms, const uint8_t* act,
                                                             const uint8_t* unpacked,
                                                             int32_t* sums) {
    MultiplyTerm(act + 12 * kRows, unpacked, sums);
    if (terms == 2) MultiplyTerm(act + kTermBytes + 12 * kRows, unpacked, sums + kSumsPerTerm);
  }
  static inline __attribute__((always_inline)) void FoldTerm(const int32_t* sums,
                                                             const float* weights,
                                                             const uint8_t* term, __m512* acc) {
    FoldSums<kRows>(sums, _mm512_load_ps(weights), term, acc);
    if constexpr (kHalf) FoldSums<kRows>(sums + kSums, _mm512_load_ps(weights + 16), term, acc);
  }
  static inline __attribute__((always_inline)) void Fold(int terms, const int32_t* sums,
                                                         const uint8_t* act,
                                                         const uint8_t* unpacked, __m512* acc) {
    const auto* weights = reinterpret_cast<const float*>(unpacked + kUnpackedCodes);
    FoldTerm(sums, weights, act, acc);
    if (terms == 2) FoldTerm(sums + kSumsPerTerm, weights, act + kTermBytes, acc);
    if constexpr (TileFormatOf(kType).has_min) {
      const __m512 min = _mm512_load_ps(weights + 32);
      const uint8_t* factors = act + static_cast<size_t>(terms) * kTermBytes;
      KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
        acc[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(Body::FloatAt(factors + 4 * r)), acc[r]);
      }
    }
  }
};

template <int kTerms>
inline int TermsAt(const TileJob& job, int64_t block) {
  if constexpr (kTerms == Body::kByBlock) return job.two_terms[block] != 0 ? 2 : 1;
  return kTerms;
}

// A block is unpacked so many before its product: a tile load of lines just stored waits until they
// have left the store buffer.
constexpr int64_t kUnpackAhead = 3;
constexpr int64_t kRingBlocks = 4;
// Up to so many groups of 16 rows of X stay in near caches, and tiles pass one by one: the nearest
// cache is for the unpacked one and for what is read ahead.
constexpr int kGroupsThatStay = 4;

// A tile times kRows rows. kFirst: its first group, which unpacks it into `to`; the others find it
// there. Block b lies in place b & keep: all of them for other groups to come, or as few as are in
// use. The next block's product is under way while one is folded.
template <WeightType kType, int kTerms, int kRows, bool kFirst>
void Group(const TileJob& job, uint8_t* to, int64_t keep, int64_t tile, const RowGroup& group) {
  using Product = Block<kType, kRows>;
  // Not 4 KiB apart: loads of one would wait for stores to the other.
  constexpr int kSums = (kTerms == 1 ? 1 : 2) * Product::kSumsPerTerm;
  alignas(64) int32_t sums[2][kSums < 1024 ? kSums : kSums + 16];
  const int64_t blocks = job.columns / kBlockColumns;
  const uint8_t* codes = job.tiles + static_cast<size_t>(tile) * job.tile_bytes;
  Unpacker<kType> unpacker = {codes, codes + job.scales_offset, codes + Avx512::kPrefetchBytes};
  const uint8_t* act = job.act + static_cast<size_t>(group.first) * job.act_row_bytes;
  __m512 acc[kRows];
  KVASIR_UNROLL for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
  float* y = job.y + static_cast<size_t>(group.first) * job.ldy + tile * kTileRows;
  for (int r = 0; r < group.rows; ++r) __builtin_prefetch(y + static_cast<size_t>(r) * job.ldy, 1);
  int terms = TermsAt<kTerms>(job, 0);
  const auto unpacked = [&](int64_t b) {
    return to + static_cast<size_t>(b & keep) * kUnpackedBlock;
  };
  if constexpr (kFirst) {
    for (int64_t b = 0; b < std::min(blocks, kUnpackAhead); ++b) unpacker.Block(b, unpacked(b));
  }
  Product::Multiply(terms, act, unpacked(0), sums[0]);
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* next = act + ActBlockBytes(kRows, terms);
    const int next_terms = b + 1 < blocks ? TermsAt<kTerms>(job, b + 1) : terms;
    if (kFirst && b + kUnpackAhead < blocks) {
      unpacker.Block(b + kUnpackAhead, unpacked(b + kUnpackAhead));
    }
    if (b + 1 < blocks) {
      Product::Multiply(next_terms, next, unpacked(b + 1), sums[(b + 1) % 2]);
    }
    Product::Fold(terms, sums[b % 2], act, unpacked(b), acc);
    act = next;
    terms = next_terms;
  }
  Body::StoreTile<kRows>(job, tile, group, acc);
}

template <WeightType kType, int kTerms>
void AnyGroup(const TileJob& job, uint8_t* to, int64_t keep, int64_t tile, const RowGroup& group) {
  const bool wide = group.width == kWideGroupRows;
  if (group.first == 0) {
    return wide ? Group<kType, kTerms, kWideGroupRows, true>(job, to, keep, tile, group)
                : Group<kType, kTerms, kGroupRows, true>(job, to, keep, tile, group);
  }
  return wide ? Group<kType, kTerms, kWideGroupRows, false>(job, to, keep, tile, group)
              : Group<kType, kTerms, kGroupRows, false>(job, to, keep, tile, group);
}

template <WeightType kType, int kTerms, Path kPath>
void Run(const TileJob& job) {
  const MatmulKernels::RunTiles narrow = MatmulAvx512().Find(kType, kPath);
  const int groups = WideGroupCount(job.m);
  if (groups == 0 || job.columns == 0) return narrow(job);
  LoadTileConfig(kType == WeightType::kQ6_K ? kHalfBlocks : kWholeBlocks);
  TileJob rest = job;
  const int wide_rows = WideRows(job.m);
  rest.m = job.m - wide_rows;
  rest.act += static_cast<size_t>(wide_rows) * job.act_row_bytes;
  rest.y += static_cast<size_t>(wide_rows) * job.ldy;
  const int64_t keep = groups == 1 ? kRingBlocks - 1 : -1;
  const int64_t tiles = groups <= kGroupsThatStay ? 1 : static_cast<int64_t>(kWideTiles);
  const size_t bytes = kUnpackedBlock * static_cast<size_t>(job.columns / kBlockColumns);
  for (int64_t first = job.first_tile; first < job.last_tile; first += tiles) {
    const int64_t last = std::min(first + tiles, job.last_tile);
    for (int g = 0; g < groups; ++g) {
      const RowGroup group = RowGroupAt(job.m, true, g);
      for (int64_t tile = first; tile < last; ++tile) {
        uint8_t* to = job.unpacked + static_cast<size_t>(tile - first) * bytes;
        AnyGroup<kType, kTerms>(job, to, keep, tile, group);
      }
    }
    if (rest.m > 0) {
      rest.first_tile = first;
      rest.last_tile = last;
      narrow(rest);
    }
  }
  _tile_release();
}

template <WeightType kType>
MatmulKernels::Entry Integer() {
  return {kType,
          {Run<kType, 1, Path::kInt8>, Run<kType, 2, Path::kInt8x2>,
           MatmulAvx512().Find(kType, Path::kF32), Run<kType, Body::kByBlock, Path::kMixed>}};
}
MatmulKernels::Entry Float(WeightType type) {
  return {type, {nullptr, nullptr, MatmulAvx512().Find(type, Path::kF32), nullptr}};
}

}  // namespace

const MatmulKernels& MatmulAmx() {
  static const MatmulKernels::Entry kEntries[] = {
      Float(WeightType::kF32),      Float(WeightType::kF16),      Float(WeightType::kBf16),
      Integer<WeightType::kQ8_0>(), Integer<WeightType::kQ4_0>(), Integer<WeightType::kQ4_1>(),
      Integer<WeightType::kQ5_0>(), Integer<WeightType::kQ5_1>(), Integer<WeightType::kQ4_K>(),
      Integer<WeightType::kQ5_K>(), Integer<WeightType::kQ6_K>(),
  };
  static const MatmulKernels kTable = {kEntries, sizeof(kEntries) / sizeof(kEntries[0]),
                                       MatmulAvx512().quantize, true};
  return kTable;
}

}  // namespace kvasir::internal
