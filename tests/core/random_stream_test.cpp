#include "kvevict/core/random_stream.hpp"

#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

// The first two numbers of SplitMix64 from seed 0.
TEST(MixBits, IsSplitMix64) {
  EXPECT_EQ(detail::mix_bits(0), 0xE220A8397B1DCDAFU);
  EXPECT_EQ(detail::mix_bits(0x9E3779B97F4A7C15U), 0x6E789E6AA1B965F4U);
}

// Token 2 lies in slot 2, then in slot 1.
TEST(RandomStream, ATokenKeepsItsNumberWhereverItLies) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(3);
  const RandomStream kept{.seed = 5};
  const RandomStream redrawn{.seed = 5, .redraw = true};
  const std::uint64_t before = kept.bits(sequence, 0, 2);
  EXPECT_EQ(redrawn.bits(sequence, 0, 2), before);  // nothing was cut yet
  sequence.apply(kvevict_test::mask_of("101"));
  EXPECT_EQ(kept.bits(sequence, 0, 1), before);
  EXPECT_NE(redrawn.bits(sequence, 0, 1), before);
}

TEST(RandomStream, SeedSequenceLaneAndPositionAllCount) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(100);
  std::set<std::uint64_t> numbers;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    for (std::uint64_t id = 0; id < 3; ++id) {
      for (std::size_t slot = 0; slot < 100; ++slot)
        numbers.insert(RandomStream{.seed = seed, .sequence_id = id}.bits(sequence, 0, slot));
    }
  }
  EXPECT_EQ(numbers.size(), 900U);
}

// Mean and variance of 10000 draws: 1 / 2 and 1 / 12 of the uniform one, Euler's constant of the
// Gumbel one, whose variance is pi^2 / 6; within four deviations of the mean.
TEST(RandomStream, HasTheMomentsOfItsDistributions) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  constexpr std::size_t kDraws = 10000;
  sequence.append(kDraws);
  const RandomStream stream{.seed = 1};
  double uniform = 0.0;
  double squares = 0.0;
  double gumbel = 0.0;
  for (std::size_t slot = 0; slot < kDraws; ++slot) {
    const double u = stream.uniform(sequence, 0, slot);
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    uniform += u / kDraws;
    squares += u * u / kDraws;
    gumbel += stream.gumbel(sequence, 0, slot) / kDraws;
  }
  EXPECT_NEAR(uniform, 0.5, 4 * 0.2887 / 100);
  EXPECT_NEAR(squares, 1.0 / 3.0, 4 * 0.2981 / 100);
  EXPECT_NEAR(gumbel, 0.5772, 4 * 1.2825 / 100);
}

}  // namespace
}  // namespace kvevict
