// The rotation of quantised K and V: an orthonormal Hadamard matrix on blocks of
// HadamardBlock(dim) channels. It spreads an outlier channel over its block, so that one scale fits
// all of it. The matrix is symmetric and its own inverse: rotating twice gives the input back, up
// to rounding.
//
// The bits are fixed: log2(block) rounds of a + b, a - b over pairs at distance 1, 2, 4, ..., then
// one multiplication by the float nearest to block^(-1/2). Every path of kernels gives these bits.
#pragma once

namespace kvasir {

int HadamardBlock(int dim);      // the largest power of two that divides dim (dim >= 1)
float HadamardNorm(int block);   // block^(-1/2), rounded once
void Rotate(float* x, int dim);  // in place

}  // namespace kvasir
