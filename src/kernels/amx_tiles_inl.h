// What the AMX paths share. Only for *_amx.cc.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace kvasir::internal {
namespace {

// What _tile_loadconfig reads: rows and bytes a row of the eight tile registers (Intel's
// architecture manual, "TILECFG").
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The compiler does not see what tile instructions read and write.
inline void MemoryIsWritten() {
  asm volatile("" ::: "memory");
}

// g++ 12's _tile_loadconfig names the first 8 bytes as what it reads: the rest must be in memory.
inline void LoadTileConfig(const TileConfig& config) {
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  asm volatile("" : : "r"(&config) : "memory");
}

}  // namespace
}  // namespace kvasir::internal
