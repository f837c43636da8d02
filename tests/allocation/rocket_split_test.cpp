#include "kvevict/allocation/rocket_split.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace kvevict {
namespace {

// S = 4096, T = 256: c = 16, alpha = .2 + .06 * 4 = .44, 16^.44 = 2^1.76 = 3.38698,
// cap = floor(1209.3), c2 = 1209 / 256 = 4.7227: pages of min(4, ceil(2.17)) = 3 tokens,
// 64 * 3 / 4.7227 = 40.65 channels.
TEST(RocketSplit, DividesTheWorkByTheRatio) {
  const RocketSplit split = rocket_split(4096, 256, 100, 64);
  EXPECT_EQ(split.prompt_budget, 1109U);
  EXPECT_EQ(split.top_tokens, 128U);
  EXPECT_EQ(split.page_len, 3U);
  EXPECT_EQ(split.num_channels, 41U);
}

TEST(RocketSplit, AShortSequenceIsNotSplit) {
  const RocketSplit split = rocket_split(100, 256, 10, 64);
  EXPECT_EQ(split.prompt_budget, 90U);
  EXPECT_EQ(split.top_tokens, 100U);
  EXPECT_EQ(split.page_len, 1U);
  EXPECT_EQ(split.num_channels, 64U);
  EXPECT_EQ(rocket_split(100, 256, 1000, 64).prompt_budget, 0U);
}

TEST(RocketSplit, AlphaHasABound) {
  // c = 1.1e6: alpha would be 1.4; 1.1e6 / 1.1e6^.8 = 16.15.
  EXPECT_EQ(rocket_split(1100000, 1, 0, 64).prompt_budget, 16U);
}

std::size_t budget_of(std::size_t prompt, std::size_t tokens, std::size_t window, bool split) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 64};
  Sequence sequence("test", shape, MaskScope::kHead);
  sequence.begin(prompt, {});
  sequence.append(prompt);
  return RocketBudget(shape, tokens, window, 100, split).allocation(sequence).budget.count();
}

TEST(RocketBudget, IsTheFirstStageOfTheSplit) {
  EXPECT_EQ(budget_of(3996, 256, 32, true), 1109U);
  EXPECT_EQ(budget_of(3996, 256, 1200, true), 1200U);
  EXPECT_EQ(budget_of(3996, 256, 32, false), 256U);
}

}  // namespace
}  // namespace kvevict
