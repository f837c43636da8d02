#include "kvevict/selection/chunk_quotas.hpp"

#include "support/top_k.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Budget;
using kvevict::ChunkQuotas;
using Slots = std::vector<std::size_t>;

constexpr kvevict::CacheShape kShape{
    .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

kvevict::Sequence prompt_behind(std::size_t before, std::size_t len) {
  kvevict::Sequence sequence("test", kShape, kvevict::MaskScope::kHead);
  sequence.append(before);
  sequence.begin(len, {});
  sequence.append(len);
  return sequence;
}
const ChunkQuotas kHalves({.budget = Budget::keep_ratio(.5), .chunk_len = 4});

TEST(ChunkQuotas, EveryChunkKeepsItsShare) {
  const auto sequence = prompt_behind(0, 8);
  EXPECT_EQ(chosen(kHalves, 4, {Lane({1, 2, 3, 4, 8, 7, 6, 5})}, SequenceInput{sequence})[0],
            (Slots{2, 3, 4, 5}));
}

TEST(ChunkQuotas, ProtectedTokensArePartOfTheShare) {
  const auto sequence = prompt_behind(0, 8);
  Lane lane({1, 2, 3, 4, 8, 7, 6, 5});
  lane.protect(0);
  EXPECT_EQ(chosen(kHalves, 3, {lane}, SequenceInput{sequence})[0], (Slots{0, 3, 4, 5}));
}

TEST(ChunkQuotas, WhatCameBeforeThePromptStays) {
  const auto sequence = prompt_behind(2, 4);
  EXPECT_EQ(chosen(kHalves, 4, {Lane({0, 0, 4, 1, 3, 2})}, SequenceInput{sequence})[0],
            (Slots{0, 1, 2, 4}));
}

TEST(ChunkQuotas, WithoutChunksTheBestOfAll) {
  const auto sequence = prompt_behind(0, 8);
  EXPECT_EQ(chosen(ChunkQuotas({.budget = 3}), 3, {Lane({1, 2, 3, 4, 8, 7, 6, 5})},
                   SequenceInput{sequence})[0],
            (Slots{4, 5, 6}));
}

}  // namespace
}  // namespace kvevict_test
