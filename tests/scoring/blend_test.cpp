#include "kvevict/scoring/blend.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>

namespace kvevict {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ZScore of(std::initializer_list<float> numbers) {
  ZScore z;
  for (const float x : numbers)
    z.add(x);
  return z;
}

// Mean 2; deviation sqrt((1 + 0 + 1) / 2) = 1.
TEST(ZScore, IsTheDistanceFromTheMeanInDeviations) {
  const ZScore z = of({1, kNaN, 2, kInfinity, 3});
  EXPECT_FLOAT_EQ(z.of(2), 0.0F);
  EXPECT_FLOAT_EQ(z.of(4), 2.0F);
  EXPECT_FLOAT_EQ(z.of(-1), -3.0F);
  EXPECT_TRUE(std::isnan(z.of(kNaN)));
}

TEST(ZScore, WithoutADeviationIsZero) {
  for (const ZScore& z : {of({}), of({5}), of({5, 5, 5})}) {
    EXPECT_EQ(z.of(7), 0.0F);
    EXPECT_TRUE(std::isnan(z.of(kNaN)));
  }
}

}  // namespace
}  // namespace kvevict
