#include "kvevict/policies/external_scores.hpp"

#include "support/errors.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Budget;
using kvevict::CacheShape;
using kvevict::Competition;
using kvevict::ExternalScores;
using kvevict::ExternalScoresOptions;
using kvevict::KVzap;
using kvevict::KVzip;
using kvevict::Position;

using Positions = std::vector<Position>;
using Floats = std::vector<float>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kModel{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};

/// A prompt of as many tokens as each of the lanes has scores.
template <class P>
RowSession<P> scored(const typename P::Options& options, const CacheShape& shape,
                     const std::vector<Floats>& lanes) {
  RowSession<P> session(options, shape);
  session.prompt(lanes[0].size());
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    session.policy.observe_scores(lane / shape.num_kv_heads, lane % shape.num_kv_heads,
                                  lanes[lane]);
  return session;
}

const std::vector<Floats> kScores = {
    {.9F, .8F, .7F, .6F}, {.5F, .1F, .4F, .2F}, {.1F, .3F, .2F, .0F}, {.0F, .1F, .2F, .95F}};

TEST(ExternalScores, TheBestOfEachKvHeadStay) {
  auto session = scored<ExternalScores>({.budget = 2}, kModel, kScores);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 1}));
  EXPECT_EQ(session.kept(1), (Positions{0, 2}));
  EXPECT_EQ(session.kept(2), (Positions{1, 2}));
  EXPECT_EQ(session.kept(3), (Positions{2, 3}));
}

// 4 entries of layer 0: .9 .8 .7 .6 would be all head 0's, but for the one of head 1.
TEST(ExternalScores, TheHeadsOfALayerCompete) {
  auto session =
      scored<ExternalScores>({.budget = 2, .competition = Competition::kLayer}, kModel, kScores);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 1, 2}));
  EXPECT_EQ(session.kept(1), (Positions{0}));
  EXPECT_EQ(session.kept(2), (Positions{1, 2}));
  EXPECT_EQ(session.kept(3), (Positions{2, 3}));
}

// 8 of 16: one each (.9 .5 .3 .95), then .8 .7 .6 .4.
TEST(ExternalScores, TheWholeModelCompetes) {
  auto session =
      scored<ExternalScores>({.budget = 2, .competition = Competition::kModel}, kModel, kScores);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(session.kept(1), (Positions{0, 2}));
  EXPECT_EQ(session.kept(2), (Positions{1}));
  EXPECT_EQ(session.kept(3), (Positions{3}));
}

// The newest two are in the window, and what equals the threshold is not below it. With a later
// word and a token more, 3 is outside the window and goes; the token without a score stays.
TEST(KVzap, WhatIsBelowTheThresholdGoesBehindTheWindow) {
  auto session = scored<KVzap>({.threshold = -4, .recent_window = 2}, kOneHead,
                               {{-5.F, -4.F, -1.F, -6.F, -9.F}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{1, 2, 3, 4}));
  session.append(1);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{1, 2, 4, 5}));
  EXPECT_FALSE(session.cut());
}

// However low they all are.
TEST(KVzap, TheBestOfAKvHeadStays) {
  auto session =
      scored<KVzap>({.threshold = 0, .recent_window = 0}, kOneHead, {{-3.F, -2.F, -3.F}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{1}));
}

TEST(ExternalScores, ScoresStayWithTheirTokens) {
  auto session = scored<ExternalScores>({.budget = 3}, kOneHead, {{.1F, .9F, .2F, .8F, .7F}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{1, 3, 4}));
  session.append(1);
  session.policy.observe_scores(0, 0, Floats{.75F}, 3);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{1, 3, 5}));
  // Token 5 is taken back; two others come, of which the first is never scored.
  session.truncate(5);
  EXPECT_EQ(session.kept(), (Positions{1, 3}));
  session.append(2);
  session.policy.observe_scores(0, 0, Floats{.05F}, 3);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{1, 3, 6}));
}

TEST(ExternalScores, TheLatestWordCounts) {
  auto session = scored<ExternalScores>({.budget = 2}, kOneHead, {{.9F, .8F, .2F, .1F}});
  session.policy.observe_scores(0, 0, Floats{.0F, .5F}, 1);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 2}));
}

