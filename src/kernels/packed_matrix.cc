#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/big_pages.h"
#include "base/check.h"
#include "kernels/packed_matrix_codes.h"
#include "quant/float16.h"

namespace kvasir {
namespace {

using internal::kBlockColumns;
using internal::kTileRows;
using internal::TileFormat;
using internal::TileFormatOf;

constexpr int64_t kDimensionMax = int64_t{1} << 31;

size_t RoundUp(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

Status CheckParts(std::span<const WeightView> parts) {
  if (parts.empty()) return InvalidArgument("no tensor to pack");
  const WeightTypeInfo& info = GetWeightType(parts[0].type);
  int64_t rows = 0;
  for (const WeightView& part : parts) {
    if (part.type != parts[0].type || part.columns != parts[0].columns) {
      return InvalidArgument("tensors stacked into one matrix differ: " + std::string(info.name) +
                             " with " + std::to_string(parts[0].columns) + " columns and " +
                             GetWeightType(part.type).name + " with " +
                             std::to_string(part.columns));
    }
    if (part.rows < 0 || part.rows > kDimensionMax || part.columns < 1 ||
        part.columns > kDimensionMax) {
      return InvalidArgument("a matrix of " + std::to_string(part.rows) + " rows and " +
                             std::to_string(part.columns) + " columns; the limit is " +
                             std::to_string(kDimensionMax) + " each");
    }
    if (part.columns % info.block_elements != 0) {
      return InvalidArgument("a row of " + std::to_string(part.columns) +
                             " columns is no multiple of " + std::to_string(info.block_elements) +
                             ", the block of " + info.name);
    }
    rows += part.rows;
    if (rows > kDimensionMax) {
      return InvalidArgument("a stacked matrix of more than " + std::to_string(kDimensionMax) +
                             " rows");
    }
  }
  return Status::Ok();
}

// The file's bytes of a row of the stacked matrix.
const std::byte* SourceRow(std::span<const WeightView> parts, size_t row_bytes, int64_t row) {
  for (const WeightView& part : parts) {
    if (row < part.rows) return part.data + static_cast<size_t>(row) * row_bytes;
    row -= part.rows;
  }
  KVASIR_CHECK(false && "row beyond the parts");
  return nullptr;
}

uint16_t LoadU16(const uint8_t* p) {
  uint16_t v = 0;
  std::memcpy(&v, p, 2);
  return v;
}

void PackFloatRow(const PackedMatrix::Rep& rep, const std::byte* row, int lane, uint8_t* tile) {
  const auto size = static_cast<size_t>(TileFormatOf(rep.type).element_bytes);
  uint8_t* out = tile + static_cast<size_t>(lane) * size;
  for (int64_t c = 0; c < rep.columns; ++c) {
    if (size == 4) {
      std::memcpy(out, row, 4);
    } else {
      std::memcpy(out, row, 2);
    }
    row += size;
    out += size * kTileRows;
  }
}

// The file's blocks [first, last) of one row.
struct Stretch {
  int64_t first;
  int64_t last;
};

template <WeightType kType>
void PackStretch(const std::byte* row, Stretch part, int lane, uint8_t* codes, uint8_t* scales) {
  constexpr TileFormat kFormat = TileFormatOf(kType);
  const int block_bytes = GetWeightType(kType).block_bytes;
  const auto* p = reinterpret_cast<const uint8_t*>(row) + part.first * block_bytes;
  codes += part.first * kFormat.super_blocks * kFormat.code_bytes;
  scales += part.first * kFormat.scale_bytes;
  for (int64_t s = part.first; s < part.last; ++s) {
    internal::PackBlock<kType>(p, lane, codes, scales);
    p += block_bytes;
    codes += kFormat.super_blocks * kFormat.code_bytes;
    scales += kFormat.scale_bytes;
  }
}

using PackFunction = void (*)(const std::byte*, Stretch, int, uint8_t*, uint8_t*);
PackFunction PackerOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return PackStretch<WeightType::kQ4_0>;
    case WeightType::kQ4_1:
      return PackStretch<WeightType::kQ4_1>;
    case WeightType::kQ5_0:
      return PackStretch<WeightType::kQ5_0>;
    case WeightType::kQ5_1:
      return PackStretch<WeightType::kQ5_1>;
    case WeightType::kQ8_0:
      return PackStretch<WeightType::kQ8_0>;
    case WeightType::kQ4_K:
      return PackStretch<WeightType::kQ4_K>;
    case WeightType::kQ5_K:
      return PackStretch<WeightType::kQ5_K>;
    case WeightType::kQ6_K:
      return PackStretch<WeightType::kQ6_K>;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16:
      break;
  }
  return nullptr;
}

// All rows of a tile, a stretch of columns at a time so that what is written stays in the nearest
// cache while the rows fill its lines.
void PackTile(const PackedMatrix::Rep& rep, std::span<const std::byte* const> rows, uint8_t* tile) {
  const PackFunction pack = PackerOf(rep.type);
  if (pack == nullptr) {
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      PackFloatRow(rep, rows[lane], static_cast<int>(lane), tile);
    }
    return;
  }
  const int64_t file_blocks = rep.columns / GetWeightType(rep.type).block_elements;
  const int64_t step = 32 / TileFormatOf(rep.type).super_blocks;
  for (int64_t first = 0; first < file_blocks; first += step) {
    const Stretch part = {first, std::min(first + step, file_blocks)};
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      pack(rows[lane], part, static_cast<int>(lane), tile, tile + rep.scales_offset);
    }
  }
}

