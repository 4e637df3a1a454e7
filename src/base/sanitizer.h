// Which sanitizer this file is compiled with, by g++ or clang: KVASIR_ASAN, KVASIR_TSAN (defined or
// not), kSanitized.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define KVASIR_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define KVASIR_TSAN 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVASIR_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define KVASIR_TSAN 1
#endif
#endif

namespace kvasir {

#if defined(KVASIR_ASAN) || defined(KVASIR_TSAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace kvasir
