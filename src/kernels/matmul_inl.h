// The bodies of the products, written once over V (simd_portable.h, simd_avx2.h, simd_avx512.h). A
// lane is an output row; no sum ever crosses lanes. All of it is templates over V, so copies for
// different instruction sets never meet in linking.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/matmul_layout.h"
#include "kernels/unroll.h"

namespace kvasir::internal {

template <class V>
struct MatmulBody {
  using F = typename V::F;

  // Values of kTerms beside 1 and 2.
  static constexpr int kFloat = 0;
  static constexpr int kByBlock = 3;

  static float FloatAt(const uint8_t* p) {
    float v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static int32_t IntAt(const uint8_t* p) {
    int32_t v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }

  // Weight scales of one block of 32 columns, per lane. Q6_K has two: high is for columns 16 to 31.
  struct Scales {
    F low, high, min;
  };
  template <WeightType kType>
  static KVASIR_INLINE Scales LoadScales(const uint8_t* scales, int64_t block) {
    constexpr TileFormat kFormat = TileFormatOf(kType);
    const uint8_t* p = scales + (block / kFormat.super_blocks) * kFormat.scale_bytes;
    const auto sub = static_cast<size_t>(block % kFormat.super_blocks);
    if constexpr (kType == WeightType::kQ6_K) {
      const F d = V::LoadHalf(p + 256);
      return {V::Mul(d, V::LoadI8(p + 32 * sub)), V::Mul(d, V::LoadI8(p + 32 * sub + 16)), d};
    } else if constexpr (kFormat.super_blocks == 8) {
      const F d = V::Mul(V::LoadHalf(p + 256), V::LoadU8(p + 16 * sub));
      return {d, d, V::Mul(V::LoadHalf(p + 288), V::LoadU8(p + 128 + 16 * sub))};
    } else {
      const F d = V::LoadHalf(p);
      return {d, d, kFormat.has_min ? V::LoadHalf(p + 32) : d};
    }
  }

  // From the unpacked tile, or from the packed one. One expression each: GCC keeps a conditional
  // value of so many registers in memory and copies it there in pieces, which stalls its readers.
  template <WeightType kType, bool kUnpacked>
  static KVASIR_INLINE Scales BlockScales(const uint8_t* scales, int64_t block,
                                          const uint8_t* codes) {
    if constexpr (kUnpacked) {
      const auto* floats = reinterpret_cast<const float*>(codes + kUnpackedCodes);
      return {V::Load(floats), V::Load(floats + 16), V::Load(floats + 32)};
    } else {
      return LoadScales<kType>(scales, block);
    }
  }

  // acc[r] += sums[r] * (weight scale * activation scale of row r)
  template <int kRows>
  static KVASIR_INLINE void Fold(const typename V::I* sums, const F& w, const uint8_t* scales,
                                 F* acc) {
    KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
      acc[r] = V::Fma(V::FromInt(sums[r]), V::Mul(w, V::Set(FloatAt(scales + 4 * r))), acc[r]);
    }
  }

  // One term of kCount rows of a group of kRows; `scales` and `q` are the first one's.
  template <WeightType kType, int kRows, int kCount, class Codes>
  static KVASIR_INLINE void TermOfRows(const Codes& codes, const Scales& w, const uint8_t* scales,
                                       const uint8_t* q, F* acc) {
    constexpr TileFormat kFormat = TileFormatOf(kType);
    const auto* x = reinterpret_cast<const int8_t*>(q);
    int32_t minus_sum[kCount];
    std::memcpy(minus_sum, scales + 4 * kRows, sizeof(minus_sum));
    typename V::I sums[kCount];
    if constexpr (kType == WeightType::kQ6_K) {
      int32_t minus_low[kCount];
      std::memcpy(minus_low, scales + 8 * kRows, sizeof(minus_low));
      codes.template Dot<kFormat.zero, 0, 4, kCount>(x, minus_low, sums);
      Fold<kCount>(sums, w.low, scales, acc);
      for (int r = 0; r < kCount; ++r) minus_sum[r] -= minus_low[r];
      codes.template Dot<kFormat.zero, 4, 4, kCount>(x, minus_sum, sums);
      Fold<kCount>(sums, w.high, scales, acc);
    } else {
      codes.template Dot<kFormat.zero, 0, 8, kCount>(x, minus_sum, sums);
      Fold<kCount>(sums, w.low, scales, acc);
    }
  }

  template <WeightType kType, int kRows, int kTerms, class Codes, int kFirst = 0>
  static KVASIR_INLINE void RowsFrom(const Codes& codes, const Scales& w, const uint8_t* act,
                                     F* acc) {
    constexpr int kLeft = kRows - kFirst;
    constexpr int kCount = kLeft < Codes::kTogether ? kLeft : Codes::kTogether;
    KVASIR_UNROLL for (int t = 0; t < kTerms; ++t) {
      const uint8_t* term = act + static_cast<size_t>(t) * ActTermBytes(kRows);
      TermOfRows<kType, kRows, kCount>(codes, w, term + 4 * kFirst, term + 12 * kRows + 32 * kFirst,
                                       acc + kFirst);
    }
    if constexpr (TileFormatOf(kType).has_min) {
      const uint8_t* factors = act + kTerms * ActTermBytes(kRows);
      KVASIR_UNROLL for (int r = kFirst; r < kFirst + kCount; ++r) {
        acc[r] = V::Fma(w.min, V::Set(FloatAt(factors + 4 * r)), acc[r]);
      }
    }
    if constexpr (kCount < kLeft) {
      RowsFrom<kType, kRows, kTerms, Codes, kFirst + kCount>(codes, w, act, acc);
    }
  }

  // The same as loops over terms and rows.
  template <WeightType kType, int kRows, class Codes>
  static KVASIR_INLINE void RowLoop(int terms, const Codes& codes, const Scales& w,
                                    const uint8_t* act, F* acc) {
    constexpr int kCount = Codes::kTogether;
    static_assert(kRows % kCount == 0 && !TileFormatOf(kType).has_min);
    const uint8_t* end = act + static_cast<size_t>(terms) * ActTermBytes(kRows);
    for (const uint8_t* term = act; term < end; term += ActTermBytes(kRows)) {
#pragma GCC unroll 1
      for (int r = 0; r < kRows; r += kCount) {
        TermOfRows<kType, kRows, kCount>(codes, w, term + 4 * r, term + 12 * kRows + 32 * r,
                                         acc + r);
      }
    }
  }

  template <WeightType kType, int kRows, int kTerms, bool kUnpacked>
  static KVASIR_INLINE void IntegerBlock(const uint8_t* codes, const Scales& w, const uint8_t* act,
                                         F* acc) {
    constexpr int kBits = TileFormatOf(kType).code_bits;
    constexpr bool kOnce = kTerms == 1 && kRows <= V::template Codes<kBits, kUnpacked>::kTogether;
    const typename V::template Codes<kBits, kUnpacked, kOnce> block(codes);
    RowsFrom<kType, kRows, kTerms>(block, w, act, acc);
  }

  // A tile's codes and scales where every group of many rows finds them ready.
  template <WeightType kType>
  static void Unpack(const TileJob& job, int64_t tile, uint8_t* out) {
    constexpr TileFormat kFormat = TileFormatOf(kType);
    const uint8_t* codes = job.tiles + static_cast<size_t>(tile) * job.tile_bytes;
    const uint8_t* scales = codes + job.scales_offset;
    for (int64_t b = 0; b < job.columns / kBlockColumns; ++b) {
      PrefetchAhead<kType>(job.tiles + static_cast<size_t>(tile) * job.tile_bytes, b);
      const typename V::template Codes<kFormat.code_bits> block(codes);
      block.StoreLines(out);
      const Scales w = LoadScales<kType>(scales, b);
      auto* floats = reinterpret_cast<float*>(out + kUnpackedCodes);
      V::Store(floats, w.low);
      V::Store(floats + 16, w.high);
      V::Store(floats + 32, w.min);
      codes += kFormat.code_bytes;
      out += kUnpackedBlock;
    }
  }

  // What is V::kPrefetchBytes further on than a block: of its codes, and of as much of the scales
  // as is a block's share, or they would be left out at the end of every tile. (Of 256 columns they
  // are few, and not worth the instructions.)
  template <WeightType kType>
  static KVASIR_INLINE void PrefetchAhead(const uint8_t* tile, int64_t block) {
    constexpr TileFormat kFormat = TileFormatOf(kType);
    constexpr int kBytes =
        kFormat.code_bytes + (kFormat.super_blocks == 1 ? kFormat.scale_bytes : 0);
    const uint8_t* ahead = tile + block * kBytes + V::kPrefetchBytes;
    KVASIR_UNROLL for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(ahead + line);
  }

