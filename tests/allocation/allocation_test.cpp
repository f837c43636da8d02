#include "kvevict/allocation/allocation.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 3, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 8};
constexpr std::size_t kLanes = 6;  // one per layer and head

TEST(Allocation, PoolsAreWhoCompetes) {
  EXPECT_EQ((Allocation{.budget = 8}.num_pools(kShape, kLanes)), 6U);
  EXPECT_EQ((Allocation{.budget = 8, .competition = Competition::kLayer}.num_pools(kShape, kLanes)),
            3U);
  EXPECT_EQ((Allocation{.budget = 8, .competition = Competition::kModel}.num_pools(kShape, kLanes)),
            1U);
}

TEST(Allocation, CoarseLanesAreTheirOwnPools) {
  const Allocation by_layer{.budget = 8, .competition = Competition::kLayer};
  EXPECT_EQ(by_layer.num_pools(kShape, 3), 3U);
  EXPECT_EQ(by_layer.num_pools(kShape, 1), 1U);
}

// All of a total is given out: what does not divide goes to the first pools, one each.
TEST(Allocation, ATotalIsSpentToTheLastEntry) {
  for (std::size_t total = 0; total < 40; ++total) {
    for (const Competition competition :
         {Competition::kLane, Competition::kLayer, Competition::kModel}) {
      const Allocation allocation{.budget = Budget::total(total), .competition = competition};
      const std::size_t pools = allocation.num_pools(kShape, kLanes);
      std::size_t spent = kLanes * allocation.lane_budget(kShape, 0, 1000);
      std::size_t before = total;
      for (std::size_t pool = 0; pool < pools; ++pool) {
        const std::size_t extra = allocation.remainder(kShape, kLanes, pool);
        EXPECT_LE(extra, before);
        before = extra;
        spent += extra;
      }
      EXPECT_EQ(spent, total);
    }
  }
}

// A shared lane costs one entry for every layer and head that follows it: 13 entries are 2 tokens
// in six lanes, and the one that is left buys none.
TEST(Allocation, ATotalCountsASharedLaneOftener) {
  const Allocation allocation{.budget = Budget::total(13)};
  EXPECT_EQ(allocation.lane_budget(kShape, 0, 1000), 2U);
  EXPECT_EQ(allocation.remainder(kShape, 1, 0), 0U);
  const Allocation two_more{.budget = Budget::total(14)};  // 14 = 3 layers * 2 heads * 2 + 2
  EXPECT_EQ(two_more.remainder(kShape, 3, 0), 1U);
  EXPECT_EQ(two_more.remainder(kShape, 3, 1), 0U);
}

TEST(Allocation, OtherBudgetsLeaveNoRemainder) {
  EXPECT_EQ(Allocation{.budget = 7}.remainder(kShape, kLanes, 0), 0U);
  const Allocation half{.budget = Budget::keep_ratio(0.5)};
  EXPECT_EQ(half.remainder(kShape, kLanes, 0), 0U);
  EXPECT_EQ(half.lane_budget(kShape, 0, 9), 4U);
}

}  // namespace
}  // namespace kvevict
