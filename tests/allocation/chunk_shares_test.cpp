#include "kvevict/allocation/chunk_shares.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <vector>

namespace kvevict {
namespace {

using Chunks = std::vector<std::array<std::size_t, 3>>;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
const ChunkShareOptions kHalves{.budget = Budget::keep_ratio(.5), .chunk_len = 4, .window = 2};

Sequence prompt_behind(std::size_t before, std::size_t len) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.append(before);
  sequence.begin(len, {});
  sequence.append(len);
  return sequence;
}
Chunks chunks_of(const Sequence& sequence) {
  Chunks chunks;
  for_each_prompt_chunk(sequence, 0, kHalves,
                        [&](std::size_t first, std::size_t last, std::size_t count) {
                          chunks.push_back({first, last, count});
                        });
  return chunks;
}
std::size_t budget_of(const Sequence& sequence) {
  return ChunkShares(kHalves, kShape, MaskScope::kHead).allocation(sequence).lane_budgets[0];
}

// The last chunk is short: its share of one is less than the window of two.
TEST(ChunkShares, HalfOfEveryChunkAndTheWindow) {
  const Sequence sequence = prompt_behind(0, 10);
  EXPECT_EQ(chunks_of(sequence), (Chunks{{0, 4, 2}, {4, 8, 2}, {8, 10, 2}}));
  EXPECT_EQ(budget_of(sequence), 6U);
}

// Of 0-3, 4-7, 8 the window has 7 and 8.
TEST(ChunkShares, TheWindowMayReachOverChunks) {
  EXPECT_EQ(chunks_of(prompt_behind(0, 9)), (Chunks{{0, 4, 2}, {4, 8, 2}, {8, 9, 1}}));
}

TEST(ChunkShares, WhatCameBeforeThePromptIsPaidForInFull) {
  const Sequence sequence = prompt_behind(3, 4);
  EXPECT_EQ(chunks_of(sequence), (Chunks{{3, 7, 2}}));
  EXPECT_EQ(budget_of(sequence), 5U);
}

TEST(ChunkShares, ChunksStartBehindPadding) {
  Sequence sequence = prompt_behind(0, 10);
  sequence.note_prompt_padding(3);
  EXPECT_EQ(chunks_of(sequence), (Chunks{{3, 7, 2}, {7, 10, 2}}));
}

TEST(ChunkShares, WithoutChunksTheBudgetIsThatOfALane) {
  const Allocation allocation =
      ChunkShares({.budget = 5}, kShape, MaskScope::kHead).allocation(prompt_behind(0, 10));
  EXPECT_TRUE(allocation.lane_budgets.empty());
  EXPECT_EQ(allocation.budget.count(), 5U);
}

}  // namespace
}  // namespace kvevict
