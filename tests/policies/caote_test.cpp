#include "kvevict/policies/caote.hpp"

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

using kvevict::CacheShape;
using kvevict::H2OCAOTE;
using kvevict::MaskScope;
using kvevict::Position;
using kvevict::TOVACAOTE;
using kvevict::TOVAFastCAOTE;
using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A prompt whose values, one channel, and whose last row are given.
template <class P>
RowSession<P> session_of(const typename P::Options& options, const CacheShape& shape,
                         const std::vector<float>& values,
                         const std::vector<std::vector<float>>& rows) {
  RowSession<P> session(options, shape);
  session.policy.begin(values.size());
  session.append(values.size());
  for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
    for (std::size_t slot = 0; slot < values.size(); ++slot)
      *session.cache.value(0, head, slot) = values[slot];
  }
  const std::size_t wanted = session.policy.wanted_attention_rows(0);
  HeadRows given;
  for (const std::vector<float>& row : rows) {
    given.emplace_back();
    for (std::size_t r = 1; r < wanted; ++r)
      given.back().emplace_back(row.size() - wanted + r, 0.0F);
    given.back().push_back(row);
  }
  session.rows(0, given);
  session.policy.end_prefill(session.cache.view());
  return session;
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-6) << i;
}

// X = .5 + .4 = .9: .5/.5 |.9 - 1|, .3/.7 * .9, .2/.8 * 1.1. The token with most attention goes.
TEST(CAOTE, ScoresTheChangeOfTheOutput) {
  auto session = session_of<TOVACAOTE>({.budget = 2}, kOneHead, {1, 0, 2}, {{.5F, .3F, .2F}});
  expect_near(scores_of(session.policy, session.cache), {.1F, .385714F, .275F});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{1, 2}));
}

// The scores are what really happens to the output.
TEST(CAOTE, IsTheErrorThatEvictionMakes) {
  const std::vector<float> values = {1, 0, 2};
  const std::vector<float> row = {.5F, .3F, .2F};
  auto session = session_of<TOVACAOTE>({.budget = 2}, kOneHead, values, {row});
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  for (std::size_t gone = 0; gone < 3; ++gone) {
    float output = 0;
    for (std::size_t i = 0; i < 3; ++i)
      output += i == gone ? 0.0F : row[i] * values[i] / (1 - row[gone]);
    EXPECT_NEAR(scores[gone], std::abs(.9F - output), 1e-6) << gone;
  }
}

// X = 1, the mean of the values: 0, .3/.7, .2/.8.
TEST(CAOTE, TheFastFormTakesTheMeanValue) {
  auto session = session_of<TOVAFastCAOTE>({.budget = 2}, kOneHead, {1, 0, 2}, {{.5F, .3F, .2F}});
  expect_near(scores_of(session.policy, session.cache), {0, .428571F, .25F});
}

// A sink outside the cache took .2 of the row; dropping the first of two tokens then moves the
// output from .6 * 1 to 0.
TEST(CAOTE, RowsNeedNotSumToOne) {
  auto session = session_of<TOVACAOTE>({.budget = 1}, kOneHead, {1, 0}, {{.6F, .2F}});
  expect_near(scores_of(session.policy, session.cache), {.6F, .2F / .8F * .6F});
}

// Nobody can say what is left without the token that has all the mass: it stays.
TEST(CAOTE, AllTheMassStays) {
  auto session = session_of<TOVACAOTE>({.budget = 1}, kOneHead, {1, 5, 2}, {{0, 1, 0}});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1}));
  EXPECT_EQ(session.policy.counters().non_finite, 0U);
}

// Equal values: no token changes the output, and slots decide.
TEST(CAOTE, EqualValuesAreTies) {
  auto session =
      session_of<TOVACAOTE>({.budget = 2}, kOneHead, {1, 1, 1, 1}, {{0, .5F, .25F, .25F}});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, 0, 0, 0}));
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1}));
}

// One constant vector on all values moves all outputs alike.
TEST(CAOTE, AConstantOnAllValuesChangesNothing) {
  auto session = session_of<TOVACAOTE>({.budget = 2}, kOneHead, {1, 0, 2}, {{.5F, .25F, .25F}});
  auto moved = session_of<TOVACAOTE>({.budget = 2}, kOneHead, {9, 8, 10}, {{.5F, .25F, .25F}});
  EXPECT_EQ(scores_of(session.policy, session.cache), scores_of(moved.policy, moved.cache));
}

