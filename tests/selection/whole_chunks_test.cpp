#include "kvevict/selection/whole_chunks.hpp"

#include "kvevict/selection/equal_quotas.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using namespace kvevict;

/// One lane of less than 64 slots.
struct Lane {
  std::vector<float> scores;
  std::uint64_t candidates;
  std::uint64_t keep = 0;

  [[nodiscard]] ScoredLane lane() { return {0, scores, {&candidates, 1}, {&keep, 1}}; }
};

// Chunks 0-1, 2-3 of two lanes: sums 3, 7 and 5, 5. Of equal chunks the earlier lane's comes first.
TEST(WholeChunks, ChunksOfAllLanesCompete) {
  Lane a{{1, 2, 3, 4}, 0b1111};
  Lane b{{2, 3, 4, 1}, 0b1111};
  std::vector<ScoredLane> lanes = {a.lane(), b.lane()};
  WholeChunks({.chunk_len = 2}).choose(lanes, 5, 0);
  EXPECT_EQ(a.keep, 0b1100U);
  EXPECT_EQ(b.keep, 0b0011U);
}

// A protected token has no part in the score of its chunk, but counts in its length.
TEST(WholeChunks, ProtectedTokensAreNoPartOfTheScore) {
  Lane lane{{9, 1, 2, 2}, 0b1110, 0b0001};
  std::vector<ScoredLane> lanes = {lane.lane()};
  WholeChunks({.chunk_len = 2}).choose(lanes, 2, 0);
  EXPECT_EQ(lane.keep, 0b1101U);
}

TEST(WholeChunks, AChunkWithNaNComesLast) {
  Lane lane{{9, std::numeric_limits<float>::quiet_NaN(), -2, -2}, 0b1111};
  std::vector<ScoredLane> lanes = {lane.lane()};
  WholeChunks({.chunk_len = 2}).choose(lanes, 2, 0);
  EXPECT_EQ(lane.keep, 0b1100U);
}

// The larger share of newest tokens first, then the score.
TEST(WholeChunks, NewestTokensComeFirst) {
  Lane lane{{9, 9, 9, 9, 0}, 0b11111};
  std::vector<ScoredLane> lanes = {lane.lane()};
  WholeChunks({.chunk_len = 2, .best_newest = 2}).choose(lanes, 3, 0);
  EXPECT_EQ(lane.keep, 0b11100U);
}

// 5 for two lanes: 3 and 2; what a short lane cannot use goes to the other.
TEST(EqualQuotas, LanesShareAlike) {
  Lane a{{1, 2, 3, 4}, 0b1111};
  Lane b{{4, 3, 2, 1}, 0b1111};
  std::vector<ScoredLane> lanes = {a.lane(), b.lane()};
  EqualQuotas().choose(lanes, 5, 0);
  EXPECT_EQ(a.keep, 0b1110U);
  EXPECT_EQ(b.keep, 0b0011U);
  Lane lonely{{1, 2, 3, 4}, 0b1111};
  Lane empty{{1}, 0b0001};
  std::vector<ScoredLane> uneven = {lonely.lane(), empty.lane()};
  EqualQuotas().choose(uneven, 4, 0);
  EXPECT_EQ(lonely.keep, 0b1110U);
  EXPECT_EQ(empty.keep, 0b0001U);
}

}  // namespace
