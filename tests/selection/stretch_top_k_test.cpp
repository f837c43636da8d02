#include "kvevict/selection/stretch_top_k.hpp"

#include "support/top_k.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <vector>

namespace kvevict_test {
namespace {

using Slots = std::vector<std::size_t>;

TEST(StretchTopK, TakesTheBestOfAStretchAndLeavesTheRestOpen) {
  std::vector<Lane> lanes = {Lane({5, 1, 4, 3, 9})};
  const auto views = views_of(lanes);
  kvevict::StretchTopK best;
  EXPECT_EQ(best.select(views[0], 1, 4, 2), 2U);
  EXPECT_EQ(lanes[0].kept(), (Slots{2, 3}));
  // What was taken is no candidate any more: of 0, 1, 4 the best.
  EXPECT_EQ(best.select(views[0], 0, 5, 2), 2U);
  EXPECT_EQ(lanes[0].kept(), (Slots{0, 2, 3, 4}));
}

// Slots 60 to 69 lie in two words.
TEST(StretchTopK, StretchesOverWords) {
  std::vector<float> scores(130);
  std::iota(scores.begin(), scores.end(), 0.0F);
  std::vector<Lane> lanes = {Lane(scores)};
  EXPECT_EQ(kvevict::StretchTopK().select(views_of(lanes)[0], 60, 70, 7), 7U);
  EXPECT_EQ(lanes[0].kept(), (Slots{63, 64, 65, 66, 67, 68, 69}));
}

TEST(StretchTopK, TakesNoMoreThanThereAre) {
  std::vector<Lane> lanes = {Lane({1, 2, 3})};
  lanes[0].protect(1);
  kvevict::StretchTopK best;
  EXPECT_EQ(best.select(views_of(lanes)[0], 0, 2, 9), 1U);
  EXPECT_EQ(best.select(views_of(lanes)[0], 2, 2, 9), 0U);
  EXPECT_EQ(best.select(views_of(lanes)[0], 2, 3, 0), 0U);
  EXPECT_EQ(lanes[0].kept(), (Slots{0, 1}));
}

}  // namespace
}  // namespace kvevict_test