// Sizes from type, rows and columns. False if they overflow.
bool PlanTiles(PackedMatrix::Rep& rep) {
  const TileFormat format = TileFormatOf(rep.type);
  const auto columns = static_cast<size_t>(rep.columns);
  if (format.code_bits == 0) {
    rep.tile_bytes = columns * static_cast<size_t>(format.element_bytes) * kTileRows;
  } else {
    const size_t blocks = columns / kBlockColumns;
    rep.scales_offset = blocks * static_cast<size_t>(format.code_bytes);
    rep.tile_bytes = rep.scales_offset + blocks / static_cast<size_t>(format.super_blocks) *
                                             static_cast<size_t>(format.scale_bytes);
  }
  rep.tile_bytes = RoundUp(rep.tile_bytes, 64);
  rep.tiles = (rep.rows + kTileRows - 1) / kTileRows;
  const auto tiles = static_cast<size_t>(rep.tiles);
  if (tiles > (std::numeric_limits<size_t>::max() / 2) / rep.tile_bytes) return false;
  rep.bytes = std::max<size_t>(tiles * rep.tile_bytes, 64);
  return true;
}

}  // namespace

PackedMatrix::PackedMatrix() = default;
PackedMatrix::~PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;

Result<PackedMatrix> PackedMatrix::Pack(std::span<const WeightView> parts, Executor& executor) {
  KVASIR_RETURN_IF_ERROR(CheckParts(parts));
  PackedMatrix matrix;
  matrix.rep_ = std::make_unique<Rep>();
  Rep& rep = *matrix.rep_;
  rep.type = parts[0].type;
  rep.columns = parts[0].columns;
  for (const WeightView& part : parts) rep.rows += part.rows;
  if (!PlanTiles(rep)) return InvalidArgument("a matrix larger than the address space");
  rep.data = TakeBigPages(rep.bytes);
  if (rep.data == nullptr) {
    return OutOfMemory("no memory for a matrix of " + std::to_string(rep.bytes) + " bytes");
  }
  const size_t row_bytes = WeightRowBytes(rep.type, rep.columns).value();
  const int64_t chunk =
      std::max<int64_t>(1, static_cast<int64_t>((size_t{256} << 10) / rep.tile_bytes));
  const auto chunks = static_cast<size_t>((rep.tiles + chunk - 1) / chunk);
  executor.ParallelFor(chunks, [&](size_t part, int) {
    const int64_t first = static_cast<int64_t>(part) * chunk;
    const int64_t last = std::min(first + chunk, rep.tiles);
    for (int64_t tile = first; tile < last; ++tile) {
      uint8_t* out = rep.data.get() + static_cast<size_t>(tile) * rep.tile_bytes;
      const int64_t lanes = std::min<int64_t>(kTileRows, rep.rows - tile * kTileRows);
      if (lanes < kTileRows) std::memset(out, 0, rep.tile_bytes);
      const std::byte* rows[kTileRows];
      for (int64_t lane = 0; lane < lanes; ++lane) {
        rows[lane] = SourceRow(parts, row_bytes, tile * kTileRows + lane);
      }
      PackTile(rep, std::span(rows).first(static_cast<size_t>(lanes)), out);
    }
  });
  return matrix;
}

