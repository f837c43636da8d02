#include "kvevict/scoring/unit_key.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Floats = std::vector<float>;

TEST(ToUnit, DividesByTheNorm) {
  const Floats key = {3, 4};
  Floats unit(2);
  EXPECT_TRUE(to_unit(key.data(), true, unit));
  EXPECT_NEAR(unit[0], .6F, 1e-6F);
  EXPECT_NEAR(unit[1], .8F, 1e-6F);
}

TEST(ToUnit, IsZeroWhereThereIsNoDirectionOrNoneIsWanted) {
  Floats unit = {7, 7};
  EXPECT_TRUE(to_unit(Floats{3, 4}.data(), false, unit));
  EXPECT_EQ(unit, (Floats{0, 0}));
  unit = {7, 7};
  EXPECT_TRUE(to_unit(Floats{0, 0}.data(), true, unit));
  EXPECT_EQ(unit, (Floats{0, 0}));
  for (const float x :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    unit = {7, 7};
    EXPECT_FALSE(to_unit(Floats{1, x}.data(), true, unit));
    EXPECT_EQ(unit, (Floats{0, 0}));
  }
}

}  // namespace
}  // namespace kvevict
