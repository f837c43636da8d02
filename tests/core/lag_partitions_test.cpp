#include "kvevict/core/lag_partitions.hpp"

#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

void expect(const Sequence& sequence, const LagLayout& layout, std::size_t first, std::size_t num) {
  const LagPartitions parts = find_lag_partitions(sequence, 0, layout);
  EXPECT_EQ(parts.first, first);
  EXPECT_EQ(parts.len, layout.lag_len);
  EXPECT_EQ(parts.num, num);
  EXPECT_EQ(parts.end(), first + num * layout.lag_len);
}

// 2 sinks, then 2-4, 5-7 and 8-10; the last has nothing whole behind it.
TEST(LagPartitions, LieBehindTheSinksAndBeforeAWholeOne) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(7);
  expect(sequence, {.num_sink_tokens = 2, .lag_len = 3}, 2, 0);
  sequence.append(5);
  for (const bool once : {true, false})
    expect(sequence, {.num_sink_tokens = 2, .lag_len = 3, .once = once}, 2, 2);
}

// 2-4 has lost two of its tokens: it was cut.
TEST(LagPartitions, WhatWasCutIsLeftAloneOrCutAnew) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(12);
  sequence.apply(kvevict_test::mask_of("111001111111"));
  expect(sequence, {.num_sink_tokens = 2, .lag_len = 3}, 3, 1);
  // Anew: 8 slots behind the sinks are two partitions and a rest.
  expect(sequence, {.num_sink_tokens = 2, .lag_len = 3, .once = false}, 2, 1);
}

TEST(LagPartitions, PaddingComesBeforeTheSinks) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.begin(12, {});
  sequence.append(12);
  sequence.note_prompt_padding(3);
  // 3 + 2, then 5-7, 8-10.
  for (const bool once : {true, false})
    expect(sequence, {.num_sink_tokens = 2, .lag_len = 3, .once = once}, 5, 1);
}

}  // namespace
}  // namespace kvevict
