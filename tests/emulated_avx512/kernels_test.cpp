// All comparisons of the kernels with AVX-512 emulated, where this machine may not have it.
#include "emulated_avx512/emulation.hpp"
#include "kernels/parity_test.cpp"  // NOLINT(bugprone-suspicious-include): the same tests

namespace {

// Without it the comparisons would have passed over what they are here for.
TEST_P(Kernels, TakesPartInAvx512) {
#if KVEVICT_HAS_X86 && (defined(__GNUC__) || defined(__clang__))
  EXPECT_TRUE(kernels::is_available(Isa::kAvx512));
  EXPECT_EQ(available().size(), 3U);
#else
  GTEST_SKIP() << "AVX-512 is emulated with AVX2 alone";
#endif
}

}  // namespace
