#include "kvevict/kernels/kernel_set.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using kvevict::kernels::order_key;

TEST(OrderKey, KeepsTheOrderOfNumbers) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> ascending = {-kInf,
                                        -std::numeric_limits<float>::max(),
                                        -1.0F,
                                        -1e-30F,
                                        -1e-45F,
                                        0.0F,
                                        1e-45F,
                                        1e-30F,
                                        0.5F,
                                        1.0F,
                                        std::nextafter(1.0F, 2.0F),
                                        std::numeric_limits<float>::max(),
                                        kInf};
  for (std::size_t i = 0; i + 1 < ascending.size(); ++i) {
    EXPECT_LT(order_key(ascending[i]), order_key(ascending[i + 1])) << ascending[i];
  }
}

TEST(OrderKey, ZerosAreEqualAndNanIsBelowEverything) {
  EXPECT_EQ(order_key(0.0F), order_key(-0.0F));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_LT(order_key(nan), order_key(-std::numeric_limits<float>::infinity()));
  EXPECT_EQ(order_key(nan), order_key(-nan));
}

}  // namespace
