// What sampling asks of a row of logits, in vector code: maxima of blocks, and weights
// e^((x - max) * scale) with their sums.
//
// Every number depends on its own block of kRowBlock elements only, sums run in one fixed order (16
// lanes over the four vectors of a block, then a fixed tree), and exp is our own polynomial: all
// instruction sets give the same bits. Pure functions of plain memory; any thread.
#pragma once

#include <cstddef>
#include <span>

namespace kvasir {

inline constexpr size_t kRowBlock = 64;
constexpr size_t RowBlocks(size_t n) {
  return (n + kRowBlock - 1) / kRowBlock;
}

// maxima[b]: the largest of row[64 b .. 64 b + 63]. maxima has RowBlocks(row.size()) elements.
// False if the row holds a NaN or an infinity; maxima are right all the same unless it is a NaN.
bool RowMaxima(std::span<const float> row, std::span<float> maxima);

// weights[i] = RowWeight(row[i], max, scale), or 0 where that is below `floor`; sums[b]: of block
// b. max: the row's largest, finite; elements may be -infinity (weight 0). weights may be row.
void RowWeights(std::span<const float> row, float max, float scale, float floor,
                std::span<float> weights, std::span<float> sums);

// One of them: the same bits.
float RowWeight(float logit, float max, float scale);

}  // namespace kvasir