TEST(ExternalScores, ACopyHasItsOwnScores) {
  auto first = scored<ExternalScores>({.budget = 1}, kOneHead, {{.9F, .8F}});
  auto second = first;
  second.policy.observe_scores(0, 0, Floats{.0F});
  EXPECT_TRUE(first.cut() && second.cut());
  EXPECT_EQ(first.kept(), (Positions{0}));
  EXPECT_EQ(second.kept(), (Positions{1}));
  second.policy.reset();
  second.cache.truncate(0);
  second.prompt(2);
  EXPECT_EQ(second.policy.method().parts().signal().of(0, 0)[0], 0.0F);
}

TEST(ExternalScores, LayersThatNobodyScoredAreCounted) {
  RowSession<ExternalScores> session({.budget = 2}, kModel);
  session.prompt(3);
  session.policy.observe_scores(1, 0, Floats{1, 2, 3});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.policy.counters().missing_signals, 1U);
  session.append(1);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.policy.counters().missing_signals, 3U);
}

// Rule R4.
TEST(ExternalScores, NaNGoesFirstAndIsCounted) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto session = scored<ExternalScores>({.budget = 2}, kOneHead, {{nan, -5, -7, nan}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{1, 2}));
  EXPECT_EQ(session.policy.counters().non_finite, 2U);
}

// A score equal to the threshold stays; nobody fills up the budget; the worse of lane 0 are capped;
// lane 2 has none that is good enough and keeps its best (rule R15).
TEST(ExternalScores, AThresholdSaysHowManyStay) {
  auto session = scored<ExternalScores>(
      {.budget = 3, .threshold = .4F}, kModel,
      {{.9F, .8F, .7F, .6F}, {.5F, .1F, .4F, .2F}, {.1F, .3F, .2F, .0F}, {.0F, .1F, .2F, .95F}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 1, 2}));
  EXPECT_EQ(session.kept(1), (Positions{0, 2}));
  EXPECT_EQ(session.kept(2), (Positions{1}));
  EXPECT_EQ(session.kept(3), (Positions{3}));
  EXPECT_FALSE(session.policy.should_evict());
}

// At least .4: four, two, none and one; lane 2 keeps its best all the same. The model has room for
// four: one of each lane (.9 .5 .3 .95), or for six: .8 and .7 more.
TEST(ExternalScores, WhatIsAboveAThresholdCompetes) {
  ExternalScoresOptions options{.budget = Budget::total(4), .competition = Competition::kModel};
  options.threshold = .4F;
  auto session = scored<ExternalScores>(options, kModel, kScores);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0}));
  EXPECT_EQ(session.kept(1), (Positions{0}));
  EXPECT_EQ(session.kept(2), (Positions{1}));
  EXPECT_EQ(session.kept(3), (Positions{3}));
  options.budget = Budget::total(6);
  session = scored<ExternalScores>(options, kModel, kScores);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 1, 2}));
  EXPECT_EQ(session.kept(1), (Positions{0}));
  EXPECT_EQ(session.kept(2), (Positions{1}));
  EXPECT_EQ(session.kept(3), (Positions{3}));
}

// All are below: the best two stay and nothing is left to do.
TEST(ExternalScores, AHeadKeepsItsBestHoweverLow) {
  auto session = scored<ExternalScores>({.min_keep = 2, .threshold = 1}, kOneHead,
                                        {{.1F, .4F, .2F, .4F, .3F}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{1, 3}));
  EXPECT_FALSE(session.policy.should_evict());
}

// KVzap's rule: a token below the threshold goes once it has left the window.
TEST(ExternalScores, AThresholdBehindARecentWindow) {
  RowSession<ExternalScores> session(
      {.threshold = -4, .unscored = -9, .num_sink_tokens = 1, .recent_window = 2}, kOneHead);
  session.prompt(5);
  session.policy.observe_scores(0, 0, Floats{-8, -5, -3, -7, -6});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 2, 3, 4}));
  session.append(1);  // never scored
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 2, 4, 5}));
  session.append(1);
  session.policy.observe_scores(0, 0, Floats{1}, 4);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 2, 5, 6}));
  session.append(2);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 2, 6, 7, 8}));
}