  // One tile times one group of kRows rows, quantised. kTerms kByBlock: one term or two, as
  // job.two_terms says. unpacked: the tile by Unpack, if kUnpacked.
  template <WeightType kType, int kRows, int kTerms, bool kUnpacked = false>
  static void IntegerTile(const TileJob& job, int64_t tile, const RowGroup& group,
                          const uint8_t* unpacked = nullptr) {
    constexpr TileFormat kFormat = TileFormatOf(kType);
    using Codes = typename V::template Codes<kFormat.code_bits, kUnpacked>;
    constexpr bool kLoops = Codes::kRowLoops && kRows > Codes::kTogether;
    const int64_t blocks = job.columns / kBlockColumns;
    const uint8_t* packed = job.tiles + static_cast<size_t>(tile) * job.tile_bytes;
    const uint8_t* codes = kUnpacked ? unpacked : packed;
    const uint8_t* scales = packed + job.scales_offset;
    const uint8_t* act = job.act + static_cast<size_t>(group.first) * job.act_row_bytes;
    F acc[kRows];
    KVASIR_UNROLL for (int r = 0; r < kRows; ++r) acc[r] = V::Set(0.0F);
    for (int64_t b = 0; b < blocks; ++b) {
      if constexpr (!kUnpacked) PrefetchAhead<kType>(packed, b);
      const Scales w = BlockScales<kType, kUnpacked>(scales, b, codes);
      const bool two = kTerms == 2 || (kTerms == kByBlock && job.two_terms[b] != 0);
      if constexpr (kLoops) {
        RowLoop<kType, kRows>(two ? 2 : 1, Codes(codes), w, act, acc);
      } else if (two) {
        IntegerBlock<kType, kRows, 2, kUnpacked>(codes, w, act, acc);
      } else {
        IntegerBlock<kType, kRows, 1, kUnpacked>(codes, w, act, acc);
      }
      act += ActBlockBytes(kRows, two ? 2 : 1);
      codes += kUnpacked ? kUnpackedBlock : static_cast<size_t>(kFormat.code_bytes);
    }
    StoreTile<kRows>(job, tile, group, acc);
  }

  template <int kRows>
  static KVASIR_INLINE void StoreTile(const TileJob& job, int64_t tile, const RowGroup& group,
                                      const F* acc) {
    const int64_t first = tile * kTileRows;
    const int64_t lanes = job.out_rows - first < kTileRows ? job.out_rows - first : kTileRows;
    float bias[kTileRows] = {};
    if (job.bias != nullptr) {
      std::memcpy(bias, job.bias + first, static_cast<size_t>(lanes) * sizeof(float));
    }
    KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
      if (r >= group.rows) break;
      float* y = job.y + static_cast<size_t>(group.first + r) * job.ldy + first;
      const F sum = job.bias != nullptr ? V::Add(acc[r], V::Load(bias)) : acc[r];
      if (lanes == kTileRows) {
        V::Store(y, sum);
      } else {
        float lane[kTileRows];
        V::Store(lane, sum);
        std::memcpy(y, lane, static_cast<size_t>(lanes) * sizeof(float));
      }
    }
  }

  // acc[r] += w * x[r][column], w one weight per lane.
  template <int kRows>
  static KVASIR_INLINE void FloatColumn(F w, const float* const* x, int64_t column, F* acc) {
    KVASIR_UNROLL for (int r = 0; r < kRows; ++r) {
      acc[r] = V::Fma(w, V::Set(x[r][column]), acc[r]);
    }
  }

  template <WeightType kType>
  static F LoadColumn(const uint8_t* p) {
    if constexpr (kType == WeightType::kF16) return V::LoadHalf(p);
    if constexpr (kType == WeightType::kBf16) return V::LoadBf16(p);
    return V::Load(reinterpret_cast<const float*>(p));
  }

  // One tile times one group of kRows rows, in f32: columns ascending, one fma each.
  template <WeightType kType, int kRows>
  static void FloatTile(const TileJob& job, int64_t tile, const RowGroup& group) {
    constexpr TileFormat kFormat = TileFormatOf(kType);
    const uint8_t* p = job.tiles + static_cast<size_t>(tile) * job.tile_bytes;
    const float* x[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int row = r < group.rows ? r : group.rows - 1;
      x[r] = job.x + static_cast<size_t>(group.first + row) * job.ldx;
    }
    F acc[kRows];
    KVASIR_UNROLL for (int r = 0; r < kRows; ++r) acc[r] = V::Set(0.0F);
    if constexpr (kFormat.code_bits == 0) {
      for (int64_t c = 0; c < job.columns; ++c) {
        FloatColumn<kRows>(LoadColumn<kType>(p), x, c, acc);
        p += kFormat.element_bytes * kTileRows;
      }
    } else {
      const uint8_t* scales = p + job.scales_offset;
      const F zero = V::Set(static_cast<float>(kFormat.zero));
      for (int64_t b = 0; b < job.columns / kBlockColumns; ++b) {
        const typename V::template Codes<kFormat.code_bits> block(p);
        const Scales w = LoadScales<kType>(scales, b);
        for (int c = 0; c < kBlockColumns; ++c) {
          const F code = kFormat.zero == 0 ? block.Column(c) : V::Sub(block.Column(c), zero);
          F value = V::Mul(c < 16 ? w.low : w.high, code);
          if constexpr (kFormat.has_min) value = V::Add(value, w.min);
          FloatColumn<kRows>(value, x, b * kBlockColumns + c, acc);
        }
        p += kFormat.code_bytes;
      }
    }
    StoreTile<kRows>(job, tile, group, acc);
  }

