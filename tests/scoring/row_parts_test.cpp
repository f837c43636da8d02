#include "kvevict/kernels/kernels.hpp"
#include "kvevict/scoring/forward_max.hpp"
#include "kvevict/scoring/logit_row.hpp"
#include "kvevict/scoring/sharpened_row.hpp"
#include "kvevict/scoring/spoiling_sum.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Floats = std::vector<float>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect_near(const Floats& found, const Floats& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], wanted[i], 1e-6F) << i;
}

TEST(ForwardMax, IsTheLargestOfWhatFollows) {
  Floats x = {1, 5, 2, 0, 3};
  forward_max(3, x);
  EXPECT_EQ(x, (Floats{5, 5, 3, 3, 3}));
  forward_max(1, x);
  EXPECT_EQ(x, (Floats{5, 5, 3, 3, 3}));
}

TEST(ForwardMax, LeavesNaNOutUnlessThereIsNothingElse) {
  Floats x = {kNaN, 1, kNaN};
  forward_max(2, x);
  EXPECT_EQ(x[0], 1.0F);
  EXPECT_EQ(x[1], 1.0F);
  EXPECT_TRUE(std::isnan(x[2]));
}

// (.2 .1 0 .2)^2 is (4 1 0 4) / 100.
TEST(Sharpen, RaisesToThePowerAndDividesByTheSum) {
  Floats row = {.2F, .1F, 0, .2F};
  EXPECT_EQ(sharpen(2, kernels::best(), row), 0U);
  expect_near(row, {4.0F / 9, 1.0F / 9, 0, 4.0F / 9});
  row = {.2F, .1F, 0, .2F};
  EXPECT_EQ(sharpen(1, kernels::best(), row), 0U);
  expect_near(row, {.4F, .2F, 0, .4F});
  EXPECT_EQ(sharpen(0, kernels::best(), row), 0U);  // what is 0 stays so
  expect_near(row, {1.0F / 3, 1.0F / 3, 0, 1.0F / 3});
}

TEST(Sharpen, CountsWhatIsNotFiniteAsZero) {
  Floats row = {kNaN, .5F, kInfinity, -1};
  EXPECT_EQ(sharpen(2, kernels::best(), row), 2U);
  EXPECT_EQ(row, (Floats{0, 1, 0, 0}));
  row = {0, kNaN};
  EXPECT_EQ(sharpen(2, kernels::best(), row), 1U);
  EXPECT_EQ(row, (Floats{0, 0}));
}

TEST(AddSpoiling, MakesASumNaNForGood) {
  Floats sums = {1, 1, 1};
  add_spoiling(2, Floats{1, kNaN, 3}, kernels::best(), sums);
  EXPECT_EQ(sums[0], 3.0F);
  EXPECT_TRUE(std::isnan(sums[1]));
  EXPECT_EQ(sums[2], 7.0F);
  add_spoiling(1, Floats{1, 1, 1}, kernels::best(), sums);
  EXPECT_EQ(sums[0], 4.0F);
  EXPECT_TRUE(std::isnan(sums[1]));
}

// Slots 2 to 5 with logits ln 2, 0, ln 4, 0.
struct LogitRow : testing::Test {
  Lane lane{.seq_len = 6, .keys = {}, .values = {}, .valid = {}};
  Floats row = {std::log(2.0F), 0, std::log(4.0F), 0};

  double take(std::size_t visible) {
    return take_exponentials(lane, 2, visible, kernels::best(), row);
  }
};

TEST_F(LogitRow, AreNumeratorsOfASoftmax) {
  EXPECT_NEAR(take(6), 2.0, 1e-6);
  expect_near(row, {.5F, .25F, 1, .25F});
}

TEST_F(LogitRow, SeeNothingFromVisibleOn) {
  EXPECT_NEAR(take(4), 1.5, 1e-6);
  expect_near(row, {1, .5F, 0, 0});
  row = {1, 2, 3, 4};
  EXPECT_EQ(take(2), 0.0);
  EXPECT_EQ(row, (Floats{0, 0, 0, 0}));
  row = {1, 2, 3, 4};
  EXPECT_EQ(take(0), 0.0);
  EXPECT_EQ(row, (Floats{0, 0, 0, 0}));
}

TEST_F(LogitRow, PassOverSlotsWithoutATokenAndNaN) {
  const std::vector<std::uint8_t> valid = {1, 1, 1, 1, 0, 1};
  lane.valid = valid;
  EXPECT_NEAR(take(6), 2.0, 1e-6);
  expect_near(row, {1, .5F, 0, .5F});
  row = {kNaN, 0, 5, -kInfinity};
  EXPECT_NEAR(take(6), 1.0, 1e-6);
  expect_near(row, {0, 1, 0, 0});
}

}  // namespace
}  // namespace kvevict
