#include "kvevict/scoring/attention_columns.hpp"

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace {

using namespace kvevict;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 1};

// Two heads, two rows; row 0 sees slots 0 and 1, row 1 all three. The 9 lies behind what row 0
// sees and is never read.
const std::vector<float> kRows{.5F, .3F, 9, .1F, .6F, .2F,   // head 0
                               .1F, .7F, 9, .3F, .2F, .4F};  // head 1

GroupRows rows_of(const std::vector<float>& data) {
  return {.layer = 0,
          .kv_head = 0,
          .group_size = 2,
          .num_rows = 2,
          .first_visible = 2,
          .first_position = 1,
          .data = data.data(),
          .head_stride = 6,
          .row_stride = 3};
}

AttentionColumns observed(RowReduce rows, HeadReduce heads, const std::vector<float>& data = kRows,
                          std::optional<std::size_t> past = std::nullopt) {
  AttentionColumns columns(kShape, rows, heads);
  columns.append(3);
  columns.observe(rows_of(data), kernels::best(), past);
  return columns;
}

void expect_near(std::span<const float> actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-6F) << i;
}

TEST(AttentionColumns, PerQueryHead) {
  const AttentionColumns sums = observed(RowReduce::kSum, HeadReduce::kNone);
  ASSERT_EQ(sums.arrays_per_kv_head(), 2U);
  expect_near(sums.of(0, 0, 0), {.6F, .9F, .2F});
  expect_near(sums.of(0, 0, 1), {.4F, .9F, .4F});
  const AttentionColumns squares = observed(RowReduce::kSquares, HeadReduce::kNone);
  expect_near(squares.of(0, 0, 0), {.26F, .45F, .04F});
  expect_near(squares.of(0, 0, 1), {.10F, .53F, .16F});
  const AttentionColumns largest = observed(RowReduce::kMax, HeadReduce::kNone);
  expect_near(largest.of(0, 0, 0), {.5F, .6F, .2F});
  expect_near(largest.of(0, 0, 1), {.3F, .7F, .4F});
}

// Rows of the mean: (.3, .5) and (.2, .4, .3).
TEST(AttentionColumns, MeanOverTheGroupComesBeforeRows) {
  expect_near(observed(RowReduce::kSum, HeadReduce::kGroupMean).of(0, 0), {.5F, .9F, .3F});
  expect_near(observed(RowReduce::kSquares, HeadReduce::kGroupMean).of(0, 0), {.13F, .41F, .09F});
  expect_near(observed(RowReduce::kMax, HeadReduce::kGroupMean).of(0, 0), {.3F, .5F, .3F});
}

TEST(AttentionColumns, ProductsOfPairs) {
  const AttentionColumns products = observed(RowReduce::kSquares, HeadReduce::kGroupProducts);
  ASSERT_EQ(products.arrays_per_kv_head(), 3U);
  expect_near(products.of(0, 0, 0), {.26F, .45F, .04F});
  expect_near(products.of(0, 0, 1), {.08F, .33F, .08F});  // .5*.1 + .1*.3, .3*.7 + .6*.2, .2*.4
  expect_near(products.of(0, 0, 2), {.10F, .53F, .16F});
}

// The group means of the rows are (.5, .9, .3); the second KV head sees them twice.
TEST(AttentionColumns, MeanOverTheHeadsOfALane) {
  const CacheShape shape{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 1};
  AttentionColumns columns(shape, RowReduce::kSum, HeadReduce::kGroupMean);
  columns.append(3);
  GroupRows rows = rows_of(kRows);
  columns.observe(rows, kernels::best());
  rows.kv_head = 1;
  columns.observe(rows, kernels::best());
  columns.observe(rows, kernels::best());
  std::vector<float> mean(3);
  columns.mean(MaskScope::kHead, 1, kernels::best(), mean);
  expect_near(mean, {1.0F, 1.8F, .6F});
  columns.mean(MaskScope::kLayer, 0, kernels::best(), mean);
  expect_near(mean, {.75F, 1.35F, .45F});
  columns.mean(MaskScope::kLayer, 1, kernels::best(), mean);
  expect_near(mean, {0, 0, 0});
  columns.mean(MaskScope::kModel, 0, kernels::best(), mean);
  expect_near(mean, {.375F, .675F, .225F});
}

