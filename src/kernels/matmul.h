// Y = X * W^T + bias for weights of every served type.
//
// W is packed once into tiles of 16 output rows (docs/kernels.md gives the byte layout); packing
// loses nothing: the packed matrix dequantises to the bits of DequantizeRow. X rows are quantised
// on entry as the mode says.
//
// Promise 3: a row of Y depends on that row of X only. The K dimension is walked in ascending
// blocks of 32 in one order for every number of rows and threads and for every instruction set
// (integer sums are exact, float folds use fma in the same order), so all paths agree bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "quant/weight_type.h"

namespace kvasir {

// How the rows of X enter a product with quantised weights. Float weights (F32, F16, BF16) always
// use kF32.
enum class ActMode : uint8_t {
  kInt8,    // one signed 8-bit term, one scale per 32
  kInt8x2,  // value and residual, two 8-bit terms per 32: about 16 bits, twice the integer work
  kF32,     // as they are, weights dequantised on the fly: the reference, slow
};

// How a call takes its X: a mode alone, or kInt8 with a second term for some blocks of 32 columns
// (those whose rounding hurts a model most: the same for every row, so rows stay independent).
// `two_terms`: empty, or one byte per block of 32 columns, nonzero = that block is computed as
// kInt8x2 does, the others as kInt8. The cost is that of the terms. Only with kInt8; the bytes live
// as long as the call. Float weights pass over both.
struct Activations {
  Activations(ActMode how,  // NOLINT(google-explicit-constructor)
              std::span<const uint8_t> blocks = {})
      : mode(how), two_terms(blocks) {}
  ActMode mode;
  std::span<const uint8_t> two_terms;
};

// Non-owning view of one tensor's rows as the file holds them: `rows` rows of `columns` elements.
struct WeightView {
  WeightType type = WeightType::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
};

// Owns its bytes. Immutable after Pack, safe to use from any thread.
class PackedMatrix {
 public:
  PackedMatrix();
  ~PackedMatrix();
  PackedMatrix(PackedMatrix&&) noexcept;
  PackedMatrix& operator=(PackedMatrix&&) noexcept;

  // Packs one or several tensors of the same type and column count, stacked (merged QKV, gate-up).
  // Rows need not be a multiple of 16. Columns must be a multiple of the type's block (any number
  // for float types).
  static Result<PackedMatrix> Pack(std::span<const WeightView> parts, Executor& executor);

  int64_t rows() const;
  int64_t columns() const;
  size_t bytes() const;  // memory held
  WeightType type() const;
  // One row as floats, the same bits as DequantizeRow of the source: embedding look-up for tied
  // outputs, and tests.
  void Row(int64_t row, std::span<float> out) const;

  struct Rep;
  const Rep& rep() const { return *rep_; }

 private:
  std::unique_ptr<Rep> rep_;
};

// Scratch for quantised activations; grows to the largest call and stays (no allocation in a steady
// step).
class MatmulScratch {
 public:
  MatmulScratch();
  ~MatmulScratch();
  MatmulScratch(const MatmulScratch&) = delete;
  MatmulScratch& operator=(const MatmulScratch&) = delete;
  struct Rep;
  Rep& rep() { return *rep_; }

 private:
  std::unique_ptr<Rep> rep_;
};

// X: `m` rows of w.columns() floats, row stride ldx (elements). Y: m rows of w.rows() floats,
// stride ldy. bias: w.rows() floats or empty. X and Y do not overlap.
void Matmul(const PackedMatrix& w, const Activations& activations, const float* x, size_t ldx,
            int m, float* y, size_t ldy, std::span<const float> bias, MatmulScratch& scratch,
            Executor& executor);

// The same for several matrices reading the same X (types differ, so they could not be stacked): X
// is quantised once.
struct MatmulTarget {
  const PackedMatrix* w = nullptr;
  float* y = nullptr;
  size_t ldy = 0;
  std::span<const float> bias;
};
void MatmulMany(std::span<const MatmulTarget> targets, const Activations& activations,
                const float* x, size_t ldx, int m, MatmulScratch& scratch, Executor& executor);

}  // namespace kvasir
