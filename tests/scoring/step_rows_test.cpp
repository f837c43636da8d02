#include "kvevict/scoring/step_rows.hpp"

#include "kvevict/kernels/kernels.hpp"
#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace kvevict {
namespace {

using Floats = std::vector<float>;

Floats floats(std::span<const float> values) {
  return {values.begin(), values.end()};
}

// Two query heads, the rows of two tokens that see three and four slots.
struct Group {
  Floats data{.5F, .25F, .25F, -1, .25F, .25F, .25F, .25F,  // head 0
              1,   0,    0,    -1, 0,    0,    0,    1};    // head 1
  [[nodiscard]] GroupRows rows() const {
    GroupRows rows;
    rows.group_size = 2;
    rows.num_rows = 2;
    rows.first_visible = 3;
    rows.data = data.data();
    rows.head_stride = 8;
    rows.row_stride = 4;
    return rows;
  }
};

TEST(StepRows, SumsHeadsForEveryTokenAndLayer) {
  const Group group;
  StepRows step;
  EXPECT_TRUE(step.empty());
  step.start(2, 2, 1, 4);
  for (std::size_t row = 0; row < 2; ++row)
    step.add(group.rows(), row, row, 1, 0, .5F, kernels::best());
  EXPECT_EQ(step.visible(0), 3U);
  EXPECT_EQ(step.visible(1), 4U);
  EXPECT_EQ(floats(step.at(0, 1, 0)), (Floats{.75F, .125F, .125F}));
  EXPECT_EQ(floats(step.at(1, 1, 0)), (Floats{.125F, .125F, .125F, .625F}));
  EXPECT_EQ(floats(step.at(0, 0, 0)), (Floats{0, 0, 0}));
  step.add(group.rows(), 0, 0, 1, 0, .5F, kernels::best());  // a second group
  EXPECT_EQ(floats(step.at(0, 1, 0)), (Floats{1.5F, .25F, .25F}));
}

TEST(StepRows, IsCompleteWithItsLayers) {
  StepRows step;
  EXPECT_FALSE(step.complete());
  step.start(1, 2, 3, 5);
  step.complete_layer();
  EXPECT_FALSE(step.complete());
  step.complete_layer();
  EXPECT_TRUE(step.complete());
  step.start(1, 2, 3, 5);
  EXPECT_FALSE(step.complete());
}

TEST(StepRows, StartsEmptyAgain) {
  const Group group;
  StepRows step;
  step.start(2, 1, 1, 4);
  step.add(group.rows(), 1, 1, 0, 0, 1, kernels::best());
  step.start(2, 1, 1, 4);
  EXPECT_EQ(floats(step.at(1, 0, 0)), (Floats{0, 0, 0, 0}));
  Sequence sequence("test", {1, 1, 1, 1}, MaskScope::kModel);
  const auto forgets = [&](auto&& forget) {
    step.start(1, 1, 1, 2);
    forget();
    return step.empty() && !step.complete();
  };
  EXPECT_TRUE(forgets([&] { step.append(1); }));
  EXPECT_TRUE(forgets([&] { step.apply(kvevict_test::mask_of("11")); }));
  EXPECT_TRUE(forgets([&] { step.truncate(sequence); }));
  EXPECT_TRUE(forgets([&] { step.reset(); }));
}

TEST(StepRows, WhatIsNotFiniteSpoilsItsSumOnly) {
  Group group;
  group.data[0] = std::numeric_limits<float>::quiet_NaN();
  group.data[9] = std::numeric_limits<float>::infinity();
  StepRows step;
  step.start(2, 1, 1, 4);
  for (int again = 0; again < 2; ++again)
    step.add(group.rows(), 0, 0, 0, 0, .5F, kernels::best());
  EXPECT_TRUE(std::isnan(step.at(0, 0, 0)[0]));
  EXPECT_TRUE(std::isnan(step.at(0, 0, 0)[1]));
  EXPECT_EQ(step.at(0, 0, 0)[2], .25F);
}

// Every position of a long row, so vector bodies and tails are both hit.
TEST(SpoilingSum, FindsTheEntryWhereverItIs) {
  for (std::size_t bad = 0; bad < 41; ++bad) {
    Floats values(41, 1);
    Floats sums(41, 2);
    values[bad] = -std::numeric_limits<float>::infinity();
    add_spoiling(.5F, values, kernels::best(), sums);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (i == bad) {
        EXPECT_TRUE(std::isnan(sums[i]));
      } else {
        EXPECT_EQ(sums[i], 2.5F);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict
