#include "kvevict/scoring/row_counts.hpp"
#include "kvevict/scoring/row_entropy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Floats = std::vector<float>;

TEST(RowEntropy, IsOneForAnEvenRowAndZeroForOneSlot) {
  EXPECT_DOUBLE_EQ(normalised_entropy(Floats{.25F, .25F, .25F, .25F}), 1.0);
  EXPECT_DOUBLE_EQ(normalised_entropy(Floats{0, 1, 0}), 0.0);
  // .5 ln 2 + .5 ln 4 = 1.5 ln 2
  EXPECT_NEAR(normalised_entropy(Floats{.5F, .25F, .25F}), 1.5 * std::log(2.0) / std::log(3.0),
              1e-12);
}

TEST(RowEntropy, OfARowWithoutChoiceIsOne) {
  EXPECT_EQ(normalised_entropy(Floats{1}), 1.0);
  EXPECT_EQ(normalised_entropy(Floats{}), 1.0);
}

// Half of the row went to a sink: -2 (.25 ln .25) / ln 2 = 1, not that of (.5, .5) made whole.
TEST(RowEntropy, TakesTheRowAsGiven) {
  EXPECT_DOUBLE_EQ(normalised_entropy(Floats{.25F, .25F}), 1.0);
  EXPECT_NEAR(normalised_entropy(Floats{.125F, .125F}), .75, 1e-12);
  EXPECT_EQ(normalised_entropy(Floats{0, 0, 0}), 0.0);
}

TEST(RowEntropy, LeavesOutWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_NEAR(normalised_entropy(Floats{.5F, nan, infinity, -1}), .25, 1e-12);
}

TEST(RowCounts, CountsTheRowsThatSeeASlot) {
  GroupRows rows;
  rows.group_size = 4;  // a row counts once
  rows.num_rows = 3;
  rows.first_visible = 2;
  Floats counts{5, 0, 0, 0, 7};
  count_rows(rows, counts);
  EXPECT_EQ(counts, (Floats{8, 3, 2, 1, 7}));
  rows.num_rows = 1;
  rows.first_visible = 5;
  count_rows(rows, counts);
  EXPECT_EQ(counts, (Floats{9, 4, 3, 2, 8}));
}

// A prompt, row t seeing t + 1 slots: in one piece or in many the last slot is seen once.
TEST(RowCounts, PiecesAddUp) {
  Floats whole(9);
  Floats pieces(9);
  GroupRows rows;
  rows.num_rows = 9;
  rows.first_visible = 1;
  count_rows(rows, whole);
  EXPECT_EQ(whole, (Floats{9, 8, 7, 6, 5, 4, 3, 2, 1}));
  rows.num_rows = 3;
  for (rows.first_visible = 1; rows.first_visible < 9; rows.first_visible += 3) {
    count_rows(rows, pieces);
  }
  EXPECT_EQ(pieces, whole);
}

}  // namespace
}  // namespace kvevict
