#ifndef KVEVICT_KERNELS_KERNELS_HPP_
#define KVEVICT_KERNELS_KERNELS_HPP_

// The one kernel header that others include: picks the function set of this machine.

#include "kvevict/config.hpp"
#include "kvevict/kernels/cpu.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/kernels/scalar.hpp"

#if KVEVICT_HAS_X86
#include "kvevict/kernels/avx2.hpp"
#include "kvevict/kernels/avx512.hpp"
#elif KVEVICT_HAS_NEON
#include "kvevict/kernels/neon.hpp"
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
[[nodiscard]] inline const KernelSet& get(Isa isa) noexcept {
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

/// The kernels that policies use unless they are given others.
[[nodiscard]] inline const KernelSet& best() noexcept {
  return get(best_isa());
}

}  // namespace kernels
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_KERNELS_KERNELS_HPP_
