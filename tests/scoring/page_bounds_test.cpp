#include "kvevict/scoring/page_bounds.hpp"

#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/whole_chunks.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <string_view>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::Position;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kGroups{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 3};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct PagesOptions {
  std::size_t budget = 4;
  std::size_t page_size = 2;
};
/// What a user writes who wants pages to go by their bounds.
struct PagesRecipe : kvevict::CutsEveryStep {
  using Options = PagesOptions;
  static constexpr std::string_view kName = "Pages";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return kvevict::PageBounds(kName, shape, options.page_size) |
           kvevict::GroupReduction{kvevict::GroupReduce::kMax};
  }
  static auto selector(const Options& options) {
    return kvevict::WholeChunks(
        {.chunk_len = options.page_size, .score = kvevict::ChunkScore::kMean});
  }
  static kvevict::Protection protection(const Options& /*options*/) { return {}; }
};
using Pages = kvevict::Policy<kvevict::Composed<PagesRecipe>>;

RowSession<Pages> session_of(const std::vector<std::array<float, 2>>& keys,
                             std::array<float, 2> query, const PagesOptions& options = {}) {
  RowSession<Pages> session(options, kOneHead);
  session.policy.begin(keys.size());
  session.append(keys.size());
  for (std::size_t slot = 0; slot < keys.size(); ++slot)
    std::copy(keys[slot].begin(), keys[slot].end(), session.cache.key(0, 0, slot));
  session.policy.observe_queries(
      0, {.data = query.data(), .num_q_heads = 1, .num_rows = 1, .head_stride = 2, .row_stride = 2},
      session.cache.view());
  session.policy.end_prefill(session.cache.view());
  return session;
}

// Query (1, -2), channels in [0, 3] and [-1, 2]: max(0, 3) + max(2, -4) = 5.
TEST(PageBounds, TheBoundOfThePapersAlgorithm) {
  const std::array<float, 2> query{1, -2};
  const std::array<float, 2> low{0, -1};
  const std::array<float, 2> high{3, 2};
  EXPECT_EQ(kvevict::page_bound(query, low, high), 5.0);
}

// The keys (0, 2) and (3, -1) have that range; the page of one key is its dot product, 1 - 2.
TEST(PageBounds, TokensScoreTheBoundOfTheirPage) {
  auto session = session_of({{0, 2}, {3, -1}, {1, 1}}, {1, -2});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{5, 5, -1}));
}

TEST(PageBounds, ARecipeEvictsThePagesOfTheLeastBounds) {
  auto session = session_of({{1, 0}, {0, 1}, {-1, 0}, {-2, 0}, {2, 0}, {3, 0}}, {1, 0});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (std::vector<Position>{0, 1, 4, 5}));
}

// Pages are positions: after {2, 3} went, {4, 5} is still a page and {6} begins one.
TEST(PageBounds, EvictionLeavesPagesAsTheyWere) {
  auto session = session_of({{1, 0}, {0, 1}, {-1, 0}, {-2, 0}, {2, 0}, {3, 0}}, {1, 0});
  session.cut();
  session.append(1);
  session.cache.key(0, 0, 4)[0] = 7;
  const std::array<float, 2> query{-1, 0};
  session.policy.observe_queries(
      0, {.data = query.data(), .num_q_heads = 1, .num_rows = 1, .head_stride = 2, .row_stride = 2},
      session.cache.view());
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, 0, -2, -2, -7}));
  // The query is that of the newest token: without it all are alike.
  session.append(1);
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>(6)));
}

TEST(PageBounds, PaddingAndNaN) {
  auto session = session_of({{9, 0}, {1, 0}, {kNaN, 1}, {2, 1}, {kNaN, 1}, {kNaN, 1}}, {1, 0});
  session.cache.valid() = {0, 1, 1, 1, 1, 1};
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  EXPECT_EQ(std::vector<float>(scores.begin(), scores.begin() + 4),
            (std::vector<float>{0, 1, 2, 2}));
  EXPECT_NE(scores[4], scores[4]);
  EXPECT_NE(scores[5], scores[5]);
}

// In double, over layers and groups; and it bounds: no key of a page gives more.
TEST(PageBounds, BoundsEveryKeyOfThePage) {
  Random random(29);
  constexpr std::size_t kLen = 22;
  constexpr std::size_t kPage = 4;
  RowSession<Pages> session({.budget = 64, .page_size = kPage}, kGroups);
  session.cache.fill(random);
  session.append(kLen);
  const WindowQueries queries(kGroups, 1, random);
  for (std::size_t layer = 0; layer < 2; ++layer)
    session.policy.observe_queries(layer, queries.rows(layer, 0, 1), session.cache.view());
  for (std::size_t lane = 0; lane < 4; ++lane) {
    const std::vector<float> scores = scores_of(session.policy, session.cache, lane);
    for (std::size_t slot = 0; slot < kLen; ++slot) {
      double largest = -1e9;
      for (std::size_t h = 0; h < 2; ++h) {
        const auto rows = queries.rows(lane / 2, 0, 1);
        const float* query =
            rows.data + static_cast<std::ptrdiff_t>(lane % 2 * 2 + h) * rows.head_stride;
        double bound = 0.0;
        for (std::size_t c = 0; c < 3; ++c) {
          double best = -1e9;
          const std::size_t first = slot / kPage * kPage;
          for (std::size_t other = first; other < std::min(kLen, first + kPage); ++other) {
            best = std::max(
                best, static_cast<double>(query[c]) *
                          static_cast<double>(session.cache.key(lane / 2, lane % 2, other)[c]));
          }
          bound += best;
        }
        double dot = 0.0;
        for (std::size_t c = 0; c < 3; ++c) {
          dot += static_cast<double>(query[c]) *
                 static_cast<double>(session.cache.key(lane / 2, lane % 2, slot)[c]);
        }
        EXPECT_LE(dot, static_cast<double>(scores[slot]) + 1e-6);
        largest = std::max(largest, bound);
      }
      EXPECT_NEAR(scores[slot], largest, 1e-6) << lane << ' ' << slot;
    }
  }
}

TEST(PageBounds, RefusesPagesOfNothing) {
  EXPECT_TRUE(refuses([] { Pages({.page_size = 0}, kOneHead); }, {"Pages", "page_size", "0"}));
}

}  // namespace
}  // namespace kvevict_test
