// Arrays of vectors stay in registers only if every loop over them is unrolled, which -O2 does not
// do by itself.
#pragma once

#include "base/sanitizer.h"

#if defined(__clang__)
#define KVASIR_UNROLL _Pragma("unroll")
#else
#define KVASIR_UNROLL _Pragma("GCC unroll 16")
#endif

// Inlined even where a compiler would not, except under AddressSanitizer: clang 14 takes longer
// than ten minutes for one file of products with every access checked in every copy.
#ifdef KVASIR_ASAN
#define KVASIR_INLINE inline
#else
#define KVASIR_INLINE inline __attribute__((always_inline))
#endif
