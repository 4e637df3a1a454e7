// How packed weights and quantised activations lie in memory, and the one job every instruction
// set's kernel runs. docs/kernels.md draws both layouts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"
#include "kernels/matmul_rows.h"
#include "quant/weight_type.h"

namespace kvasir::internal {

inline constexpr int kTileRows = 16;      // output rows of a tile: one vector lane each
inline constexpr int kBlockColumns = 32;  // columns that share an activation scale

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
      return {5, 16, false, 1, 320, 32, 0};
    case WeightType::kQ5_1:
      return {5, 0, true, 1, 320, 64, 0};
    case WeightType::kQ8_0:
      return {8, 128, false, 1, 512, 32, 0};
    case WeightType::kQ4_K:
      return {4, 0, true, 8, 256, 320, 0};
    case WeightType::kQ5_K:
      return {5, 0, true, 8, 320, 320, 0};
    case WeightType::kQ6_K:
      return {6, 32, false, 8, 384, 288, 0};
    case WeightType::kF32:
      return {0, 0, false, 0, 0, 0, 4};
    case WeightType::kF16:
    case WeightType::kBf16:
      return {0, 0, false, 0, 0, 0, 2};
  }
  return {};
}

// The code of one column (0..31) and row (0..15) of a block. 4 bits: [4 columns of 16 rows] x 4,
// the low halves columns 0 to 15, the high halves 16 to 31. 5 and 6 bits: the low four as those,
// then the rest in bits v (of 8) or 2 (v mod 4) of another byte, v = column / 4.
inline int CodeAt(int bits, const uint8_t* block, int column, int row) {
  const int v = column / 4;
  const int at = 4 * row + column % 4;
  if (bits == 8) return block[64 * v + at];
  const int both = block[64 * (v % 4) + at];
  const int low = v < 4 ? both & 0xF : both >> 4;
  if (bits == 5) return low | (((block[256 + at] >> v) & 1) << 4);
  if (bits == 6) return low | (((block[256 + 64 * (v / 4) + at] >> (2 * (v % 4))) & 3) << 4);
  return low;
}

// Quantised activations of a group of R rows, block after block; `terms` is 1 or 2, the same for
// all blocks or by block:
//   terms x { float scale[R]; int32 minus_sum[R]; int32 minus_low[R]; int8 q[R][32] }, float
//   min_factor[R]
// minus_sum: minus the sum of a row's 32 q; minus_low: of the first 16. min_factor: what a weight's
// min is multiplied by, the sum of the block's activations as quantised.
constexpr size_t ActTermBytes(int rows) {
  return static_cast<size_t>(rows) * 44;
}
constexpr size_t ActBlockBytes(int rows, int terms) {
  return static_cast<size_t>(terms) * ActTermBytes(rows) + static_cast<size_t>(rows) * 4;
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

// A tile's block unpacked for the groups of many rows: 8 lines of 4 columns of 16 rows, a byte a
// code, then three lines of 16 floats: the scale of columns 0 to 15, that of 16 to 31, min.
inline constexpr size_t kUnpackedCodes = 512;
inline constexpr size_t kUnpackedBlock = kUnpackedCodes + 3 * 64;
// Tiles that share one pass over X: their bytes should stay in the nearest cache.
inline constexpr size_t kPassBytes = 24576;
inline constexpr size_t kWideTiles = 2;
inline size_t UnpackedBytes(int64_t columns) {
  const size_t bytes = kWideTiles * kUnpackedBlock * static_cast<size_t>(columns / kBlockColumns);
  return bytes > kPassBytes ? bytes : kPassBytes;
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
  uint8_t* unpacked;  // UnpackedBytes for this worker, aligned to 64; null for kFewRows or in f32
};

// Groups [first_group, last_group) of X into `act`.
struct QuantizeJob {
  const float* x;
  size_t ldx;
  int m;
  int64_t columns;
  Terms terms;
  size_t act_row_bytes;
  bool wide;  // groups of 16
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
  bool wide;  // wants groups of 16 rows
};

const MatmulKernels& MatmulPortable();
const MatmulKernels& MatmulAvx2();
const MatmulKernels& MatmulAvx512();
const MatmulKernels& MatmulAmx();

}  // namespace kvasir::internal
