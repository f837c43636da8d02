#include "kvevict/scoring/query_statistics.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::QueryStatistics;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};

// (1, 0), (3, 2), (2, 4): mean (2, 2); deviations (-1, -2), (1, 0), (0, 2): covariance
// (2, 2; 2, 8) / 3 with divisor n.
TEST(QueryStatistics, MeanAndCovariance) {
  QueryStatistics statistics(kShape, true);
  for (const std::vector<float>& query : std::vector<std::vector<float>>{{1, 0}, {3, 2}, {2, 4}})
    EXPECT_TRUE(statistics.add(1, 1, query.data()));
  EXPECT_EQ(statistics.count(1, 1), 3U);
  EXPECT_EQ(statistics.count(1, 0), 0U);
  EXPECT_NEAR(statistics.mean(1, 1)[0], 2, 1e-15);
  EXPECT_NEAR(statistics.mean(1, 1)[1], 2, 1e-15);
  std::vector<double> covariance(4);
  statistics.covariance(1, 1, covariance);
  const std::vector<double> expected = {2 / 3., 2 / 3., 2 / 3., 8 / 3.};
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(covariance[i], expected[i], 1e-15);
  statistics.covariance(0, 0, covariance);
  EXPECT_EQ(covariance, std::vector<double>(4, 0.0));
  statistics.clear();
  EXPECT_EQ(statistics.count(1, 1), 0U);
  EXPECT_EQ(statistics.mean(1, 1)[0], 0.0);
}

// Far from 0 nothing is lost: 1e6 and 1e6 + 1.
TEST(QueryStatistics, ALargeMeanTakesNothingFromTheCovariance) {
  QueryStatistics statistics(kShape, true);
  const std::vector<float> low = {1e6F, 0};
  const std::vector<float> high = {1e6F + 1, 0};
  statistics.add(0, 0, low.data());
  statistics.add(0, 0, high.data());
  std::vector<double> covariance(4);
  statistics.covariance(0, 0, covariance);
  EXPECT_NEAR(covariance[0], .25, 1e-9);
}

TEST(QueryStatistics, LeavesOutWhatIsNotFinite) {
  QueryStatistics statistics(kShape, false);
  const std::vector<float> query = {1, std::numeric_limits<float>::infinity()};
  EXPECT_FALSE(statistics.add(0, 0, query.data()));
  EXPECT_EQ(statistics.count(0, 0), 0U);
}

TEST(QueryStatistics, RefusesWhatDoesNotFit) {
  QueryStatistics with(kShape, true);
  QueryStatistics without(kShape, false);
  const std::vector<float> two(2);
  const std::vector<float> four(4);
  EXPECT_NO_THROW(with.set(1, 1, two, four));
  EXPECT_NO_THROW(without.set(1, 1, two, {}));
  EXPECT_TRUE(refuses([&] { with.set(2, 0, two, four); }, {"QueryStatistics", "layer", "2"}));
  EXPECT_TRUE(refuses([&] { with.set(0, 2, two, four); }, {"QueryStatistics", "q_head", "2"}));
  EXPECT_TRUE(refuses([&] { with.set(0, 0, four, four); }, {"QueryStatistics", "mean", "4"}));
  EXPECT_TRUE(refuses([&] { with.set(0, 0, two, {}); }, {"QueryStatistics", "covariance", "0"}));
  EXPECT_TRUE(
      refuses([&] { without.set(0, 0, two, four); }, {"QueryStatistics", "covariance", "4"}));
}

}  // namespace
}  // namespace kvevict_test