TEST(ExternalScores, AThresholdSparesPinnedTokensAndTheAnswer) {
  RowSession<ExternalScores> session({.threshold = .5, .only_at_prefill_end = true}, kOneHead);
  const std::vector<kvevict::PositionSpan> pinned = {{1, 2}};
  session.policy.begin(4, pinned);
  session.append(4);
  session.policy.end_prefill(session.cache.view());
  session.policy.observe_scores(0, 0, Floats{.1F, .2F, .7F, .3F});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{1, 2}));
  session.append(3);
  EXPECT_FALSE(session.policy.should_evict());
}

// Rule R9: two slots of padding count nowhere, whatever score they have; the sink is the first
// token.
TEST(ExternalScores, AThresholdAndPadding) {
  RowSession<ExternalScores> session({.threshold = .5, .num_sink_tokens = 1}, kOneHead);
  session.cache.valid() = {0, 0, 1, 1, 1, 1};
  session.prompt(6);
  session.policy.observe_scores(0, 0, Floats{9, 9, .1F, .2F, .7F, .3F});
  ASSERT_TRUE(session.policy.should_evict());
  const kvevict::KeepMask& mask = session.policy.select(session.cache.view());
  EXPECT_EQ(mask.count(0, 0), 2U);
  EXPECT_TRUE(mask.keeps(0, 0, 2) && mask.keeps(0, 0, 4));
}

// A share is of all tokens seen, not of what is left of them: at every step floor(T / 2) stay.
TEST(ExternalScores, AShareIsOfAllTokensSeen) {
  RowSession<ExternalScores> session({.budget = Budget::keep_ratio(.5)}, kOneHead);
  session.prompt(5);
  session.policy.observe_scores(0, 0, Floats{.5F, .4F, .3F, .2F, .1F});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept().size(), 2U);
  for (std::size_t seen = 6; seen < 12; ++seen) {
    session.append(1);
    session.cut();
    EXPECT_EQ(session.kept().size(), seen / 2) << seen;
  }
}

TEST(ExternalScores, RefusesWhatCannotBe) {
  EXPECT_TRUE(refuses(
      [] { ExternalScores({.threshold = std::numeric_limits<float>::quiet_NaN()}, kModel); },
      {"ExternalScores", "threshold"}));
  EXPECT_TRUE(
      refuses([] { ExternalScores({.unscored = std::numeric_limits<float>::quiet_NaN()}, kModel); },
              {"ExternalScores", "unscored"}));
  EXPECT_TRUE(
      refuses([] { ExternalScores({.budget = 2, .recent_window = 3}, kModel); }, {"budget = 2"}));
  ExternalScores policy({.budget = 2}, kModel);
  policy.begin(3);
  const Floats scores(3);
  EXPECT_TRUE(refuses([&] { policy.observe_scores(2, 0, scores); }, {"layer = 2"}));
  EXPECT_TRUE(refuses([&] { policy.observe_scores(0, 2, scores); }, {"kv_head = 2"}));
  EXPECT_TRUE(refuses([&] { policy.observe_scores(0, 0, scores, 1); },
                      {"ExternalScores", "first_slot + scores.size() = 4"}));
}

// Half of 2 x 2 x 4 entries: the four sinks, then .95 .8 .7 .6. The answer stays.
TEST(KVzip, TheBestOfTheModelAndTheSinksStay) {
  auto session = scored<KVzip>({.budget = 2, .num_sink_tokens = 1}, kModel, kScores);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(session.kept(1), (Positions{0}));
  EXPECT_EQ(session.kept(2), (Positions{0}));
  EXPECT_EQ(session.kept(3), (Positions{0, 3}));
  session.append(3);
  EXPECT_FALSE(session.policy.should_evict());
  // A later prompt is scored and cut with what is left of the first.
  session.prompt(2);
  ASSERT_TRUE(session.policy.should_evict());
}

TEST(KVzip, LayersKeepEquallyManyIfToldSo) {
  auto session =
      scored<KVzip>({.budget = 2, .layerwise = true, .num_sink_tokens = 0}, kModel, kScores);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 1, 2}));
  EXPECT_EQ(session.kept(1), (Positions{0}));
  EXPECT_EQ(session.kept(2), (Positions{1, 2}));
  EXPECT_EQ(session.kept(3), (Positions{2, 3}));
}

}  // namespace
}  // namespace kvevict_test
