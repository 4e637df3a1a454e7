#include "kernels/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace kvasir {
namespace {

// clang 14 does not know "f16c" as a name.
bool HasF16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// AMX-TILE and AMX-INT8, and the system's leave to use tile registers, which Linux wants to be
// asked for since they make every thread's saved state 8 KiB larger.
bool MayUseTiles() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kTile = 1u << 24;
  constexpr unsigned kInt8 = 1u << 25;
  if ((d & kTile) == 0 || (d & kInt8) == 0) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Isa FirstIsa() {
  const char* wanted = std::getenv("KVASIR_ISA");
  if (wanted != nullptr) {
    for (const Isa isa : kAllIsas) {
      if (IsaName(isa) == wanted && IsaSupported(isa)) return isa;
    }
  }
  return BestIsa();
}

std::atomic<Isa>& Current() {
  static std::atomic<Isa> current(FirstIsa());
  return current;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

// __builtin_cpu_supports also asks XGETBV whether the system saves the wide registers.
bool IsaSupported(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi2") && HasF16c();
    case Isa::kAvx512:
      return IsaSupported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    case Isa::kAmx: {
      static const bool may = IsaSupported(Isa::kAvx512) && MayUseTiles();
      return may;
    }
  }
  return false;
}

Isa BestIsa() {
  if (IsaSupported(Isa::kAmx)) return Isa::kAmx;
  if (IsaSupported(Isa::kAvx512)) return Isa::kAvx512;
  if (IsaSupported(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kPortable;
}

Isa CurrentIsa() {
  return Current().load(std::memory_order_relaxed);
}

Status CheckIsaEnvironment() {
  const char* wanted = std::getenv("KVASIR_ISA");
  if (wanted == nullptr || *wanted == '\0') return Status::Ok();
  std::string supported;
  for (const Isa isa : kAllIsas) {
    if (!IsaSupported(isa)) continue;
    if (IsaName(isa) == wanted) return Status::Ok();
    supported += (supported.empty() ? "" : ", ") + std::string(IsaName(isa));
  }
  return InvalidArgument("KVASIR_ISA: '" + std::string(wanted) + "' is not one of " + supported +
                             " (what this CPU has)",
                         "KVASIR_ISA");
}

Status SetIsa(Isa isa) {
  if (!IsaSupported(isa)) {
    return InvalidArgument("instruction set " + std::string(IsaName(isa)) +
                               " is not supported by this CPU; the best it has is " +
                               std::string(IsaName(BestIsa())),
                           "isa");
  }
  Current().store(isa, std::memory_order_relaxed);
  return Status::Ok();
}

}  // namespace kvasir
