#include "kvevict/scoring/query_statistics.hpp"

#include "kvevict/core/scratch.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
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

/// What `statistics` are apart from those of the same rows, added one by one to one head.
double apart_from_singles(const QueryStatistics& statistics, const std::vector<float>& rows) {
  const std::size_t dim = statistics.shape().head_dim;
  QueryStatistics singles(statistics.shape(), true);
  for (std::size_t i = 0; i < rows.size(); i += dim)
    singles.add(0, 0, rows.data() + i);
  EXPECT_EQ(statistics.count(0, 0), singles.count(0, 0));
  std::vector<double> covariance(dim * dim);
  std::vector<double> expected(dim * dim);
  statistics.covariance(0, 0, covariance);
  singles.covariance(0, 0, expected);
  double apart = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    EXPECT_NEAR(statistics.mean(0, 0)[i], singles.mean(0, 0)[i], 1e-8);
    for (std::size_t j = 0; j < dim; ++j) {
      const double scale = std::sqrt(expected[i * dim + i] * expected[j * dim + j]);
      apart = std::max(apart, std::abs(covariance[i * dim + j] - expected[i * dim + j]) / scale);
    }
  }
  return apart;
}

// Blocks are products of floats about the block's mean: 1e-6 of the deviations, also where these
// are a ten thousandth of the mean. Any cut into calls gives the same up to that.
TEST(QueryStatistics, BlocksAreTheSameAsSingleQueries) {
  constexpr std::size_t kDim = 20;  // not whole tiles
  constexpr std::size_t kRows = 150;
  constexpr CacheShape kOne{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = kDim};
  std::vector<float> rows(kRows * kDim);
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = 1e4F * static_cast<float>(i % kDim) + std::sin(static_cast<float>(i * i % 1009));
  for (const std::size_t size : {1U, 2U, 63U, 64U, 65U, 150U}) {
    QueryStatistics statistics(kOne, true);
    kvevict::Scratch scratch;
    for (std::size_t first = 0; first < kRows; first += size) {
      const std::size_t last = std::min(kRows, first + size);
      std::vector<float> part(rows.data() + first * kDim, rows.data() + last * kDim);
      EXPECT_EQ(statistics.add_rows(0, 0, part, kvevict::kernels::best(), scratch), 0U);
    }
    EXPECT_LT(apart_from_singles(statistics, rows), 1e-6) << size;
  }
}

// Squares of 1e25 are no floats: 1e25 and 3e25 have the variance 1e50 all the same.
TEST(QueryStatistics, BlocksOfLargeQueriesAreAddedInDouble) {
  QueryStatistics statistics(kShape, true);
  kvevict::Scratch scratch;
  std::vector<float> rows = {1e25F, 1, 3e25F, 1};
  EXPECT_EQ(statistics.add_rows(0, 0, rows, kvevict::kernels::best(), scratch), 0U);
  std::vector<double> covariance(4);
  statistics.covariance(0, 0, covariance);
  EXPECT_NEAR(covariance[0], 1e50, 1e44);
}

// Of (1, 0), NaN, (3, 2), infinity, (2, 4) three are left, as in MeanAndCovariance.
TEST(QueryStatistics, BlocksLeaveOutWhatIsNotFinite) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const bool with_covariance : {true, false}) {
    QueryStatistics statistics(kShape, with_covariance);
    kvevict::Scratch scratch;
    std::vector<float> rows = {1, 0, kNaN, 0, 3, 2, 7, -kInfinity, 2, 4};
    EXPECT_EQ(statistics.add_rows(1, 1, rows, kvevict::kernels::best(), scratch), 2U);
    EXPECT_EQ(statistics.count(1, 1), 3U);
    EXPECT_NEAR(statistics.mean(1, 1)[1], 2, 1e-15);
    if (with_covariance) {
      std::vector<double> covariance(4);
      statistics.covariance(1, 1, covariance);
      EXPECT_NEAR(covariance[2], 2 / 3., 1e-6);
      EXPECT_NEAR(covariance[3], 8 / 3., 1e-6);
    }
  }
}

// (3, 4) and (0, 1) have lengths 5 and 1; with the other pairing of four channels (3, 0) and (4,
// 1).
TEST(QueryStatistics, MeanLengthsOfBands) {
  constexpr CacheShape kFour{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 4};
  const std::vector<float> query = {3, 0, 4, 1};
  const std::vector<float> twice = {6, 0, 8, 2};
  QueryStatistics half(kFour, false, {.inv_freq = {1, .1}});
  EXPECT_EQ(half.num_bands(), 2U);
  half.add(0, 0, query.data());
  half.add(0, 0, twice.data());
  EXPECT_DOUBLE_EQ(half.band_lengths(0, 0)[0], 7.5);
  EXPECT_DOUBLE_EQ(half.band_lengths(0, 0)[1], 1.5);
  QueryStatistics interleaved(
      kFour, false, {.inv_freq = {1, .1}, .pairing = kvevict::RotaryPairing::kInterleaved});
  interleaved.add(0, 0, query.data());
  EXPECT_DOUBLE_EQ(interleaved.band_lengths(0, 0)[0], 3);
  EXPECT_DOUBLE_EQ(interleaved.band_lengths(0, 0)[1], std::sqrt(17.0));
  EXPECT_EQ(QueryStatistics(kFour, false).num_bands(), 0U);
}

// Statistics of 3 and of 5 queries together are those of all 8.
TEST(QueryStatistics, MergeByTheirCounts) {
  const kvevict::RotaryEmbedding rotary{.inv_freq = {1}};
  QueryStatistics all(kShape, true, rotary);
  QueryStatistics first(kShape, true, rotary);
  QueryStatistics second(kShape, true, rotary);
  for (int i = 0; i < 8; ++i) {
    const std::vector<float> query = {static_cast<float>(i * i), static_cast<float>(3 - i)};
    all.add(1, 0, query.data());
    (i < 3 ? first : second).add(1, 0, query.data());
  }
  first.merge(second);
  EXPECT_EQ(first.count(1, 0), 8U);
  EXPECT_EQ(first.count(0, 0), 0U);
  std::vector<double> merged(4);
  std::vector<double> expected(4);
  first.covariance(1, 0, merged);
  all.covariance(1, 0, expected);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(merged[i], expected[i], 1e-12);
  EXPECT_NEAR(first.mean(1, 0)[0], all.mean(1, 0)[0], 1e-12);
  EXPECT_NEAR(first.band_lengths(1, 0)[0], all.band_lengths(1, 0)[0], 1e-12);
  EXPECT_TRUE(refuses([&] { first.merge(QueryStatistics(kShape, false, rotary)); },
                      {"QueryStatistics", "has_covariance()", "0"}));
}

// Given with their number they merge like those that were gathered: a mean of 1 over 3 and one
// of 5.
TEST(QueryStatistics, AreGivenWithACount) {
  QueryStatistics given(kShape, true);
  const std::vector<float> mean = {1, 0};
  const std::vector<float> covariance = {2, 0, 0, 4};
  given.set(0, 0, mean, covariance, {}, 3);
  std::vector<double> back(4);
  given.covariance(0, 0, back);
  EXPECT_EQ(back, (std::vector<double>{2, 0, 0, 4}));
  const std::vector<float> query = {5, 0};
  given.add(0, 0, query.data());
  EXPECT_DOUBLE_EQ(given.mean(0, 0)[0], 2);
}

}  // namespace
}  // namespace kvevict_test
