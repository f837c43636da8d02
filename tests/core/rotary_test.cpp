#include "kvevict/core/rotary.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numbers>

namespace kvevict_test {
namespace {

using kvevict::RotaryEmbedding;
using kvevict::RotaryPairing;

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
