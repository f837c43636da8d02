#include "kvevict/scoring/channel_ranges.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Floats = std::vector<float>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Floats scaled(const Floats& rows, const Floats& ranges, float epsilon) {
  Floats out(rows.size());
  scale_by_channel_ranges(rows, 2, ranges, epsilon, out);
  return out;
}

TEST(ChannelRanges, AreTheEndsOfEveryChannel) {
  Floats ranges(4);
  take_channel_ranges(Floats{1, 5, 3, kNaN, 2, 4}, 2, ranges);
  EXPECT_EQ(ranges, (Floats{1, 4, 3, 5}));
}

TEST(ChannelRanges, ScaleEveryChannel) {
  EXPECT_EQ(scaled({2, 4.5F, 3, 5, 5, 4}, {1, 4, 3, 5}, 0), (Floats{.5F, .5F, 1, 1, 2, 0}));
  EXPECT_EQ(scaled({2, 4}, {1, 4, 3, 5}, 2), (Floats{.25F, 0}));
}

TEST(ChannelRanges, WithoutRangesRowsStayAsTheyAre) {
  EXPECT_EQ(scaled({2, -7}, {}, 1), (Floats{2, -7}));
}

TEST(ChannelRanges, AConstantChannelAndWhatIsNotFiniteAreZero) {
  EXPECT_EQ(scaled({2, 9}, {1, 7, 3, 7}, 1e-9F)[1], 0.0F);
  EXPECT_EQ(scaled({kNaN, kInfinity}, {1, 4, 3, 5}, 0), (Floats{0, 0}));
  EXPECT_EQ(scaled({kInfinity, 1}, {}, 0), (Floats{0, 1}));
}

}  // namespace
}  // namespace kvevict
