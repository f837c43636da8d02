#include "kvevict/scoring/channel_ranges.hpp"

#include "kvevict/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Floats = std::vector<float>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Ranges of two channels over `rows`.
struct Ranges {
  Floats memory = Floats(4);
  ChannelRanges ranges{memory, kernels::best()};

  explicit Ranges(const Floats& rows) {
    for (std::size_t i = 0; i < rows.size(); i += 2)
      ranges.take(rows.data() + i);
  }
};
/// The variance of a row against them. That of (a, b) is (a - b)^2 / 2.
float variance(const Floats& row, const Floats& rows, float epsilon) {
  Ranges given(rows);
  given.ranges.finish(epsilon);
  return given.ranges.variance(row.data());
}

TEST(ChannelRanges, AreTheEndsOfEveryChannel) {
  EXPECT_EQ(Ranges({1, 5, 3, kNaN, 2, 4}).memory, (Floats{1, 4, 3, 5}));
}

// The ranges are [1, 3] and [4, 6].
TEST(ChannelRanges, ScaleEveryChannel) {
  const Floats rows = {1, 4, 3, 6};
  EXPECT_EQ(variance({2, 4.5F}, rows, 0), .03125F);  // (.5, .25)
  EXPECT_EQ(variance({5, 4}, rows, 0), 2);           // (2, 0)
  EXPECT_EQ(variance({5, 4}, rows, 2), .5F);         // (1, 0)
}

TEST(ChannelRanges, AConstantChannelAndWhatIsNotFiniteAreZero) {
  const Floats rows = {1, 7, 3, 7};
  EXPECT_EQ(variance({2, 9}, rows, 1e-9F), .125F);  // (.5, 0)
  EXPECT_EQ(variance({2, kInfinity}, rows, 0), .125F);
  EXPECT_EQ(variance({kNaN, kInfinity}, {1, 4, 3, 5}, 0), 0);
  EXPECT_EQ(variance({2, 9}, {1, kNaN, 3, kNaN}, 0), .125F);  // a channel of no range
  EXPECT_EQ(variance({2, 9}, {1, 0, 3, 1e-39F}, 0), .125F);   // its inverse is infinite
}

TEST(ChannelRanges, StartOverAndMayLeaveARowAsItIs) {
  Ranges given({1, 4, 3, 6});
  given.ranges.finish_unscaled();
  EXPECT_EQ(given.ranges.variance(Floats{5, 3}.data()), 2);
  EXPECT_EQ(given.ranges.variance(Floats{2, kNaN}.data()), 2);  // (2, 0)
  given.ranges.clear();
  given.ranges.take(Floats{2, 2}.data());
  EXPECT_EQ(given.memory, (Floats{2, 2, 2, 2}));
}

}  // namespace
}  // namespace kvevict
