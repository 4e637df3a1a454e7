// Arrays of vectors stay in registers only if every loop over them is unrolled, which -O2 does not
// do by itself.
#pragma once

#if defined(__clang__)
#define KVASIR_UNROLL _Pragma("unroll")
#else
#define KVASIR_UNROLL _Pragma("GCC unroll 16")
#endif
