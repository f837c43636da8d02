#include "kvevict/policies/ahakv.hpp"

#include "support/errors.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::AhaKV;
using kvevict::AhaKVOptions;
using kvevict::CacheShape;
using kvevict::Position;
using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

AhaKVOptions plain(std::size_t budget) {
  return {.budget = budget, .recent_window = 1, .pooling = {.kernel_size = 1}};
}
/// A prompt whose values have these sizes and whose last row is given.
RowSession<AhaKV> session_of(const AhaKVOptions& options, const std::vector<float>& sizes,
                             const std::vector<float>& row) {
  RowSession<AhaKV> session(options, kOneHead);
  session.policy.begin(sizes.size());
  session.append(sizes.size());
  for (std::size_t slot = 0; slot < sizes.size(); ++slot)
    session.cache.value(0, 0, slot)[1] = sizes[slot];
  session.rows(0, {{row}});
  session.policy.end_prefill(session.cache.view());
  return session;
}
void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-5) << i;
}

// i / k = 10: a gain of sqrt(2 ln 10) = 2.145966 on logits that were scaled by 1 / sqrt(d). Row
// (.5, .25, .25, 0 ..) becomes proportional to 1, .225944, .225944.
TEST(AhaKV, TheGainSharpensRows) {
  auto session =
      session_of(plain(1), std::vector<float>(10, 1.0F), {.5F, .25F, .25F, 0, 0, 0, 0, 0, 0, 0});
  expect_near(scores_of(session.policy, session.cache),
              {.688759F, .155621F, .155621F, 0, 0, 0, 0, 0, 0, 0});
}

// From queries the gain is that of the logits: q.k = (x, 0, 0) with lambda = gain / sqrt(d).
TEST(AhaKV, TheGainIsOneOnLogits) {
  RowSession<AhaKV> session(plain(1), kOneHead);
  session.policy.begin(3);
  session.append(3);
  session.cache.key(0, 0, 0)[0] = 2;
  for (std::size_t slot = 0; slot < 3; ++slot)
    session.cache.value(0, 0, slot)[0] = 1;
  const std::vector<float> query = {1, 0};
  session.policy.observe_queries(
      0, {.data = query.data(), .num_q_heads = 1, .num_rows = 1, .head_stride = 2, .row_stride = 2},
      session.cache.view());
  session.policy.end_prefill(session.cache.view());
  const float first = std::exp(2 * std::sqrt(2 * std::log(3.0F) / 2));
  expect_near(scores_of(session.policy, session.cache),
              {first / (first + 2), 1 / (first + 2), 1 / (first + 2)});
}

// |v|^2 = 1, 4, 9, 0, pooled over three with zeros outside: 5/3, 14/3, 13/3, 3, as shares of 14/3.
// Even attention over all four leaves 1/4 of each.
TEST(AhaKV, ThePriorIsPooled) {
  AhaKVOptions options = plain(2);
  options.pooling.kernel_size = 3;
  auto session = session_of(options, {1, 2, 3, 0}, {.25F, .25F, .25F, .25F});
  expect_near(scores_of(session.policy, session.cache), {5.0F / 56, .25F, 13.0F / 56, 9.0F / 56});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1, 3}));
}

// A row of a token that came when the budget held all says nothing.
TEST(AhaKV, RowsWithinTheBudgetSayNothing) {
  auto session = session_of(plain(3), {1, 1, 1}, {.5F, .25F, .25F});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, 0, 0}));
  EXPECT_FALSE(session.cut());
}

// Values of 0 leave the prior without an opinion.
TEST(AhaKV, ValuesOfZeroLeaveAttention) {
  auto session = session_of(plain(1), std::vector<float>(3, 0.0F), {.25F, .5F, .25F});
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  EXPECT_GT(scores[1], scores[0]);
  EXPECT_GT(scores[0], 0.0F);
}

// The newest r rows are summed; in decoding the oldest of them leaves.
TEST(AhaKV, SumsTheNewestRows) {
  AhaKVOptions options = plain(2);
  options.recent_window = 2;
  RowSession<AhaKV> session(options, kOneHead);
  session.prompt(2);
  for (std::size_t slot = 0; slot < 5; ++slot)
    session.cache.value(0, 0, slot)[1] = 1;
  session.step({{{{0, 1, 0}}}});
  session.step({{{{0, 0, 1, 0}}}});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, 1, 1, 0}));
  session.step({{{{1, 0, 0, 0, 0}}}});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{1, 0, 1, 0, 0}));
}

// R9, R4.
TEST(AhaKV, PaddingAndNaN) {
  AhaKVOptions options = plain(2);
  options.pooling.kernel_size = 3;
  auto session = session_of(options, {kNaN, 1, 2, 3, 0}, {.7F, .25F, .25F, .25F, .25F});
  session.cache.valid() = {0, 1, 1, 1, 1};
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  EXPECT_EQ(scores[0], 0.0F);
  EXPECT_NEAR(scores[1] / scores[2], 5.0F / 14, 1e-5);
  auto nan = session_of(plain(3), {1, kNaN, 1, 1}, {.25F, .25F, .25F, .25F});
  nan.cut();
  EXPECT_EQ(nan.kept(), (Positions{0, 2, 3}));
  EXPECT_EQ(nan.policy.counters().non_finite, 1U);
}

// Nine tokens behind a slot of padding, and then the tenth: the gain is that of i = 10.
TEST(AhaKV, PaddingOfThePromptIsNoToken) {
  RowSession<AhaKV> session(plain(1), kOneHead);
  session.cache.valid() = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  for (std::size_t slot = 0; slot < 11; ++slot)
    session.cache.value(0, 0, slot)[0] = 1;
  session.prompt(10);
  session.step({{{{0, .5F, .25F, .25F, 0, 0, 0, 0, 0, 0, 0}}}});
  expect_near(scores_of(session.policy, session.cache),
              {0, .688759F, .155621F, .155621F, 0, 0, 0, 0, 0, 0, 0});
}

TEST(AhaKV, KeepsAllUpToTheBudgetAndThatManyBeyond) {
  for (std::size_t len = 1; len <= 6; ++len) {
    auto session = session_of(plain(4), std::vector<float>(len, 1.0F),
                              std::vector<float>(len, 1.0F / static_cast<float>(len)));
    EXPECT_EQ(session.cut(), len > 4);
    EXPECT_EQ(session.kept().size(), std::min<std::size_t>(len, 4));
  }
}

TEST(AhaKV, RefusesWhatItCannotUse) {
  EXPECT_TRUE(refuses([] { AhaKV({.budget = 8}, kOneHead); }, {"AhaKV", "budget", "8"}));
  EXPECT_TRUE(
      refuses([] { AhaKV({.recent_window = 0}, kOneHead); }, {"AhaKV", "recent_window", "0"}));
}

}  // namespace
}  // namespace kvevict_test
