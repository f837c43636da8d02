#include "kvevict/allocation/budget_tables.hpp"

#include "kvevict/allocation/heavy_and_recent.hpp"
#include "kvevict/allocation/streaming_lanes.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Numbers = std::vector<std::size_t>;

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};

Numbers numbers(const Allocation& allocation) {
  return {allocation.lane_budgets.begin(), allocation.lane_budgets.end()};
}

// A table whose mean is the budget is used as it is; twice the table is the same.
TEST(LayerTable, IsScaledToTheBudget) {
  EXPECT_EQ(numbers(LayerTable("test", "table", kShape, 10, 2, {6, 14}).budgets(100)),
            (Numbers{6, 6, 14, 14}));
  EXPECT_EQ(numbers(LayerTable("test", "table", kShape, 10, 2, {12, 28}).budgets(100)),
            (Numbers{6, 6, 14, 14}));
  EXPECT_EQ(numbers(LayerTable("test", "table", kShape, 10, 2, {}).budgets(100)),
            (Numbers{10, 10, 10, 10}));
}

// Layer 0 has its window; 8 beside the windows of both are 16 for layer 1.
TEST(LayerTable, NoLayerIsBelowItsWindow) {
  EXPECT_EQ(numbers(LayerTable("test", "table", kShape, 10, 2, {1, 19}).budgets(100)),
            (Numbers{2, 2, 18, 18}));
}

TEST(LayerTable, ShortPromptsStayWhole) {
  EXPECT_EQ(numbers(LayerTable("test", "table", kShape, 10, 2, {6, 14}).budgets(9)),
            (Numbers{10, 10, 10, 10}));
  // Layer 1 has only 12 tokens to hold; layer 0 gets what it leaves.
  EXPECT_EQ(numbers(LayerTable("test", "table", kShape, 10, 2, {6, 14}).budgets(12)),
            (Numbers{8, 8, 12, 12}));
}

// b = 8, share = 4, pool = 16: score * 16 + 4, and the window of 2.
TEST(HeadTable, APartGoesByScoreAndTheRestEqually) {
  const std::vector<double> scores = {.125, .125, .25, .5};
  EXPECT_EQ(numbers(HeadTable("test", "table", kShape, 10, 2, scores, 1, 2, false).budgets(100)),
            (Numbers{8, 8, 10, 14}));
  // All by score: score * 32.
  EXPECT_EQ(numbers(HeadTable("test", "table", kShape, 10, 2, scores, 1, 1, false).budgets(100)),
            (Numbers{6, 6, 10, 18}));
  // A power of 0 makes all alike.
  EXPECT_EQ(numbers(HeadTable("test", "table", kShape, 10, 2, scores, 0, 1, false).budgets(100)),
            (Numbers{10, 10, 10, 10}));
}

// Of 10 tokens .3, 5.6, .4 and 9.6 should stay, 15.9 in all. Rounded down, but not to 0; as 16 by
// largest remainder, 0 6 0 10, of which the largest pays for the two that have none; or nobody
// pays.
TEST(ShareTable, RoundsAsItIsTold) {
  const std::vector<double> gone = {.97, .44, .96, .04};
  const auto budgets = [&](ShareRounding rounding) {
    return numbers(ShareTable("test", "ratios", kShape, gone, rounding, false).budgets(10));
  };
  EXPECT_EQ(budgets(ShareRounding::kFloors), (Numbers{1, 5, 1, 9}));
  EXPECT_EQ(budgets(ShareRounding::kExact), (Numbers{1, 6, 1, 8}));
  EXPECT_EQ(budgets(ShareRounding::kClamped), (Numbers{1, 6, 1, 10}));
}

TEST(HeavyAndRecent, AddUp) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  HeavyAndRecent both(3, 2, false, 1);
  HeavyAndRecent between_chunks(3, 2, true);
  sequence.begin(6, {});
  both.begin(sequence);
  between_chunks.begin(sequence);
  sequence.append(3);
  EXPECT_EQ(both.allocation(sequence).budget.count(), kAll);
  EXPECT_EQ(between_chunks.allocation(sequence).budget.count(), 5U);
  sequence.append(3);
  EXPECT_EQ(both.allocation(sequence).budget.count(), 5U);
  EXPECT_EQ(both.protection(sequence).recent_window, 2U);
  EXPECT_EQ(both.protection(sequence).num_sink_tokens, 1U);
}

TEST(HeavyAndRecent, AShareIsOneOfTheFirstPrompt) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  HeavyAndRecent shares(Budget::keep_ratio(.3), Budget::keep_ratio(.2), false);
  sequence.begin(10, {});
  shares.begin(sequence);
  sequence.append(10);
  sequence.append(20);
  EXPECT_EQ(shares.allocation(sequence).budget.count(), 5U);
  EXPECT_EQ(shares.protection(sequence).recent_window, 2U);
}

// round(.5 * 4) = 2 of the lowest scores; of equal ones the later.
TEST(StreamingHeads, TheLowestScoresStream) {
  const auto budgets = [](std::vector<double> scores, double ratio) {
    Sequence sequence("test", kShape, MaskScope::kHead);
    return numbers(StreamingHeads("test", kShape, scores, ratio, 7).allocation(sequence));
  };
  EXPECT_EQ(budgets({.4, .1, .3, .2}, .5), (Numbers{kAll, 7, kAll, 7}));
  EXPECT_EQ(budgets({.1, .1, .1, .1}, .25), (Numbers{kAll, kAll, kAll, 7}));
  EXPECT_EQ(budgets({std::numeric_limits<double>::quiet_NaN(), -1, -1, -1}, .25),
            (Numbers{7, kAll, kAll, kAll}));
  EXPECT_EQ(budgets({.4, .1, .3, .2}, 0), (Numbers{kAll, kAll, kAll, kAll}));
}

}  // namespace
}  // namespace kvevict