// Over the first two slots the rows are (.625, .375), (1/7, 6/7) and (.125, .875), (.6, .4).
TEST(AttentionColumns, SharesOfThePast) {
  const AttentionColumns heads = observed(RowReduce::kSum, HeadReduce::kNone, kRows, 2);
  expect_near(heads.of(0, 0, 0), {.625F + 1 / 7.F, .375F + 6 / 7.F, 0});
  expect_near(heads.of(0, 0, 1), {.725F, 1.275F, 0});
  expect_near(observed(RowReduce::kSum, HeadReduce::kGroupMean, kRows, 2).of(0, 0),
              {.375F + .5F / 7 + .3F, .625F + 3 / 7.F + .2F, 0});
  expect_near(observed(RowReduce::kSquares, HeadReduce::kGroupProducts, kRows, 2).of(0, 0, 1),
              {.625F * .125F + .6F / 7, .375F * .875F + 2.4F / 7, 0});
  // Nothing lies before the window, or a row sees nothing of it.
  expect_near(observed(RowReduce::kSum, HeadReduce::kNone, kRows, 0).of(0, 0, 0), {0, 0, 0});
  std::vector<float> blind = kRows;
  blind[0] = blind[1] = 0.0F;
  expect_near(observed(RowReduce::kSum, HeadReduce::kNone, blind, 2).of(0, 0, 0),
              {1 / 7.F, 6 / 7.F, 0});
}

// Rule R19, whatever the reduction: the entry is left out and counted, no other one suffers.
TEST(AttentionColumns, NonFiniteEntriesAreLeftOutAndCounted) {
  std::vector<float> rows = kRows;
  rows[4] = kNaN;  // head 0, row 1, slot 1
  for (const RowReduce row_reduce : {RowReduce::kSum, RowReduce::kSquares, RowReduce::kMax}) {
    for (const HeadReduce head_reduce : {HeadReduce::kNone, HeadReduce::kGroupMean}) {
      AttentionColumns columns(kShape, row_reduce, head_reduce);
      columns.append(3);
      EXPECT_EQ(columns.observe(rows_of(rows), kernels::best()), 1U);
      for (std::size_t array = 0; array < columns.arrays_per_kv_head(); ++array) {
        for (const float x : columns.of(0, 0, array))
          EXPECT_GT(x, 0.0F);
      }
    }
  }
  expect_near(observed(RowReduce::kSum, HeadReduce::kNone, rows).of(0, 0, 0), {.6F, .3F, .2F});
  expect_near(observed(RowReduce::kSum, HeadReduce::kGroupMean, rows).of(0, 0), {.5F, .6F, .3F});
  expect_near(observed(RowReduce::kSum, HeadReduce::kNone, rows, 2).of(0, 0, 0),
              {.625F + 1, .375F, 0});
}

TEST(AttentionColumns, FollowsTheSequence) {
  AttentionColumns columns = observed(RowReduce::kSum, HeadReduce::kGroupMean);
  columns.append(2);
  expect_near(columns.of(0, 0), {.5F, .9F, .3F, 0, 0});
  KeepMask mask;
  mask.reset(MaskScope::kHead, 1, 1);
  mask.add_lane(5)[0] = 0b10110;
  columns.apply(mask);
  expect_near(columns.of(0, 0), {.9F, .3F, 0});
  columns.clear();
  expect_near(columns.of(0, 0), {0, 0, 0});
  columns.reset();
  EXPECT_TRUE(columns.of(0, 0).empty());
}

}  // namespace
