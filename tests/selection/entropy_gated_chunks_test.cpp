#include "kvevict/selection/entropy_gated_chunks.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace {

using namespace kvevict;
using kvevict_test::refuses;

/// Bits of the slots that stay of one lane of less than 64 slots.
std::uint64_t kept(std::vector<float> scores, std::size_t quota,
                   const EntropyGateOptions& options = {.chunk_len = 2, .low_entropy_len = 1},
                   std::uint64_t protected_bits = 0) {
  std::uint64_t candidates = ((std::uint64_t{1} << scores.size()) - 1) & ~protected_bits;
  std::uint64_t keep = protected_bits;
  std::vector<ScoredLane> lanes = {{0, scores, {&candidates, 1}, {&keep, 1}}};
  EntropyGatedChunks(options).choose(lanes, quota, 0);
  return keep;
}

// Means 3, 4, 1, 1.5, lower median 1.5; entropies 1, 0, 1, .918 (of 2/3 and 1/3), lower median
// .918. The second chunk owes its mean to slot 2 and gives that alone.
const std::vector<float> kScores = {3, 3, 8, 0, 1, 1, 2, 1};

TEST(EntropyGatedChunks, AnImportantChunkOfLowEntropyGivesItsBest) {
  EXPECT_EQ(kept(kScores, 1), 0b00000100U);
  EXPECT_EQ(kept(kScores, 3), 0b00000111U);
  EXPECT_EQ(kept(kScores, 5), 0b11000111U);
}
TEST(EntropyGatedChunks, TheChunkThatDoesNotFitGivesItsBest) {
  EXPECT_EQ(kept(kScores, 2), 0b00000101U);
  EXPECT_EQ(kept(kScores, 4), 0b01000111U);
}
TEST(EntropyGatedChunks, WhatIsLeftGoesToTheBestSingleTokens) {
  EXPECT_EQ(kept(kScores, 7), 0b11110111U);
  EXPECT_EQ(kept(kScores, 8), 0b11111111U);
  EXPECT_EQ(kept(kScores, 9), 0b11111111U);
  // Nothing of the second chunk at first; then 8 is the best of all that is left.
  EXPECT_EQ(kept(kScores, 7, {.chunk_len = 2, .low_entropy_len = 0}), 0b11110111U);
}

// The last chunk has one token and so the entropy 0, below the median: it is looked at as one that
// few tokens make, which for one token changes nothing.
TEST(EntropyGatedChunks, AChunkOfOneToken) {
  EXPECT_EQ(kept({1, 1, 2, 2, 9}, 3), 0b11100U);
}

// Less than zero: -3 is subtracted, which leaves (2, 0), entropy 0; the chunk before is (1, 1).
TEST(EntropyGatedChunks, NegativeScoresAreLifted) {
  EXPECT_EQ(kept({1, 1, -1, -3, 0, 0}, 5, {.chunk_len = 2, .low_entropy_len = 1}), 0b110111U);
}

// Slot 0 is protected: of its chunk slot 1 alone counts, mean 3, entropy 0.
TEST(EntropyGatedChunks, ProtectedTokensHaveNoPart) {
  EXPECT_EQ(kept({99, 3, 4, 4, 5, 5}, 2, {.chunk_len = 2, .low_entropy_len = 1}, 0b1), 0b110001U);
  EXPECT_EQ(kept({99, 3, 4, 4, 5, 5}, 4, {.chunk_len = 2, .low_entropy_len = 1}, 0b1), 0b111101U);
}

TEST(EntropyGatedChunks, AChunkWithNaNComesLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(kept({9, nan, 1, 1, 2, 2}, 4), 0b111100U);
  EXPECT_EQ(kept({9, nan, 1, 1, 2, 2}, 5), 0b111101U);
}

// Equal chunks: the earlier first; equal tokens: the lower slot.
TEST(EntropyGatedChunks, TiesGoToTheLowerSlot) {
  EXPECT_EQ(kept({1, 1, 1, 1, 1, 1}, 3), 0b111U);
}

TEST(EntropyGatedChunks, ChunksOfAllLanesCompete) {
  std::vector<float> a = {1, 1, 3, 3};
  std::vector<float> b = {2, 2, 4, 4};
  std::uint64_t candidates_a = 0b1111;
  std::uint64_t candidates_b = 0b1111;
  std::uint64_t keep_a = 0;
  std::uint64_t keep_b = 0;
  std::vector<ScoredLane> lanes = {{0, a, {&candidates_a, 1}, {&keep_a, 1}},
                                   {1, b, {&candidates_b, 1}, {&keep_b, 1}}};
  EntropyGatedChunks({.chunk_len = 2, .low_entropy_len = 1}).choose(lanes, 5, 0);
  EXPECT_EQ(keep_a, 0b1100U);
  EXPECT_EQ(keep_b, 0b1101U);
}

// Chunks that reach over a word of 64 slots.
TEST(EntropyGatedChunks, LongLanes) {
  std::vector<float> scores(200, 1.0F);
  for (std::size_t slot = 60; slot < 70; ++slot)
    scores[slot] = 2.0F;
  std::vector<std::uint64_t> candidates(4, ~std::uint64_t{0});
  candidates[3] = (std::uint64_t{1} << 8) - 1;
  std::vector<std::uint64_t> keep(4, 0);
  std::vector<ScoredLane> lanes = {{0, scores, candidates, keep}};
  EntropyGatedChunks({.chunk_len = 10, .low_entropy_len = 4}).choose(lanes, 10, 0);
  EXPECT_EQ(keep, (std::vector<std::uint64_t>{std::uint64_t{0b1111} << 60, 0b111111, 0, 0}));
}

TEST(EntropyGatedChunks, RefusesLengthsThatCannotWork) {
  EXPECT_TRUE(refuses([] { EntropyGateOptions{.chunk_len = 1}.check("Here"); },
                      {"Here", "chunk_len = 1", "must be > 1"}));
  EXPECT_TRUE(
      refuses([] { EntropyGateOptions{.chunk_len = 4, .low_entropy_len = 4}.check("Here"); },
              {"Here", "low_entropy_len = 4", "must be < chunk_len"}));
}

}  // namespace
