#include "kvevict/scoring/query_statistics_bytes.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::query_statistics_bytes;
using kvevict::query_statistics_from_bytes;
using kvevict::QueryStatistics;
using kvevict::RotaryEmbedding;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};
const RotaryEmbedding kRotary{.inv_freq = {0.5}};

/// Three queries of one head, none of the others: mean (2, 2), bands sqrt(1), sqrt(13), sqrt(20).
QueryStatistics three_queries(bool with_covariance) {
  QueryStatistics statistics(kShape, with_covariance, kRotary);
  for (const std::vector<float>& query : std::vector<std::vector<float>>{{1, 0}, {3, 2}, {2, 4}})
    statistics.add(1, 0, query.data());
  return statistics;
}

TEST(QueryStatisticsBytes, AreReadAsTheyWereWritten) {
  for (const bool with_covariance : {false, true}) {
    const QueryStatistics statistics = three_queries(with_covariance);
    const std::vector<std::byte> bytes = query_statistics_bytes(statistics);
    // 4 letters, 8 numbers, a frequency; 4 counts; 2 + 1 floats, and 4 of the covariance.
    EXPECT_EQ(bytes.size(), 4U + 8 * 4 + 8 + 4 * 8 + 3 * 4 + (with_covariance ? 4 * 4 : 0));
    const QueryStatistics back = query_statistics_from_bytes(bytes, kShape, kRotary);
    EXPECT_EQ(back.count(1, 0), 3U);
    EXPECT_EQ(back.count(0, 0), 0U);
    EXPECT_EQ(back.mean(1, 0)[0], 2.0);
    EXPECT_EQ(back.mean(1, 0)[1], 2.0);
    EXPECT_FLOAT_EQ(static_cast<float>(back.band_lengths(1, 0)[0]),
                    static_cast<float>(statistics.band_lengths(1, 0)[0]));
    EXPECT_EQ(back.has_covariance(), with_covariance);
    if (with_covariance) {
      std::vector<double> covariance(4);
      back.covariance(1, 0, covariance);
      EXPECT_NEAR(covariance[0], 2 / 3., 1e-7);
      EXPECT_NEAR(covariance[1], 2 / 3., 1e-7);
      EXPECT_NEAR(covariance[3], 8 / 3., 1e-7);
    }
  }
}

// They count as the queries that they are of.
TEST(QueryStatisticsBytes, MergeWhenTheyAreRead) {
  QueryStatistics back =
      query_statistics_from_bytes(query_statistics_bytes(three_queries(false)), kShape, kRotary);
  const std::vector<float> query = {6, 2};
  back.add(1, 0, query.data());
  EXPECT_DOUBLE_EQ(back.mean(1, 0)[0], 3.0);
}

TEST(QueryStatisticsBytes, AreLittleEndian) {
  const std::vector<std::byte> bytes = query_statistics_bytes(three_queries(false));
  const auto at = [&](std::size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(at(0), 'K');
  EXPECT_EQ(at(4), 1) << "version";
  EXPECT_EQ(at(7), 0);
  EXPECT_EQ(at(8), 2) << "layers";
}

TEST(QueryStatisticsBytes, RefuseWhatIsNotTheModels) {
  const std::vector<std::byte> bytes = query_statistics_bytes(three_queries(true));
  const auto refused = [&](std::span<const std::byte> given, const CacheShape& shape,
                           const RotaryEmbedding& rotary, std::string_view part) {
    return refuses([&] { static_cast<void>(query_statistics_from_bytes(given, shape, rotary)); },
                   {"query_statistics_from_bytes", part});
  };
  CacheShape deeper = kShape;
  deeper.num_layers = 3;
  EXPECT_TRUE(refused(bytes, deeper, kRotary, "num_layers = 2 must be 3"));
  EXPECT_TRUE(refused(bytes, kShape, {.inv_freq = {0.25}}, "the rotary embedding is another one"));
  EXPECT_TRUE(refused(bytes, kShape, {}, "num_bands = 1"));
  for (const std::size_t length : {std::size_t{0}, std::size_t{3}})
    EXPECT_TRUE(refused(std::span(bytes).first(length), kShape, kRotary, "no statistics"));
  for (std::size_t length = 4; length < bytes.size(); ++length)
    EXPECT_TRUE(refused(std::span(bytes).first(length), kShape, kRotary, "bytes end"));
  std::vector<std::byte> changed = bytes;
  changed[4] = std::byte{9};
  EXPECT_TRUE(refused(changed, kShape, kRotary, "version = 9"));
  changed = bytes;
  changed.push_back(std::byte{0});
  EXPECT_TRUE(refused(changed, kShape, kRotary, "bytes behind the statistics = 1"));
  QueryStatistics infinite(kShape, false, kRotary);
  infinite.set(0, 0, std::vector<float>{std::numeric_limits<float>::infinity(), 0}, {},
               std::vector<float>{1});
  EXPECT_TRUE(refused(query_statistics_bytes(infinite), kShape, kRotary, "not finite"));
}

}  // namespace
}  // namespace kvevict_test
