// Which instruction set the kernels use. Chosen once at start; every path computes the same bits
// (docs/kernels.md), so the choice changes speed only.
#pragma once

#include <string_view>

#include "base/status.h"

namespace kvasir {

// kAvx512 = F, BW, VL, DQ, VNNI. kAmx = kAvx512 and int8 tiles for products of many rows.
enum class Isa { kPortable, kAvx2, kAvx512, kAmx };
inline constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

std::string_view IsaName(Isa isa);  // "portable", "avx2", "avx512", "amx"
// By this CPU, this system and this binary. The first question about kAmx asks the system for leave
// to use tiles, once and for all threads of the process.
bool IsaSupported(Isa isa);
Isa BestIsa();

// The path in use. Defaults to BestIsa(), or to the environment variable KVASIR_ISA if it names a
// supported one (empty: as if unset).
Isa CurrentIsa();
// Fails if KVASIR_ISA is set to an unknown or unsupported name (which CurrentIsa passes over):
// programs check it at start.
Status CheckIsaEnvironment();
// For tests: not thread-safe, call while no kernel runs. Fails if unsupported.
Status SetIsa(Isa isa);

}  // namespace kvasir
