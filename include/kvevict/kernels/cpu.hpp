#ifndef KVEVICT_KERNELS_CPU_HPP_
#define KVEVICT_KERNELS_CPU_HPP_

#include "kvevict/config.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#if KVEVICT_HAS_X86 && defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#include <intrin.h>
#elif KVEVICT_HAS_X86
#include <cpuid.h>
#endif

KVEVICT_NAMESPACE_BEGIN
namespace kernels::detail {

#if KVEVICT_HAS_X86 && defined(_MSC_VER) && !defined(__clang__)

[[nodiscard]] inline bool cpu_has_avx2() noexcept {
  int leaf1[4];
  int leaf7[4];
  __cpuidex(leaf1, 1, 0);
  constexpr int kOsSavesAvx = 1 << 27 | 1 << 28 | 1 << 12 | 1 << 29;  // OSXSAVE, AVX, FMA, F16C
  if ((leaf1[2] & kOsSavesAvx) != kOsSavesAvx || (_xgetbv(0) & 6) != 6)
    return false;
  __cpuidex(leaf7, 7, 0);
  return (leaf7[1] & 1 << 5) != 0;
}
[[nodiscard]] inline bool cpu_has_avx512() noexcept {
  if (!cpu_has_avx2() || (_xgetbv(0) & 0xE6) != 0xE6)
    return false;
  int leaf7[4];
  __cpuidex(leaf7, 7, 0);
  constexpr unsigned kWanted = 1U << 16 | 1U << 17 | 1U << 30 | 1U << 31;  // F, DQ, BW, VL
  return (static_cast<unsigned>(leaf7[1]) & kWanted) == kWanted;
}

#elif KVEVICT_HAS_X86

[[nodiscard]] inline bool cpu_has_avx2() noexcept {
  // The builtin also asks whether the operating system saves the registers; it has no name for
  // F16C in every compiler.
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
[[nodiscard]] inline bool cpu_has_avx512() noexcept {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

#endif

/// The best instruction set that this machine has and this build contains.
[[nodiscard]] inline Isa detect_isa() noexcept {
#if KVEVICT_HAS_X86
  if (cpu_has_avx512())
    return Isa::kAvx512;
  if (cpu_has_avx2())
    return Isa::kAvx2;
#elif KVEVICT_HAS_NEON
  return Isa::kNeon;
#endif
  return Isa::kScalar;
}

}  // namespace kernels::detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_KERNELS_CPU_HPP_
