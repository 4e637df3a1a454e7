// CHECK: for our own mistakes only, on in release builds too. Bad input is a Status, "full" or
// "absent" is a value.
#pragma once

namespace kvasir::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression);
}  // namespace kvasir::internal

#define KVASIR_CHECK(condition)                                        \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::kvasir::internal::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#ifdef NDEBUG
#define KVASIR_DCHECK(condition) \
  do {                           \
  } while (false)
#else
#define KVASIR_DCHECK(condition) KVASIR_CHECK(condition)
#endif