  template <WeightType kType, int kRows, int kTerms>  // kTerms kFloat: in f32
  static void Tile(const TileJob& job, int64_t tile, const RowGroup& group) {
    if constexpr (kTerms == kFloat) {
      FloatTile<kType, kRows>(job, tile, group);
    } else {
      IntegerTile<kType, kRows, kTerms>(job, tile, group);
    }
  }

  template <WeightType kType, int kTerms>
  static void AnyTile(const TileJob& job, int64_t tile, const RowGroup& group) {
    switch (group.width) {
      case 1:
        return Tile<kType, 1, kTerms>(job, tile, group);
      case 2:
        return Tile<kType, 2, kTerms>(job, tile, group);
      case 4:
        return Tile<kType, 4, kTerms>(job, tile, group);
      default:
        return Tile<kType, 8, kTerms>(job, tile, group);
    }
  }

  // A few tiles at a time, so that they stay in the nearest cache while the groups of X pass.
  template <WeightType kType, int kTerms>
  static void Run(const TileJob& job) {
    constexpr int kBits = TileFormatOf(kType).code_bits;
    if constexpr (kTerms != kFloat && kBits < 8) {
      if (job.m > kNarrowRows) return RunUnpacked<kType, kTerms>(job);
    }
    const auto fitting = static_cast<int64_t>(kPassBytes / job.tile_bytes);
    const int64_t step = fitting < 1 ? 1 : fitting;
    const int groups = RowGroupCount(job.m, false);
    for (int64_t first = job.first_tile; first < job.last_tile; first += step) {
      const int64_t last = first + step < job.last_tile ? first + step : job.last_tile;
      for (int g = 0; g < groups; ++g) {
        const RowGroup group = RowGroupAt(job.m, false, g);
        for (int64_t tile = first; tile < last; ++tile) AnyTile<kType, kTerms>(job, tile, group);
      }
    }
  }

  // The same for many rows: the groups of 8 share what unpacking a code costs.
  template <WeightType kType, int kTerms>
  static void RunUnpacked(const TileJob& job) {
    const size_t bytes = kUnpackedBlock * static_cast<size_t>(job.columns / kBlockColumns);
    const auto fitting = static_cast<int64_t>(kPassBytes / bytes);
    const int64_t step = fitting < 1 ? 1 : fitting;
    const int groups = RowGroupCount(job.m, false);
    for (int64_t first = job.first_tile; first < job.last_tile; first += step) {
      const int64_t last = first + step < job.last_tile ? first + step : job.last_tile;
      for (int64_t tile = first; tile < last; ++tile) {
        Unpack<kType>(job, tile, job.unpacked + static_cast<size_t>(tile - first) * bytes);
      }
      for (int g = 0; g < groups; ++g) {
        const RowGroup group = RowGroupAt(job.m, false, g);
        for (int64_t tile = first; tile < last; ++tile) {
          if (group.width == kGroupRows) {
            IntegerTile<kType, kGroupRows, kTerms, true>(
                job, tile, group, job.unpacked + static_cast<size_t>(tile - first) * bytes);
          } else {
            AnyTile<kType, kTerms>(job, tile, group);
          }
        }
      }
    }
  }

  // One term of one row's block of 32. Returns the sum of the values as quantised.
  // A block with a NaN or an infinity becomes q = 0 with scale NaN, so the row's result is NaN. A
  // block whose largest magnitude is below 2^-119 counts as zero (127 / amax would overflow).
  static float QuantizeTerm(const float* x, int row, int rows, uint8_t* term) {
    const uint32_t bits = V::AbsMaxBits(x);
    const float amax = std::bit_cast<float>(bits);
    auto* q = reinterpret_cast<int8_t*>(term + 12 * rows + 32 * row);
    int32_t sums[2] = {0, 0};
    float scale = 0.0F;
    if (bits >= 0x7F800000u) {
      scale = std::bit_cast<float>(0x7FC00000u);
      std::memset(q, 0, 32);
    } else if (bits < 0x04000000u) {
      std::memset(q, 0, 32);
    } else {
      scale = amax / 127.0F;
      V::Quantize(x, 127.0F / amax, q, sums);
    }
    const int32_t minus_low = -sums[0];
    const int32_t minus_sum = minus_low - sums[1];
    std::memcpy(term + 4 * row, &scale, 4);
    std::memcpy(term + 4 * (rows + row), &minus_sum, 4);
    std::memcpy(term + 4 * (2 * rows + row), &minus_low, 4);
    return scale * static_cast<float>(-minus_sum);
  }

