#include "kvevict/selection/reserve.hpp"

#include "support/top_k.hpp"
#include "support/turned_scores.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Reserve;
using Slots = std::vector<std::size_t>;

// One place for the lowest score, 1; the best by their own scores, 5 and 4, fill the rest.
TEST(Reserve, SomePlacesGoByTheOtherScore) {
  std::vector<Lane> lanes = {Lane({5, 4, 3, 1})};
  auto views = views_of(lanes);
  Reserve<TurnedScores>(1).choose(views, 3, 0);
  EXPECT_EQ(lanes[0].kept(), (Slots{0, 1, 3}));
  EXPECT_EQ(lanes[0].scores, (std::vector<float>{5, 4, 3, 1}));  // as they were
}

TEST(Reserve, LanesShareWhatTheQuotaLeaves) {
  // One place for two lanes: half of it is none, so the second has it.
  EXPECT_EQ(chosen(Reserve<TurnedScores>(1), 1, {Lane({5, 4}), Lane({3, 1})}, 0),
            (std::vector<Slots>{{}, {1}}));
  // Two places each, six in all: 1 2 and 3 4 are reserved, then 9 and 8.
  EXPECT_EQ(chosen(Reserve<TurnedScores>(2), 6, {Lane({9, 8, 1, 2}), Lane({7, 6, 3, 4})}, 0),
            (std::vector<Slots>{{0, 1, 2, 3}, {2, 3}}));
}

TEST(Reserve, AShortLaneReservesWhatItHas) {
  EXPECT_EQ(chosen(Reserve<TurnedScores>(3), 4, {Lane({9}), Lane({1, 2, 3, 4})}, 0),
            (std::vector<Slots>{{0}, {0, 1, 2}}));
}

}  // namespace
}  // namespace kvevict_test
