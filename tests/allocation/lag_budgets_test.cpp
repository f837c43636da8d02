#include "kvevict/allocation/lag_budgets.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr LagLayout kLayout{.num_sink_tokens = 2, .lag_len = 3};

Sequence sequence_of(std::size_t len) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.append(len);
  return sequence;
}

// Of 12 tokens partitions 2-4 and 5-7 are due and lose two each.
TEST(LagBudgets, APartitionThatIsDueKeepsItsPart) {
  const LagBudgets one(kLayout, 1, kShape);
  EXPECT_EQ(one.allocation(sequence_of(12)).lane_budgets[0], 8U);
  EXPECT_EQ(one.allocation(sequence_of(7)).lane_budgets[0], 7U);
  const LagBudgets share(kLayout, Budget::keep_ratio(.7), kShape);  // floor(2.1)
  EXPECT_EQ(share.allocation(sequence_of(12)).lane_budgets[0], 10U);
  const LagBudgets more_than_all(kLayout, 9, kShape);
  EXPECT_EQ(more_than_all.allocation(sequence_of(12)).lane_budgets[0], 12U);
}

TEST(LagBudgets, PaddingIsNoTokenThatMayStay) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.begin(12, {});
  sequence.append(12);
  sequence.note_prompt_padding(3);  // partition 5-7 is due
  EXPECT_EQ(LagBudgets(kLayout, 1, kShape).allocation(sequence).lane_budgets[0], 7U);
}

// Of a budget of 6 the sinks have 2, and of the tail 8-11 all four stay; of 5 only three.
TEST(LagTailFirst, SinksComeBeforeTheTail) {
  const auto recent = [](std::size_t budget, std::size_t len) {
    const Protection protection = LagTailFirst(kLayout, budget, false).protection(sequence_of(len));
    EXPECT_EQ(protection.num_sink_tokens, 2U);
    return protection.recent_window;
  };
  EXPECT_EQ(recent(7, 12), 4U);
  EXPECT_EQ(recent(6, 12), 4U);
  EXPECT_EQ(recent(5, 12), 3U);
  EXPECT_EQ(recent(1, 12), 0U);
  EXPECT_EQ(recent(6, 7), 0U);  // nothing can be scored, so nothing is a tail
}

}  // namespace
}  // namespace kvevict
