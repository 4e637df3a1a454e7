#include "kernels/matmul.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "kernels/isa.h"
#include "kernels/matmul_layout.h"
#include "kernels/packed_matrix.h"
#include "quant/block_codes.h"

namespace kvasir {

struct MatmulScratch::Rep {
  // Grows, never shrinks; what was in it is lost when it grows.
  struct Bytes {
    struct Free {
      void operator()(uint8_t* p) const { std::free(p); }
    };
    std::unique_ptr<uint8_t, Free> data;
    size_t size = 0;

    uint8_t* AtLeast(size_t need) {
      if (size < need) {
        const size_t rounded = (need + 63) / 64 * 64;
        data.reset(static_cast<uint8_t*>(std::aligned_alloc(64, rounded)));
        KVASIR_CHECK(data != nullptr);
        size = rounded;
      }
      return data.get();
    }
  };
  Bytes act;
  Bytes unpacked;  // one part per worker
};

MatmulScratch::MatmulScratch() : rep_(std::make_unique<Rep>()) {}
MatmulScratch::~MatmulScratch() = default;

namespace internal {

MatmulKernels::RunTiles MatmulKernels::Find(WeightType type, Path path) const {
  for (int i = 0; i < count; ++i) {
    if (entries[i].type == type) return entries[i].run[static_cast<int>(path)];
  }
  return nullptr;
}

namespace {

const MatmulKernels& Kernels() {
  switch (CurrentIsa()) {
    case Isa::kAmx:
      return MatmulAmx();
    case Isa::kAvx512:
      return MatmulAvx512();
    case Isa::kAvx2:
      return MatmulAvx2();
    case Isa::kPortable:
      break;
  }
  return MatmulPortable();
}

// Work below this many multiplications is not worth waking another thread for.
constexpr int64_t kSerialWork = int64_t{1} << 15;
constexpr size_t kPartsPerWorker = 4;

void QuantizeRows(const MatmulKernels& kernels, QuantizeJob job, Executor& executor) {
  const int groups = RowGroupCount(job.m, job.wide);
  const auto parts = std::min(static_cast<size_t>(groups),
                              static_cast<size_t>(executor.workers()) * kPartsPerWorker);
  if (parts <= 1 || job.m * job.columns < kSerialWork) {
    job.first_group = 0;
    job.last_group = groups;
    kernels.quantize(job);
    return;
  }
  const auto count = static_cast<size_t>(groups);
  executor.ParallelFor(parts, [&](size_t part, int) {
    QuantizeJob mine = job;
    mine.first_group = static_cast<int>(count * part / parts);
    mine.last_group = static_cast<int>(count * (part + 1) / parts);
    kernels.quantize(mine);
  });
}

Path PathOf(const Activations& activations) {
  switch (activations.mode) {
    case ActMode::kInt8:
      return activations.two_terms.empty() ? Path::kInt8 : Path::kMixed;
    case ActMode::kInt8x2:
      return Path::kInt8x2;
    case ActMode::kF32:
      break;
  }
  return Path::kF32;
}

Path PathFor(const PackedMatrix& w, Path path) {
  return IsFloatType(w.type()) ? Path::kF32 : path;
}

// Tiles of all targets counted through; part p takes the p-th share of them.
void RunShare(const MatmulKernels& kernels, std::span<const MatmulTarget> targets, Path path,
              const TileJob& common, int64_t first, int64_t last) {
  for (const MatmulTarget& target : targets) {
    const PackedMatrix& w = *target.w;
    if (w.rows() == 0) continue;
    const PackedMatrix::Rep& rep = w.rep();
    if (first < rep.tiles && last > 0) {
      TileJob job = common;
      job.tiles = rep.data.get();
      job.tile_bytes = rep.tile_bytes;
      job.scales_offset = rep.scales_offset;
      job.out_rows = rep.rows;
      job.first_tile = std::max<int64_t>(first, 0);
      job.last_tile = std::min(last, rep.tiles);
      job.y = target.y;
      job.ldy = target.ldy;
      job.bias = target.bias.empty() ? nullptr : target.bias.data();
      kernels.Find(rep.type, PathFor(w, path))(job);
    }
    first -= rep.tiles;
    last -= rep.tiles;
  }
}

}  // namespace
}  // namespace internal

void MatmulMany(std::span<const MatmulTarget> targets, const Activations& activations,
                const float* x, size_t ldx, int m, MatmulScratch& scratch, Executor& executor) {
  using namespace internal;
  KVASIR_CHECK(m >= 0);
  KVASIR_CHECK(activations.two_terms.empty() || activations.mode == ActMode::kInt8);
  const Path path = PathOf(activations);
  int64_t columns = 0;
  int64_t tiles = 0;
  bool quantised = false;
  for (const MatmulTarget& target : targets) {
    if (target.w->rows() == 0) continue;
    KVASIR_CHECK(columns == 0 || columns == target.w->columns());
    KVASIR_CHECK(target.bias.empty() ||
                 static_cast<int64_t>(target.bias.size()) == target.w->rows());
    columns = target.w->columns();
    tiles += target.w->rep().tiles;
    quantised |= PathFor(*target.w, path) != Path::kF32;
  }
  if (m == 0 || tiles == 0) return;
  const MatmulKernels& kernels = Kernels();
  TileJob common = {};
  common.columns = columns;
  common.x = x;
  common.ldx = ldx;
  common.m = m;
  if (quantised) {
    const bool mixed = path == Path::kMixed;
    KVASIR_CHECK(!mixed ||
                 static_cast<int64_t>(activations.two_terms.size()) == columns / kBlockColumns);
    const Terms terms = {path == Path::kInt8x2 ? 2 : 1,
                         mixed ? activations.two_terms.data() : nullptr};
    const auto rows = static_cast<size_t>(m + kWideGroupRows);  // room for padding
    common.two_terms = terms.blocks;
    common.act_row_bytes = ActRowBytes(columns, terms);
    const size_t need = rows * common.act_row_bytes;
    uint8_t* act = scratch.rep().act.AtLeast(need);
    const QuantizeJob job = {x, ldx, m,  columns, terms, common.act_row_bytes, kernels.wide,
                             0, 0,   act};
    QuantizeRows(kernels, job, executor);
    common.act = act;
  }
  const size_t unpacked = UnpackedBytes(columns);
  if (quantised && m > kFewRows) {
    common.unpacked =
        scratch.rep().unpacked.AtLeast(unpacked * static_cast<size_t>(executor.workers()));
  }
  const int64_t work = tiles * kTileRows * columns * m;
  auto parts = static_cast<int64_t>(static_cast<size_t>(executor.workers()) * kPartsPerWorker);
  parts = std::min(parts, std::min(tiles, 1 + work / kSerialWork));
  if (executor.workers() == 1 || parts <= 1) {
    RunShare(kernels, targets, path, common, 0, tiles);
    return;
  }
  executor.ParallelFor(static_cast<size_t>(parts), [&](size_t part, int worker) {
    const auto p = static_cast<int64_t>(part);
    TileJob mine = common;
    if (mine.unpacked != nullptr) mine.unpacked += unpacked * static_cast<size_t>(worker);
    RunShare(kernels, targets, path, mine, tiles * p / parts, tiles * (p + 1) / parts);
  });
}

void Matmul(const PackedMatrix& w, const Activations& activations, const float* x, size_t ldx,
            int m, float* y, size_t ldy, std::span<const float> bias, MatmulScratch& scratch,
            Executor& executor) {
  const MatmulTarget target = {&w, y, ldy, bias};
  MatmulMany(std::span(&target, 1), activations, x, ldx, m, scratch, executor);
}

}  // namespace kvasir
