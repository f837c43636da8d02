#include "kvevict/policies/qfilters.hpp"

#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

namespace {

using namespace kvevict;
using namespace kvevict_test;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 2};

std::shared_ptr<const QueryFilters> filters(QueryFilters table) {
  return std::make_shared<const QueryFilters>(std::move(table));
}

// Keys (1, 0), (0, 1), (2, -1) of every lane; filters (1, 0), (0, 1) | (1, 1), (-1, 0).
TEST(QFilters, ScoreIsMinusTheDotProduct) {
  QFilters policy({.budget = 1, .query_filters = filters({1, 0, 0, 1, 1, 1, -1, 0})}, kShape);
  WindowCache cache(kShape, 3);
  const std::vector<std::vector<float>> keys = {{1, 0}, {0, 1}, {2, -1}};
  for (std::size_t lane = 0; lane < 4; ++lane) {
    for (std::size_t slot = 0; slot < 3; ++slot)
      std::copy_n(keys[slot].begin(), 2, cache.key(lane / 2, lane % 2, slot));
  }
  policy.append(3);
  cache.append(3);
  const auto scores = [&](std::size_t lane) { return scores_of(policy, cache, lane); };
  EXPECT_EQ(scores(0), (std::vector<float>{-1, 0, -2}));
  EXPECT_EQ(scores(1), (std::vector<float>{0, -1, 1}));
  EXPECT_EQ(scores(2), (std::vector<float>{-1, -1, -1}));
  EXPECT_EQ(scores(3), (std::vector<float>{1, 0, 2}));
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(kept_slots(mask, 0, 0), (Slots{1}));
  EXPECT_EQ(kept_slots(mask, 0, 1), (Slots{2}));
  EXPECT_EQ(kept_slots(mask, 1, 0), (Slots{0}));  // a tie
  EXPECT_EQ(kept_slots(mask, 1, 1), (Slots{2}));
}

TEST(QFilters, NaNGoesFirst) {
  QFilters policy({.budget = 2, .query_filters = filters(QueryFilters(8, 1.0F))}, kShape);
  WindowCache cache(kShape, 3);
  *cache.key(0, 0, 0) = std::numeric_limits<float>::quiet_NaN();
  policy.append(3);
  cache.append(3);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{1, 2}));
  cut(policy, cache);
  EXPECT_EQ(policy.counters().non_finite, 1U);
}

TEST(QFilters, RefusesFiltersThatAreNotTheModels) {
  EXPECT_TRUE(refuses([] { QFilters({}, kShape); }, {"QFilters", "query_filters"}));
  EXPECT_TRUE(refuses(
      [] {
        QFilters({.query_filters = filters({1, 2})}, kShape);
      },
      {"QFilters", "query_filters.size()", "2"}));
}

}  // namespace
