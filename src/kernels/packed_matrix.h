// The inside of PackedMatrix.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/matmul.h"
#include "kernels/matmul_layout.h"

namespace kvasir {

struct PackedMatrix::Rep {
  WeightType type = WeightType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t tiles = 0;
  size_t tile_bytes = 0;     // a multiple of 64
  size_t scales_offset = 0;  // inside a tile
  size_t bytes = 0;
  std::shared_ptr<uint8_t> data;  // TakeBigPages
};

}  // namespace kvasir
