#ifndef KVEVICT_KERNELS_KERNELS_HPP_
#define KVEVICT_KERNELS_KERNELS_HPP_

// The one kernel header that others include: picks the function set of this machine.

#include "kvevict/config.hpp"
#include "kvevict/kernels/cpu.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#if KVEVICT_SHARED_KERNELS
#define KVEVICT_KERNELS_INLINE
#else
#define KVEVICT_KERNELS_INLINE inline
#endif

#if !KVEVICT_SHARED_KERNELS || defined(KVEVICT_DEFINE_KERNELS)
#define KVEVICT_DEFINES_KERNELS 1
#include "kvevict/kernels/scalar.hpp"
#if KVEVICT_HAS_X86
#include "kvevict/kernels/avx2.hpp"
#include "kvevict/kernels/avx512.hpp"
#elif KVEVICT_HAS_NEON
#include "kvevict/kernels/neon.hpp"
#endif
#else
#define KVEVICT_DEFINES_KERNELS 0
#endif

KVEVICT_NAMESPACE_BEGIN
namespace kernels {

/// The best instruction set of this machine; the processor is asked once.
[[nodiscard]] inline Isa best_isa() noexcept {
  static const Isa isa = detail::detect_isa();
  return isa;
}

/// Whether get(isa) can run here.
[[nodiscard]] inline bool is_available(Isa isa) noexcept {
  if (isa == Isa::kAvx2)
    return best_isa() == Isa::kAvx2 || best_isa() == Isa::kAvx512;
  return isa == Isa::kScalar || isa == best_isa();
}

/// The kernels of `isa`; the scalar ones where it is not available.
[[nodiscard]] const KernelSet& get(Isa isa) noexcept;

/// The kernels that policies use unless they are given others.
[[nodiscard]] inline const KernelSet& best() noexcept {
  return get(best_isa());
}

#if KVEVICT_DEFINES_KERNELS
KVEVICT_KERNELS_INLINE const KernelSet& get(Isa isa) noexcept {
  if (is_available(isa)) {
#if KVEVICT_HAS_X86
    if (isa == Isa::kAvx512)
      return avx512::kSet;
    if (isa == Isa::kAvx2)
      return avx2::kSet;
#elif KVEVICT_HAS_NEON
    if (isa == Isa::kNeon)
      return neon::kSet;
#endif
  }
  return scalar::kSet;
}
#endif

}  // namespace kernels
KVEVICT_NAMESPACE_END

#undef KVEVICT_DEFINES_KERNELS
#undef KVEVICT_KERNELS_INLINE

#endif  // KVEVICT_KERNELS_KERNELS_HPP_