int64_t PackedMatrix::rows() const {
  return rep_ == nullptr ? 0 : rep_->rows;
}
int64_t PackedMatrix::columns() const {
  return rep_ == nullptr ? 0 : rep_->columns;
}
size_t PackedMatrix::bytes() const {
  return rep_ == nullptr ? 0 : rep_->bytes;
}
WeightType PackedMatrix::type() const {
  return rep_ == nullptr ? WeightType::kF32 : rep_->type;
}

namespace {

void FloatRow(const PackedMatrix::Rep& rep, const uint8_t* tile, size_t lane,
              std::span<float> out) {
  for (size_t c = 0; c < out.size(); ++c) {
    const size_t element = c * kTileRows + lane;
    if (rep.type == WeightType::kF32) {
      std::memcpy(&out[c], tile + 4 * element, 4);
    } else {
      const uint16_t bits = LoadU16(tile + 2 * element);
      out[c] = rep.type == WeightType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
    }
  }
}

// Scale of columns 16 half to 16 half + 15 of a block, and its min, as DequantizeRow rounds them.
struct LaneScales {
  float scale[2];
  float min;
};
LaneScales ScalesAt(const PackedMatrix::Rep& rep, const uint8_t* scales, int64_t block,
                    size_t lane) {
  const TileFormat format = TileFormatOf(rep.type);
  const uint8_t* p = scales + (block / format.super_blocks) * format.scale_bytes;
  const auto sub = static_cast<size_t>(block % format.super_blocks);
  if (format.super_blocks == 1) {
    const float d = F16ToF32(LoadU16(p + 2 * lane));
    return {{d, d}, format.has_min ? F16ToF32(LoadU16(p + 32 + 2 * lane)) : 0.0F};
  }
  const float d = F16ToF32(LoadU16(p + 256 + 2 * lane));
  if (!format.has_min) {
    const auto scale = [&](size_t s) {
      return d * static_cast<float>(static_cast<int8_t>(p[16 * s + lane]));
    };
    return {{scale(2 * sub), scale(2 * sub + 1)}, 0.0F};
  }
  const float scale = d * static_cast<float>(p[16 * sub + lane]);
  const float min = F16ToF32(LoadU16(p + 288 + 2 * lane));
  return {{scale, scale}, min * static_cast<float>(p[128 + 16 * sub + lane])};
}

}  // namespace

void PackedMatrix::Row(int64_t row, std::span<float> out) const {
  KVASIR_CHECK(row >= 0 && row < rows() && static_cast<int64_t>(out.size()) == columns());
  const Rep& rep = *rep_;
  const TileFormat format = TileFormatOf(rep.type);
  const uint8_t* tile = rep.data.get() + static_cast<size_t>(row / kTileRows) * rep.tile_bytes;
  const auto lane = static_cast<size_t>(row % kTileRows);
  if (format.code_bits == 0) return FloatRow(rep, tile, lane, out);
  for (int64_t b = 0; b < rep.columns / kBlockColumns; ++b) {
    const uint8_t* block = tile + b * format.code_bytes;
    const LaneScales w = ScalesAt(rep, tile + rep.scales_offset, b, lane);
    for (size_t c = 0; c < kBlockColumns; ++c) {
      const int code =
          internal::CodeAt(format.code_bits, block, static_cast<int>(c), static_cast<int>(lane));
      const float value = w.scale[c / 16] * static_cast<float>(code - format.zero);
      out[static_cast<size_t>(b) * kBlockColumns + c] = format.has_min ? value + w.min : value;
    }
  }
}

}  // namespace kvasir