// Two query heads, one KV head: the mean of (.1, .385714, .275) and of what the second head's row
// (.2, .3, .5) gives, X = 1.2: .2/.8 * .2, .3/.7 * 1.2, .5/.5 * .8.
TEST(CAOTE, HeadsOfAGroupAreAveraged) {
  constexpr CacheShape kGroup{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 1};
  auto session =
      session_of<TOVACAOTE>({.budget = 2}, kGroup, {1, 0, 2}, {{.5F, .3F, .2F}, {.2F, .3F, .5F}});
  expect_near(scores_of(session.policy, session.cache),
              {(.1F + .05F) / 2, (.385714F + .514286F) / 2, (.275F + .8F) / 2});
}

// One set for the layer, as TOVA has it, or one per KV head.
TEST(CAOTE, ScopeIsThatOfTheBasePolicy) {
  constexpr CacheShape kTwo{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};
  const std::vector<std::vector<float>> rows = {{.5F, .3F, .2F}, {.2F, .3F, .5F}};
  auto shared = session_of<TOVACAOTE>({.budget = 2}, kTwo, {1, 0, 2}, rows);
  EXPECT_EQ(shared.policy.sequence().num_lanes(), 1U);
  auto own = session_of<TOVACAOTE>({.budget = 2, .scope = MaskScope::kHead}, kTwo, {1, 0, 2}, rows);
  expect_near(scores_of(own.policy, own.cache, 1), {.05F, .514286F, .8F});
}

// Sums 1, .6 and .4 are read as .5, .3 and .2.
TEST(CAOTE, SumsBecomeADistribution) {
  auto session =
      session_of<H2OCAOTE>({.heavy = 2, .recent = 0}, kOneHead, {1, 0, 2}, {{1, .6F, .4F}});
  expect_near(scores_of(session.policy, session.cache), {.1F, .385714F, .275F});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1, 2}));
}

// R4: a value that is not a number spoils its own token alone.
TEST(CAOTE, AValueOfNaNGoesFirst) {
  auto session =
      session_of<TOVACAOTE>({.budget = 3}, kOneHead, {1, kNaN, 0, 2}, {{.25F, .25F, .25F, .25F}});
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  EXPECT_TRUE(std::isnan(scores[1]));
  EXPECT_TRUE(std::isfinite(scores[0]) && std::isfinite(scores[2]) && std::isfinite(scores[3]));
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2, 3}));
}

// R9: what lies in padding is neither in X nor in the mean.
template <class P>
std::vector<float> scores_behind_padding(const typename P::Options& options) {
  RowSession<P> session(options, kOneHead);
  session.cache.valid() = {0, 1, 1, 1};
  session.policy.begin(4);
  session.append(4);
  const std::vector<float> values = {kNaN, 1, 0, 2};
  for (std::size_t slot = 0; slot < 4; ++slot)
    *session.cache.value(0, 0, slot) = values[slot];
  session.rows(0, {{{.7F, .5F, .3F, .2F}}});
  session.policy.end_prefill(session.cache.view());
  return scores_of(session.policy, session.cache);
}
TEST(CAOTE, PaddingIsNoToken) {
  expect_near(scores_behind_padding<TOVACAOTE>({.budget = 2}), {0, .1F, .385714F, .275F});
  expect_near(scores_behind_padding<TOVAFastCAOTE>({.budget = 2}), {0, 0, .428571F, .25F});
}

TEST(CAOTE, KeepsAllUpToTheBudgetAndThatManyBeyond) {
  for (std::size_t len = 1; len <= 5; ++len) {
    auto session = session_of<TOVACAOTE>({.budget = 4}, kOneHead, std::vector<float>(len, 1.0F),
                                         {std::vector<float>(len, 1.0F / static_cast<float>(len))});
    EXPECT_EQ(session.cut(), len > 4);
    EXPECT_EQ(session.kept().size(), std::min<std::size_t>(len, 4));
  }
}

TEST(CAOTE, RefusalsNameThePolicy) {
  EXPECT_TRUE(
      refuses([] { H2OCAOTE({.heavy = 0, .recent = 0}, kOneHead); }, {"H2OCAOTE", "recent", "0"}));
}

}  // namespace
}  // namespace kvevict_test
