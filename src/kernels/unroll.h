// Arrays of vectors stay in registers only if every loop over them is unrolled, which -O2 does not
// do by itself.
#pragma once

#if defined(__clang__)
#define KVASIR_UNROLL _Pragma("unroll")
#else
#define KVASIR_UNROLL _Pragma("GCC unroll 16")
#endif

// Inlined even where a compiler would not, except under AddressSanitizer: clang 14 takes longer
// than ten minutes for one file of products with every access checked in every copy.
#if defined(__SANITIZE_ADDRESS__)
#define KVASIR_INLINE inline
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVASIR_INLINE inline
#endif
#endif
#ifndef KVASIR_INLINE
#define KVASIR_INLINE inline __attribute__((always_inline))
#endif
