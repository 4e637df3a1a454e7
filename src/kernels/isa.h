// Which instruction set the kernels use. Chosen once at start; every path computes the same bits
// (docs/kernels.md), so the choice changes speed only.
#pragma once

#include <string_view>

#include "base/status.h"

namespace kvasir {

enum class Isa { kPortable, kAvx2, kAvx512 };  // kAvx512 = F, BW, VL, DQ, VNNI

std::string_view IsaName(Isa isa);  // "portable", "avx2", "avx512"
bool IsaSupported(Isa isa);         // by this CPU and this binary
Isa BestIsa();

// The path in use. Defaults to BestIsa(), or to the environment variable KVASIR_ISA if it names a
// supported one.
Isa CurrentIsa();
// Fails if KVASIR_ISA is set to an unknown or unsupported name (which CurrentIsa passes over):
// programs check it at start.
Status CheckIsaEnvironment();
// For tests: not thread-safe, call while no kernel runs. Fails if unsupported.
Status SetIsa(Isa isa);

}  // namespace kvasir