  static void QuantizeBlock(const float* x, int row, int rows, int terms, uint8_t* act) {
    float factor = QuantizeTerm(x, row, rows, act);
    if (terms == 2) {
      const float scale = FloatAt(act + 4 * row);
      const uint8_t* q = act + 12 * rows + 32 * row;
      float rest[kBlockColumns];
      for (int h = 0; h < 2; ++h) {
        const F value = V::LoadI8(q + 16 * h);
        V::Store(rest + 16 * h, V::Fma(V::Set(-scale), value, V::Load(x + 16 * h)));
      }
      factor += QuantizeTerm(rest, row, rows, act + 44 * rows);
    }
    std::memcpy(act + 44 * rows * terms + 4 * row, &factor, 4);
  }

  static const float* RowAt(const QuantizeJob& job, const RowGroup& group, int r) {
    const int row = group.first + (r < group.rows ? r : group.rows - 1);
    return job.x + static_cast<size_t>(row) * job.ldx;
  }

  static void QuantizeGroup(const QuantizeJob& job, const RowGroup& group, uint8_t* first) {
    const int64_t blocks = job.columns / kBlockColumns;
    for (int r = 0; r < group.width; ++r) {
      const float* x = RowAt(job, group, r);
      uint8_t* act = first;
      for (int64_t b = 0; b < blocks; ++b) {
        const int terms = job.terms.At(b);
        QuantizeBlock(x + b * kBlockColumns, r, group.width, terms, act);
        act += ActBlockBytes(group.width, terms);
      }
    }
  }

  // The same where V takes kGroupRows rows at a time.
  static void QuantizeWholeGroup(const QuantizeJob& job, const RowGroup& group, uint8_t* first) {
    const int64_t blocks = job.columns / kBlockColumns;
    for (int r = 0; r < group.width; r += kGroupRows) {
      const float* x[kGroupRows];
      for (int i = 0; i < kGroupRows; ++i) x[i] = RowAt(job, group, r + i);
      uint8_t* act = first;
      for (int64_t b = 0; b < blocks; ++b) {
        const int terms = job.terms.At(b);
        V::QuantizeRows::Block(x, static_cast<size_t>(b * kBlockColumns), group.width, r, terms,
                               act);
        act += ActBlockBytes(group.width, terms);
      }
    }
  }

  static void Quantize(const QuantizeJob& job) {
    for (int g = job.first_group; g < job.last_group; ++g) {
      const RowGroup group = RowGroupAt(job.m, job.wide, g);
      uint8_t* act = job.act + static_cast<size_t>(group.first) * job.act_row_bytes;
      if constexpr (V::kQuantizesRows) {
        if (group.width >= kGroupRows) {
          QuantizeWholeGroup(job, group, act);
          continue;
        }
      }
      QuantizeGroup(job, group, act);
    }
  }

  static const MatmulKernels& Table() {
    static constexpr MatmulKernels::Entry kEntries[] = {
        {WeightType::kF32, {nullptr, nullptr, Run<WeightType::kF32, kFloat>, nullptr}},
        {WeightType::kF16, {nullptr, nullptr, Run<WeightType::kF16, kFloat>, nullptr}},
        {WeightType::kBf16, {nullptr, nullptr, Run<WeightType::kBf16, kFloat>, nullptr}},
        Integer<WeightType::kQ8_0>(),
        Integer<WeightType::kQ4_0>(),
        Integer<WeightType::kQ4_1>(),
        Integer<WeightType::kQ5_0>(),
        Integer<WeightType::kQ5_1>(),
        Integer<WeightType::kQ4_K>(),
        Integer<WeightType::kQ5_K>(),
        Integer<WeightType::kQ6_K>(),
    };
    static constexpr MatmulKernels kTable = {kEntries, sizeof(kEntries) / sizeof(kEntries[0]),
                                             Quantize, false};
    return kTable;
  }

 private:
  template <WeightType kType>
  static constexpr MatmulKernels::Entry Integer() {
    return {kType, {Run<kType, 1>, Run<kType, 2>, Run<kType, kFloat>, Run<kType, kByBlock>}};
  }
};

}  // namespace kvasir::internal
