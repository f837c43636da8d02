#include "kvevict/core/rotary.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <array>
#include <complex>
#include <cstddef>
#include <limits>
#include <numbers>
#include <span>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::RotaryEmbedding;
using kvevict::RotaryPairing;
using kvevict::RotaryWalk;

// A quarter turn takes (a, b) to (-b, a); half a turn to (-a, -b).
TEST(RotaryEmbedding, TurnsPairsOfEitherLayout) {
  const double quarter = std::numbers::pi / 2;
  std::array<float, 5> half = {1, 2, 3, 4, 5};
  RotaryEmbedding{.inv_freq = {quarter, 2 * quarter}}.turn(1, half.data());
  const std::array<float, 5> expected_half = {-3, -2, 1, -4, 5};
  std::array<float, 5> interleaved = {1, 2, 3, 4, 5};
  RotaryEmbedding{.inv_freq = {quarter, 2 * quarter}, .pairing = RotaryPairing::kInterleaved}.turn(
      1, interleaved.data());
  const std::array<float, 5> expected_interleaved = {-2, 1, -3, -4, 5};
  for (std::size_t c = 0; c < 5; ++c) {
    EXPECT_NEAR(half[c], expected_half[c], 1e-6F) << c;
    EXPECT_NEAR(interleaved[c], expected_interleaved[c], 1e-6F) << c;
  }
}

TEST(RotaryEmbedding, TurnsBackFromFarAway) {
  const RotaryEmbedding rotary{.inv_freq = {1.0, 1e-4}};
  std::array<float, 4> row = {1, 2, 3, 4};
  rotary.turn(100000, row.data());
  rotary.turn(-100000, row.data());
  for (std::size_t c = 0; c < 4; ++c)
    EXPECT_NEAR(row[c], static_cast<float>(c + 1), 1e-6F);
}

// More positions in a row than one start serves, a gap, the same position again and one before:
// each has the factors that sines and cosines give.
TEST(RotaryWalk, FollowsPositionsAndJumps) {
  const RotaryEmbedding rotary{.inv_freq = {1.0, 0.01, 1e-4}};
  std::vector<double> memory(RotaryWalk::num_doubles(rotary));
  RotaryWalk walk(rotary, 0.5, memory);
  std::vector<double> positions;
  for (int i = 0; i < 200; ++i)
    positions.push_back(i);
  for (const double position : {1000.0, 1001.0, 1001.0, 7.0, 8.0})
    positions.push_back(position);
  for (const double position : positions) {
    const std::span<const double> factors = walk.back_from(position);
    for (std::size_t pair = 0; pair < 3; ++pair) {
      const std::complex<double> expected = 0.5 * rotary.factor(pair, -position);
      EXPECT_NEAR(factors[pair], expected.real(), 1e-13) << position;
      EXPECT_NEAR(factors[3 + pair], expected.imag(), 1e-13) << position;
    }
  }
}

// All pairs at once are the pairs one by one, in both layouts; what does not turn stays.
TEST(RotaryWalk, TurnsAllPairsAsTheyTurnOneByOne) {
  for (const RotaryPairing pairing : {RotaryPairing::kHalf, RotaryPairing::kInterleaved}) {
    const RotaryEmbedding rotary{.inv_freq = {1.0, 0.3}, .pairing = pairing};
    std::vector<double> memory(RotaryWalk::num_doubles(rotary));
    RotaryWalk walk(rotary, 1.0, memory);
    std::array<float, 5> all = {1, 2, 3, 4, 5};
    std::array<float, 5> single = all;
    rotary.turn_pairs(walk.back_from(3.0), all.data());
    for (std::size_t pair = 0; pair < 2; ++pair)
      rotary.turn_pair(pair, rotary.factor(pair, -3.0), single.data());
    for (std::size_t c = 0; c < 5; ++c)
      EXPECT_FLOAT_EQ(all[c], single[c]) << c;
    EXPECT_NE(all[0], 1.0F);
  }
}

TEST(RotaryEmbedding, RefusesWhatDoesNotFit) {
  EXPECT_NO_THROW(RotaryEmbedding{}.check("Here", 4));
  EXPECT_NO_THROW((RotaryEmbedding{.inv_freq = {1, 2}}.check("Here", 4)));
  EXPECT_TRUE(refuses(
      [] {
        RotaryEmbedding{.inv_freq = {1, 2}}.check("Here", 3);
      },
      {"Here", "inv_freq", "2"}));
  EXPECT_TRUE(refuses(
      [] {
        RotaryEmbedding{.inv_freq = {std::numeric_limits<double>::quiet_NaN()}}.check("Here", 4);
      },
      {"Here", "inv_freq", "nan"}));
}

}  // namespace
}  // namespace kvevict_test
