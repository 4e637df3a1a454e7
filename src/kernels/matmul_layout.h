// How packed weights and quantised activations lie in memory, and the one job every instruction
// set's kernel runs. docs/kernels.md draws both layouts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"
#include "quant/weight_type.h"

namespace kvasir::internal {

inline constexpr int kTileRows = 16;      // output rows of a tile: one vector lane each
inline constexpr int kBlockColumns = 32;  // columns that share an activation scale
inline constexpr int kGroupRows = 8;      // activation rows that share one read of a tile's block

// A tile of a quantised type: the codes of its blocks of 32 columns in order, then the scales of
// its super-blocks. A tile of a float type: [column][16] elements.
struct TileFormat {
  int code_bits;      // 4, 5, 6, 8; 0 for float types
  int zero;           // subtracted from every code
  bool has_min;       // value = scale * code + min
  int super_blocks;   // blocks of 32 per group of scales: 1 or 8
  int code_bytes;     // per block of 32 columns
  int scale_bytes;    // per super-block
  int element_bytes;  // float types
};

// Scales of a super-block (d, m: 16 f16 each; the sign of dmin is turned so that it is added):
//   Q4_0 Q5_0 Q8_0: d        Q4_1 Q5_1: d, m
//   Q4_K Q5_K: scales[8][16] u8, mins[8][16] u8, d, -dmin      Q6_K: scales[16][16] i8, d
constexpr TileFormat TileFormatOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return {4, 8, false, 1, 256, 32, 0};
    case WeightType::kQ4_1:
      return {4, 0, true, 1, 256, 64, 0};
    case WeightType::kQ5_0:
      return {5, 16, false, 1, 512, 32, 0};
    case WeightType::kQ5_1:
      return {5, 0, true, 1, 512, 64, 0};
    case WeightType::kQ8_0:
      return {8, 128, false, 1, 512, 32, 0};
    case WeightType::kQ4_K:
      return {4, 0, true, 8, 256, 320, 0};
    case WeightType::kQ5_K:
      return {5, 0, true, 8, 512, 320, 0};
    case WeightType::kQ6_K:
      return {6, 32, false, 8, 512, 288, 0};
    case WeightType::kF32:
      return {0, 0, false, 0, 0, 0, 4};
    case WeightType::kF16:
    case WeightType::kBf16:
      return {0, 0, false, 0, 0, 0, 2};
  }
  return {};
}

// Quantised activations of a group of R rows, block after block; `terms` is 1 or 2, the same for
// all blocks or by block:
//   terms x { float scale[R]; int32 minus_sum[R]; int32 minus_low[R]; int8 q[R][32] }, float
//   min_factor[R]
// minus_sum: minus the sum of a row's 32 q; minus_low: of the first 16. min_factor: what a weight's
// min is multiplied by, the sum of the block's activations as quantised.
constexpr size_t ActBlockBytes(int rows, int terms) {
  return static_cast<size_t>(rows) * (static_cast<size_t>(terms) * 44 + 4);
}

// How many terms each block of 32 columns gets.
struct Terms {
  int all;                // 1 or 2; with `blocks`: 1, and 2 where its byte is not zero
  const uint8_t* blocks;  // or null
  int At(int64_t block) const { return blocks != nullptr && blocks[block] != 0 ? 2 : all; }
};
inline size_t ActRowBytes(int64_t columns, const Terms& terms) {
  size_t bytes = 0;
  for (int64_t b = 0; b < columns / kBlockColumns; ++b) bytes += ActBlockBytes(1, terms.At(b));
  return bytes;
}

// Rows of X go through the kernels in groups of 8, the rest in one or two smaller groups. A group
// of 3 or 7 is padded with a row whose result is dropped, so that the cost never falls when a row
// is added.
struct RowGroup {
  int first;
  int rows;
  int width;  // rows the kernel computes: 1, 2, 4 or 8
};
inline int RowGroupCount(int m) {
  const int rest = m % kGroupRows;
  return m / kGroupRows + (rest == 0 ? 0 : rest == 5 || rest == 6 ? 2 : 1);
}
inline RowGroup RowGroupAt(int m, int index) {
  const int full = m / kGroupRows;
  const int first = full * kGroupRows;
  const int rest = m - first;
  if (index < full) return {index * kGroupRows, kGroupRows, kGroupRows};
  if (rest == 5 || rest == 6) {
    return index == full ? RowGroup{first, 4, 4} : RowGroup{first + 4, rest - 4, rest - 4};
  }
  return {first, rest, rest == 3 ? 4 : rest == 7 ? 8 : rest};
}

// Tiles [first_tile, last_tile) times all rows of X.
struct TileJob {
  const uint8_t* tiles;
  size_t tile_bytes;
  size_t scales_offset;  // inside a tile
  int64_t columns;
  int64_t out_rows;
  int64_t first_tile;
  int64_t last_tile;
  const uint8_t* act;        // integer modes
  size_t act_row_bytes;      // ActRowBytes
  const uint8_t* two_terms;  // kMixed: by block
  const float* x;            // kF32
  size_t ldx;
  int m;
  float* y;
  size_t ldy;
  const float* bias;  // or null
};

// Groups [first_group, last_group) of X into `act`.
struct QuantizeJob {
  const float* x;
  size_t ldx;
  int m;
  int64_t columns;
  Terms terms;
  size_t act_row_bytes;
  int first_group;
  int last_group;
  uint8_t* act;
};

// The bodies a kernel is made in: the three ActModes and kInt8 with a second term for some blocks.
enum class Path : uint8_t { kInt8, kInt8x2, kF32, kMixed };

struct MatmulKernels {
  using RunTiles = void (*)(const TileJob& job);
  RunTiles Find(WeightType type, Path path) const;
  struct Entry {
    WeightType type;
    RunTiles run[4];  // by Path; the float types have only kF32
  };
  const Entry* entries;
  int count;
  void (*quantize)(const QuantizeJob& job);
};

const MatmulKernels& MatmulPortable();
const MatmulKernels& MatmulAvx2();
const MatmulKernels& MatmulAvx512();

}  // namespace kvasir::internal
