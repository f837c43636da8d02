#include "kvevict/selection/composite_ranks.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CompositeRanks;
using kvevict::RankReduce;

/// Lanes of fewer than 64 slots, two heads per layer.
struct Lanes {
  std::vector<std::vector<float>> scores;
  std::vector<std::uint64_t> candidates;
  std::vector<std::uint64_t> keep;

  explicit Lanes(std::vector<std::vector<float>> all) : scores(std::move(all)) {
    for (const auto& lane : scores)
      candidates.push_back((std::uint64_t{1} << lane.size()) - 1);
    keep.resize(scores.size());
  }
  std::vector<std::uint64_t> chosen(const CompositeRanks& ranks, std::size_t quota,
                                    std::size_t heads = 2) {
    std::vector<kvevict::ScoredLane> lanes;
    for (std::size_t l = 0; l < scores.size(); ++l)
      lanes.push_back({l, scores[l], {&candidates[l], 1}, {&keep[l], 1}});
    ranks.choose(lanes, quota, heads);
    return keep;
  }
};

using Bits = std::vector<std::uint64_t>;

// Sorted, layer 0 has 8 4 2 and 4 2 0, so its curve is 6 3 1; layer 1 has 9 9 1 and 5 3 1: 7 6 1.
// The first layer takes the larger: 7 6 1.
const std::vector<std::vector<float>> kScores = {{4, 8, 2}, {0, 4, 2}, {9, 1, 9}, {5, 3, 1}};

TEST(CompositeRanks, LayersCompeteAndTheirHeadsAreEqual) {
  // 7 of layer 0, 7 of layer 1, 6 of layer 0.
  EXPECT_EQ(Lanes(kScores).chosen({RankReduce::kMean, 1, false}, 6), (Bits{3, 6, 1, 1}));
  // And 6 of layer 1.
  EXPECT_EQ(Lanes(kScores).chosen({RankReduce::kMean, 1, false}, 8), (Bits{3, 6, 5, 3}));
  // A ninth entry is no rank of two heads.
  EXPECT_EQ(Lanes(kScores).chosen({RankReduce::kMean, 1, false}, 9), (Bits{3, 6, 5, 3}));
}

// Maxima are 8 4 2 and 9 9 1, so layer 0 takes 9 9 2: two ranks of layer 0 come before the first of
// layer 1, and their third before nothing.
TEST(CompositeRanks, MaximaOfHeads) {
  EXPECT_EQ(Lanes(kScores).chosen({RankReduce::kMax, 0, true}, 8), (Bits{3, 6, 5, 3}));
  EXPECT_EQ(Lanes(kScores).chosen({RankReduce::kMax, 1, false}, 10), (Bits{7, 7, 5, 3}));
}

// Layer 1's 1 is below both of layer 0, which has 9 8 7.
TEST(CompositeRanks, ALayerThatWinsNothingKeepsItsMinimum) {
  const std::vector<std::vector<float>> scores = {{9, 8, 7}, {9, 8, 7}, {1, 0, 0}, {0, 1, 0}};
  // In the quota, as rule R15 has it; 0 is no minimum.
  EXPECT_EQ(Lanes(scores).chosen({RankReduce::kMean, 0, false}, 4), (Bits{1, 1, 1, 2}));
  EXPECT_EQ(Lanes(scores).chosen({RankReduce::kMean, 2, false}, 8), (Bits{3, 3, 3, 3}));
  // On top of it, as kvpress has it.
  EXPECT_EQ(Lanes(scores).chosen({RankReduce::kMean, 0, true}, 4), (Bits{3, 3, 1, 2}));
  // What is protected counts.
  Lanes lanes(scores);
  for (const std::size_t l : {2U, 3U}) {
    lanes.keep[l] = 1;
    lanes.candidates[l] = 6;
  }
  EXPECT_EQ(lanes.chosen({RankReduce::kMean, 1, false}, 4), (Bits{3, 3, 1, 1}));
}

// Of equal values the lower layer's rank wins; NaN comes last.
TEST(CompositeRanks, TiesAndNaN) {
  EXPECT_EQ(Lanes({{1, 1}, {1, 1}}).chosen({RankReduce::kMean, 0, true}, 1, 1), (Bits{1, 1}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Lanes({{nan, -3}, {nan, -2}}).chosen({RankReduce::kMean, 1, false}, 2), (Bits{2, 2}));
  EXPECT_EQ(Lanes({{nan, -3}, {nan, -2}}).chosen({RankReduce::kMean, 1, false}, 4), (Bits{3, 3}));
}

// Head 1 has lost all but one: the other ranks are head 0's alone and cost one entry each.
TEST(CompositeRanks, HeadsOfUnlikeLength) {
  EXPECT_EQ(Lanes({{3, 2, 1}, {5}}).chosen({RankReduce::kMean, 1, false}, 3), (Bits{3, 1}));
}

}  // namespace
}  // namespace kvevict_test
