#include "kvevict/allocation/apportion.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using Sizes = std::vector<std::size_t>;

Sizes apportion(std::vector<double> ideal, std::size_t total, std::size_t cap = 1000) {
  Sizes numbers(ideal.size());
  kvevict::apportion(
      ideal, total, [&](std::size_t) { return cap; }, numbers);
  return numbers;
}

TEST(Apportion, LargestRemaindersGetWhatIsLeft) {
  // 2.2, 3.5, 4.3 of 10: floors add up to 9.
  EXPECT_EQ(apportion({2.2, 3.5, 4.3}, 10), (Sizes{2, 4, 4}));
  // In proportion: the same ideals for 20 are 4.4, 7, 8.6.
  EXPECT_EQ(apportion({2.2, 3.5, 4.3}, 20), (Sizes{4, 7, 9}));
}

TEST(Apportion, TiesGoToTheLowerIndex) {
  EXPECT_EQ(apportion({1, 1, 1}, 10), (Sizes{4, 3, 3}));
  // 1.2, 3.2, 5.6: the binary fractions of 1.2 and 3.2 are not the same.
  EXPECT_EQ(apportion({5.2, 1.2, 3.2, 0.4}, 10), (Sizes{5, 1, 3, 1}));
  EXPECT_EQ(apportion({3.3, 1.3, 5.3, 0.1}, 10), (Sizes{4, 1, 5, 0}));
}

// 6, 15, 9 with at most 12: the other 18 go 0.4 : 0.6, 7.2 and 10.8.
TEST(Apportion, WhatACapCutsOffGoesToTheOthers) {
  EXPECT_EQ(apportion({0.4, 1, 0.6}, 30, 12), (Sizes{7, 12, 11}));
  // 28 of 40 is over the cap; then 7.4 and 12.6.
  EXPECT_EQ(apportion({28, 4, 8}, 40, 17), (Sizes{17, 8, 15}));
  // Two rounds of caps; those of no weight share the rest.
  EXPECT_EQ(apportion({8, 4, 0, 0}, 20, 6), (Sizes{6, 6, 4, 4}));
}

TEST(Apportion, CapsEndTheTotal) {
  EXPECT_EQ(apportion({1, 2, 3}, 100, 7), (Sizes{7, 7, 7}));
  EXPECT_EQ(apportion({1, 2}, 0), (Sizes{0, 0}));
  EXPECT_EQ(apportion({}, 5), (Sizes{}));
}

TEST(Apportion, NumbersThatAreNoneCountAsZero) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(apportion({nan, 1, -3, 1}, 8), (Sizes{0, 4, 0, 4}));
  EXPECT_EQ(apportion({nan, 0, -3}, 8), (Sizes{3, 3, 2}));
}

TEST(Lift, TheLargestPays) {
  Sizes numbers = {0, 5, 3, 5};
  kvevict::lift(numbers, [](std::size_t) { return std::size_t{2}; });
  EXPECT_EQ(numbers, (Sizes{2, 4, 3, 4}));
  numbers = {0, 2, 2};
  kvevict::lift(numbers, [](std::size_t) { return std::size_t{2}; });
  EXPECT_EQ(numbers, (Sizes{0, 2, 2}));
}

TEST(RoundHalfEven, DoesWhatItsNameSays) {
  for (const auto& [x, rounded] : std::vector<std::pair<double, double>>{
           {0.5, 0}, {1.5, 2}, {2.5, 2}, {2.4, 2}, {2.6, 3}, {-0.5, 0}, {7, 7}}) {
    EXPECT_EQ(kvevict::round_half_even(x), rounded) << x;
  }
}

}  // namespace
}  // namespace kvevict_test
