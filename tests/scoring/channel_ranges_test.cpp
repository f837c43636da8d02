#include "kvevict/scoring/channel_ranges.hpp"

#include "kvevict/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Floats = std::vector<float>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Floats scaled(Floats rows, Floats ranges, float epsilon) {
  scale_by_channel_ranges(ranges, 2, epsilon, kernels::best(), rows);
  return rows;
}

TEST(ChannelRanges, AreTheEndsOfEveryChannel) {
  Floats ranges(4);
  take_channel_ranges(Floats{1, 5, 3, kNaN, 2, 4}, 2, kernels::best(), ranges);
  EXPECT_EQ(ranges, (Floats{1, 4, 3, 5}));
}

TEST(ChannelRanges, ScaleEveryChannel) {
  EXPECT_EQ(scaled({2, 4.5F, 3, 5, 5, 4}, {1, 4, 3, 5}, 0), (Floats{.5F, .5F, 1, 1, 2, 0}));
  EXPECT_EQ(scaled({2, 4}, {1, 4, 3, 5}, 2), (Floats{.25F, 0}));
}

TEST(ChannelRanges, AConstantChannelAndWhatIsNotFiniteAreZero) {
  EXPECT_EQ(scaled({2, 9}, {1, 7, 3, 7}, 1e-9F)[1], 0.0F);
  EXPECT_EQ(scaled({kNaN, kInfinity}, {1, 4, 3, 5}, 0), (Floats{0, 0}));
  EXPECT_EQ(scaled({2, kInfinity}, {1, 7, 3, 7}, 0)[1], 0.0F);
}

}  // namespace
}  // namespace kvevict
