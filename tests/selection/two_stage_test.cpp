#include "kvevict/selection/two_stage.hpp"

#include "kvevict/selection/twin_repair.hpp"
#include "support/top_k.hpp"
#include "support/turned_scores.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Budget;
using Stages = kvevict::TwoStage<TurnedScores>;
using Slots = std::vector<std::size_t>;

// Two of four by their scores, 6 and 5; then the lowest, 1 and 2.
TEST(TwoStage, AShareGoesByTheFirstScores) {
  EXPECT_EQ(chosen(Stages(), 4, {Lane({6, 5, 4, 3, 2, 1})}, 0)[0], (Slots{0, 1, 4, 5}));
  EXPECT_EQ(
      chosen(Stages{.first_share = Budget::keep_ratio(.75)}, 4, {Lane({6, 5, 4, 3, 2, 1})}, 0)[0],
      (Slots{0, 1, 2, 5}));
}

// Half of 2 + 2 is what is protected: nothing is left to the first stage, unless it is asked to
// take some in any case.
TEST(TwoStage, ProtectedEntriesMayBePartOfTheShare) {
  Lane lane({6, 5, 4, 3, 2, 1});
  lane.protect(2);
  lane.protect(3);
  EXPECT_EQ(chosen(Stages{.counted = 2}, 2, {lane}, 0)[0], (Slots{2, 3, 4, 5}));
  EXPECT_EQ(chosen(Stages{.counted = 2}, 2, {lane}, 0, std::size_t{1})[0], (Slots{0, 2, 3, 5}));
}

// The four best are 9 8 and 7 6: two each. In each lane the best, and then the lowest.
TEST(TwoStageWithin, LanesKeepAsManyAsTheCountsSay) {
  const kvevict::TwoStageWithin<kvevict::BestOfAll, TurnedScores> within({}, Stages());
  EXPECT_EQ(chosen(within, 4, {Lane({9, 8, 1, 2}), Lane({7, 6, 3, 4})}, 0),
            (std::vector<Slots>{{0, 2}, {0, 2}}));
  // 9 8 7 6 of the first lane, 5 of the second.
  EXPECT_EQ(chosen(within, 5, {Lane({9, 8, 7, 6}), Lane({1, 2, 5, 4})}, 0),
            (std::vector<Slots>{{0, 1, 2, 3}, {2}}));
}

// Stages that say how many leave second scores behind; by those it would be 5, 4, 3 and then 0.
TEST(TwoStageWithin, CountsThatRescoreChangeNoScore) {
  const kvevict::TwoStageWithin<Stages, TurnedScores> within(
      Stages(), Stages{.first_share = Budget::keep_ratio(.75)});
  EXPECT_EQ(chosen(within, 4, {Lane({6, 5, 4, 3, 2, 1})}, 0)[0], (Slots{0, 1, 2, 5}));
}

}  // namespace
}  // namespace kvevict_test
