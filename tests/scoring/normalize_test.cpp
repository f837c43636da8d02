#include "kvevict/scoring/normalize.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using namespace kvevict;

// papers.md 2.9, reading (b): shares of .645174395, .838525492 and .819757860.
TEST(Normalise, DividesByTheSumOfTheChosenSlots) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> scores{.645174395F, .838525492F, .819757860F, 5.0F, kNaN, kInfinity};
  const std::vector<std::uint64_t> slots{0b110111};
  const double sum = finite_sum(scores, slots);
  divide_by_sum(sum, scores);
  EXPECT_NEAR(scores[0], .280089529F, 1e-6F);
  EXPECT_NEAR(scores[1], .364029031F, 1e-6F);
  EXPECT_NEAR(scores[2], .355881440F, 1e-6F);
  EXPECT_TRUE(std::isnan(scores[4]));
  EXPECT_EQ(scores[5], kInfinity);
  std::vector<float> zeros(3);
  divide_by_sum(finite_sum(zeros), zeros);
  EXPECT_EQ(zeros, (std::vector<float>(3)));
}

}  // namespace
