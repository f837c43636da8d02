#include "kvevict/policies/inertiakv.hpp"

#include "kvevict/option_text.hpp"
#include "support/errors.hpp"
#include "support/layouts.hpp"
#include "support/masks.hpp"
#include "support/row_session.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::HeadRows;
using kvevict_test::refuses;
using kvevict_test::RowSession;
using kvevict_test::RowsFrom;
using kvevict_test::TestEngine;
using Positions = std::vector<Position>;
using Floats = std::vector<float>;

constexpr CacheShape kOneLayer{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kTwoLayers{
    .num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};

template <class P>
Floats scores_of(const P& policy) {
  return {policy.method().scores().begin(), policy.method().scores().end()};
}
void expect_near(const Floats& actual, const Floats& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-6) << i;
}

// Two layers, alpha .8, L0 = 3, B = 2.
// t = 1: m = 0; .8 (.2 s_1) + .2 s_2 = .16 s_1 + .2 s_2 = (.084, .056, .112, .108).
// t = 2: enters at (.112 + .108) / 2; .64 m + .16 s_1 + .2 s_2 = (.19168, .20112, .1784): the new
// token goes in its own step.
TEST(InertiaKV, OneStateForAllLayersOneAfterAnother) {
  RowSession<InertiaKV> session({.budget = 2}, kTwoLayers);
  session.prompt(3);
  EXPECT_FALSE(session.policy.should_evict());
  session.step({{{{.4F, .1F, .2F, .3F}}}, {{{.1F, .2F, .4F, .3F}}}});
  expect_near(scores_of(session.policy), {.084F, .056F, .112F, .108F});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{2, 3}));
  session.append(1);
  expect_near(scores_of(session.policy), {.112F, .108F, .110F});
  session.rows(0, {{{.5F, .2F, .3F}}});
  session.rows(1, {{{.2F, .5F, .3F}}});
  expect_near(scores_of(session.policy), {.19168F, .20112F, .1784F});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{2, 3}));
}

// The mean over layers first: .2 (.25, .15, .3, .3).
TEST(InertiaKV, PerStepUpdatesOnceWithTheMeanOverLayers) {
  RowSession<InertiaKV> session({.budget = 2, .per_step = true}, kTwoLayers);
  session.prompt(3);
  session.append(1);
  session.rows(0, {{{.4F, .1F, .2F, .3F}}});
  EXPECT_EQ(scores_of(session.policy), (Floats{0, 0, 0, 0}));  // half a step
  session.rows(1, {{{.1F, .2F, .4F, .3F}}});
  expect_near(scores_of(session.policy), {.05F, .03F, .06F, .06F});
}

TEST(InertiaKV, MeanOverAllQueryHeadsOfALayer) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 2};
  RowSession<InertiaKV> session({.budget = 2, .alpha = 0}, shape);
  session.prompt(1);
  session.step({{{{1, 0}}, {{.5F, .5F}}, {{.25F, .75F}}, {{0, 1}}}});
  EXPECT_EQ(scores_of(session.policy), (Floats{.4375F, .5625F}));
}

// The aggregators on two layers: rows (.5, .5) and (.25, .75), twice, tokens entering at the mean.
TEST(InertiaKV, Aggregators) {
  const auto run = [](Aggregator aggregator, double alpha) {
    RowSession<InertiaKV> session({.budget = 9, .alpha = alpha, .aggregator = aggregator},
                                  kTwoLayers);
    session.prompt(1);
    session.step({{{{.5F, .5F}}}, {{{.25F, .75F}}}});
    const Floats first = scores_of(session.policy);
    session.step({{{{.5F, .25F, .25F}}}, {{{0, .5F, .5F}}}});
    return std::vector<Floats>{first, scores_of(session.policy)};
  };
  // (.75, 1.25), the new token at 1, then + (.5, .75, .75).
  EXPECT_EQ(run(Aggregator::kCumulative, .8),
            (std::vector<Floats>{{.75F, 1.25F}, {1.25F, 2, 1.75F}}));
  // The last layer's row alone.
  EXPECT_EQ(run(Aggregator::kSingle, .8), (std::vector<Floats>{{.25F, .75F}, {0, .5F, .5F}}));
  EXPECT_EQ(run(Aggregator::kEma, 0), run(Aggregator::kSingle, .8));
  // (.25, .25) -> (.25, .5), new at .375; (.375, .375, .3125) -> (.1875, .4375, .40625).
  EXPECT_EQ(run(Aggregator::kEma, .5),
            (std::vector<Floats>{{.25F, .5F}, {.1875F, .4375F, .40625F}}));
}

// One layer and one step of memory is TOVA's rule without its protected newest token.
TEST(InertiaKV, NothingIsProtected) {
  for (const auto& [budget, kept] :
       std::vector<std::pair<std::size_t, Positions>>{{2, {1, 3}}, {1, {1}}}) {
    RowSession<InertiaKV> session({.budget = budget, .aggregator = Aggregator::kSingle}, kOneLayer);
    session.prompt(3);
    session.step({{{{.1F, .5F, .15F, .25F}}}});
    session.cut();
    EXPECT_EQ(session.kept(), kept);
  }
}

TEST(InertiaKV, LazyWantsAttentionOnRefreshStepsOnly) {
  RowSession<InertiaKV> session({.budget = 64, .refresh_interval = 4}, kTwoLayers);
  session.policy.begin(3);
  EXPECT_FALSE(session.policy.wants_attention(0));
  session.append(3);
  EXPECT_FALSE(session.policy.wants_attention(0));
  std::vector<std::size_t> refreshes;
  for (std::size_t t = 1; t <= 10; ++t) {
    const Floats before = scores_of(session.policy);
    session.append(1);
    ASSERT_EQ(session.policy.wants_attention(0), session.policy.wants_attention(1));
    if (!session.policy.wants_attention(0)) {
      Floats expected = before;
      float sum = 0;
      for (const float m : before)
        sum += m;
      expected.push_back(sum / static_cast<float>(before.size()));
      expect_near(scores_of(session.policy), expected);
      continue;
    }
    refreshes.push_back(t);
    const Floats row(session.cache.seq_len(), 1.0F / static_cast<float>(t));
    session.rows(0, {{row}});
    session.rows(1, {{row}});
    EXPECT_NE(scores_of(session.policy).front(), before.front());
  }
  EXPECT_EQ(refreshes, (std::vector<std::size_t>{1, 5, 9}));
}

// The ranking of the prompt is frozen in the first step; eviction goes on. m = .2 (.1, .4, .3, .2);
// tokens enter at the mean of what is there, .05, above which the prompt keeps its order.
TEST(InertiaKV, ScoreFreeRefreshesOnceAfterAPrompt) {
  RowSession<InertiaKV> session({.budget = 3, .score_free = true}, kOneLayer);
  session.prompt(3);
  session.step({{{{.1F, .4F, .3F, .2F}}}});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1, 2, 3}));
  expect_near(scores_of(session.policy), {.08F, .06F, .04F});
  session.append(1);
  EXPECT_FALSE(session.policy.wants_attention(0));
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1, 2, 4}));  // .08, .06, .06
  session.append(1);                                // enters at .0667
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1, 2, 5}));  // of the two at .06 the older stays
  session.prompt(2);
  session.append(1);
  EXPECT_TRUE(session.policy.wants_attention(0));
}

TEST(InertiaKV, IneligibleLayersAreNotLookedAt) {
  const CacheShape shape{.num_layers = 4, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  RowSession<InertiaKV> session({.budget = 9, .layers = {3, 1, 3}}, shape);
  session.prompt(1);
  session.append(1);
  EXPECT_EQ(session.policy.wanted_attention_rows(0), 0U);
  EXPECT_EQ(session.policy.wanted_attention_rows(1), 1U);
  EXPECT_EQ(session.policy.wanted_attention_rows(2), 0U);
  EXPECT_EQ(session.policy.wanted_attention_rows(3), 1U);
  session.rows(0, {{{1, 0}}});  // handed over all the same
  session.rows(1, {{{.5F, .5F}}});
  session.rows(3, {{{0, 1}}});
  expect_near(scores_of(session.policy), {.08F, .28F});  // .8 (.1, .1) + .2 (0, 1)
}

// KV head 0: |v| = 1, 3 -> weights .5, 1.5; KV head 1: 2, 2 -> 1, 1. Means over the two heads of
// (.75 .5, .25 1.5) and (.25, .75): (.3125, .5625).
TEST(InertiaKV, ValueNormWeighsEachHead) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};
  const HeadRows rows = {{{.75F, .25F}}, {{.25F, .75F}}};
  for (const bool cache_first : {true, false}) {
    RowSession<InertiaKVValueNorm> session({.budget = 9, .alpha = 0}, shape);
    session.prompt(1);
    session.append(1);
    session.cache.value(0, 0, 0)[1] = 1;
    session.cache.value(0, 0, 1)[0] = -3;
    session.cache.value(0, 1, 0)[0] = 2;
    session.cache.value(0, 1, 1)[1] = 2;
    if (cache_first)
      session.policy.observe_cache(session.cache.view());
    session.rows(0, rows);
    if (!cache_first)
      session.policy.observe_cache(session.cache.view());
    EXPECT_EQ(scores_of(session.policy), (Floats{.3125F, .5625F})) << cache_first;
  }
  RowSession<InertiaKV> plain({.budget = 9, .alpha = 0}, shape);
  plain.prompt(1);
  plain.step({rows});
  EXPECT_EQ(scores_of(plain.policy), (Floats{.5F, .5F}));
}

// Equal values, zeros too, weigh nothing.
TEST(InertiaKV, EqualValuesLeaveTheAttentionAsItIs) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};
  for (const float value : {0.0F, 2.0F}) {
    RowSession<InertiaKVValueNorm> session({.budget = 9, .alpha = 0}, shape);
    session.prompt(1);
    session.append(1);
    for (std::size_t slot = 0; slot < 2; ++slot) {
      session.cache.value(0, 0, slot)[0] = value;
      session.cache.value(0, 1, slot)[0] = value;
    }
    session.rows(0, {{{.75F, .25F}}, {{.25F, .75F}}});
    session.policy.observe_cache(session.cache.view());
    EXPECT_EQ(scores_of(session.policy), (Floats{.5F, .5F}));
  }
}

TEST(InertiaKV, ValueNormSaysThatTheCacheWasNotShown) {
  static_assert(!covers(InertiaKV::kRequiredInputs, Inputs::kValues));
  static_assert(covers(InertiaKVValueNorm::kRequiredInputs, Inputs::kValues));
  RowSession<InertiaKVValueNorm> session({.budget = 2}, kOneLayer);
  EXPECT_TRUE(session.policy.wants_cache());
  session.prompt(2);
  session.step({{{{.5F, .25F, .25F}}}});
  EXPECT_TRUE(refuses([&] { static_cast<void>(session.policy.select(session.cache.view())); },
                      {"InertiaKVValueNorm", "observe_cache"}));
}

// The second step is no refresh and nobody looks at its value; in the third the norms are 1, 1, 3
// and 3, their mean 2.
TEST(InertiaKV, ValuesAreAskedForInRefreshStepsAlone) {
  RowSession<InertiaKVValueNorm> session({.budget = 9, .alpha = 0, .refresh_interval = 2},
                                         kOneLayer);
  const auto append = [&](float norm) {
    session.append(1);
    session.cache.value(0, 0, session.cache.seq_len() - 1)[0] = norm;
  };
  const auto show = [&](const std::vector<float>& row) {
    session.rows(0, {{row}});
    session.policy.observe_cache(session.cache.view());
  };
  session.policy.begin(1);
  append(1);
  EXPECT_TRUE(session.policy.wants_cache());
  session.policy.observe_cache(session.cache.view());
  session.policy.end_prefill(session.cache.view());
  append(1);
  EXPECT_TRUE(session.policy.wants_cache());
  show({.5F, .5F});
  EXPECT_EQ(scores_of(session.policy), (Floats{.5F, .5F}));
  append(3);
  EXPECT_FALSE(session.policy.wants_cache());
  EXPECT_EQ(scores_of(session.policy), (Floats{.5F, .5F, .5F}));
  append(3);
  show({.25F, .25F, .25F, .25F});
  EXPECT_EQ(scores_of(session.policy), (Floats{.125F, .125F, .375F, .375F}));
  EXPECT_EQ(session.policy.counters().missing_signals, 0U);
}

// Layer 0 spreads evenly: weight 1. Layer 1 has one slot: weight 0, so it only lets m fade.
TEST(InertiaKV, EntropyWeighsALayer) {
  RowSession<InertiaKV> session({.budget = 9, .alpha = .5, .entropy_weighted = true}, kTwoLayers);
  session.prompt(1);
  session.step({{{{.5F, .5F}}}, {{{1, 0}}}});
  EXPECT_EQ(scores_of(session.policy), (Floats{.125F, .125F}));
  // (.5, .25, .25): 1.5 ln 2 / ln 3 = .9463946. Of the mean row, not of each head.
  const CacheShape two_heads{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};
  RowSession<InertiaKV> mean({.budget = 9, .alpha = 0, .entropy_weighted = true}, two_heads);
  mean.prompt(2);
  mean.step({{{{1, 0, 0}}, {{0, .5F, .5F}}}});
  expect_near(scores_of(mean.policy), {.4731973F, .2365986F, .2365986F});
}

TEST(InertiaKV, ReserveStaysInsideTheBudget) {
  RowSession<InertiaKV> session({.budget = 4, .num_sink_tokens = 1, .recent_window = 2}, kOneLayer);
  session.prompt(5);
  session.step({{{{0, .1F, .5F, .4F, 0, 0}}}});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2, 4, 5}));
  EXPECT_EQ(session.policy.counters().protected_entries, 3U);
  EXPECT_TRUE(
      refuses([] { InertiaKV({.budget = 4, .num_sink_tokens = 3, .recent_window = 2}, kOneLayer); },
              {"InertiaKV", "budget = 4"}));
  // A share is known with the prompt only: the newest come first then.
  RowSession<InertiaKV> share(
      {.budget = Budget::keep_ratio(0.25), .num_sink_tokens = 1, .recent_window = 2}, kOneLayer);
  share.prompt(4);
  share.append(1);
  share.cut();
  EXPECT_EQ(share.kept(), (Positions{4}));
}

// floor((1 - rho) L0) in exact arithmetic, from the first prompt, whatever comes after it.
TEST(InertiaKV, BudgetIsFrozenWithTheFirstPrompt) {
  const auto budget = [](const InertiaKV& policy) {
    return policy.method().allocation(policy.sequence()).budget.tokens_of(0);
  };
  for (const auto& [rho, prompt, expected] :
       std::vector<std::tuple<double, std::size_t, std::size_t>>{{.9, 1000, 100},
                                                                 {.9, 64011, 6401},
                                                                 {.8, 1005, 201},
                                                                 {.8, 5, 1},
                                                                 {.29, 100, 71},
                                                                 {.6, 1, 1},
                                                                 {1, 50, 0},
                                                                 {0, 7, 7}}) {
    InertiaKV policy({.budget = Budget::compression_ratio(rho)}, kOneLayer);
    policy.begin(prompt);
    EXPECT_EQ(budget(policy), expected) << rho << ' ' << prompt;
    policy.append(prompt);
    policy.append(37);
    policy.begin(2000);
    policy.append(2000);
    EXPECT_EQ(budget(policy), expected) << rho << ' ' << prompt;
    policy.truncate(prompt / 2 + 1);
    EXPECT_EQ(budget(policy), expected) << rho << ' ' << prompt;
    policy.reset();
    policy.begin(3000);
    EXPECT_EQ(budget(policy),
              InertiaKV::Options{.budget = Budget::compression_ratio(rho)}.budget.tokens_of(3000));
  }
}

TEST(InertiaKV, CutsFromTheFirstDecodeStepOnAndKeepsTheBudget) {
  RowSession<InertiaKV> session({}, kOneLayer);  // a tenth of 40
  session.prompt(40);
  EXPECT_FALSE(session.policy.should_evict());
  for (std::size_t t = 0; t < 6; ++t) {
    session.append(1);
    session.rows(0, {{Floats(session.cache.seq_len(), .1F)}});
    ASSERT_TRUE(session.cut());
    EXPECT_EQ(session.kept().size(), 4U);
  }
  session.prompt(10);
  EXPECT_FALSE(session.policy.should_evict());
  EXPECT_EQ(session.kept().size(), 14U);
  session.step({{{Floats(15, .1F)}}});
  session.cut();
  EXPECT_EQ(session.kept().size(), 4U);
}

// Without a prompt the share is one of all tokens so far.
TEST(InertiaKV, WorksWithoutAPrompt) {
  RowSession<InertiaKV> session({.budget = Budget::keep_ratio(0.5)}, kOneLayer);
  EXPECT_FALSE(session.policy.should_evict());
  EXPECT_EQ(session.policy.select(session.cache.view()).total_count(), 0U);
  for (std::size_t t = 1; t <= 8; ++t) {
    session.append(1);
    EXPECT_EQ(session.policy.wanted_attention_rows(0), 1U);
    session.rows(0, {{Floats(session.cache.seq_len(), .5F)}});
    session.cut();
    EXPECT_EQ(session.kept().size(), std::max<std::size_t>(1, t / 2));
  }
}

TEST(InertiaKV, KeepsAllUpToTheBudget) {
  RowSession<InertiaKV> session({.budget = 6}, kOneLayer);
  session.prompt(3);
  for (std::size_t n = 4; n <= 7; ++n) {
    session.step({{{Floats(n, .25F)}}});
    EXPECT_EQ(session.policy.should_evict(), n > 6) << n;
  }
  session.cut();
  EXPECT_EQ(session.kept().size(), 6U);
}

// Tokens of a further prompt enter at the mean and the count of steps starts over.
TEST(InertiaKV, SecondPromptEntersAtTheMean) {
  RowSession<InertiaKV> session({.budget = 9, .alpha = .5, .refresh_interval = 3}, kOneLayer);
  session.prompt(1);
  session.step({{{{.5F, .25F}}}});
  EXPECT_EQ(scores_of(session.policy), (Floats{.25F, .125F}));
  session.prompt(2);
  EXPECT_EQ(scores_of(session.policy), (Floats{.25F, .125F, .1875F, .1875F}));
  session.append(1);
  EXPECT_TRUE(session.policy.wants_attention(0));
}

constexpr CacheShape kGqa{.num_layers = 3, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = 80};

template <class P>
TestEngine<P> engine_of(const InertiaKVOptions& options, RowsFrom rows_from = RowsFrom::kQueries) {
  return {
      P(options, kGqa), kvevict_test::layouts::nhd(kGqa, 100, ElementType::kF32), {}, rows_from};
}

std::vector<InertiaKVOptions> option_sets() {
  std::vector<InertiaKVOptions> sets(8, {.budget = 12, .alpha = .9});
  sets[1].refresh_interval = 3;
  sets[2].score_free = true;
  sets[3].per_step = true;
  sets[4].entropy_weighted = true;
  sets[5].aggregator = Aggregator::kCumulative;
  sets[6].aggregator = Aggregator::kSingle;
  sets[7].layers = {2};
  return sets;
}

// Bit for bit: token by token or several tokens a step, the prompt in one piece or in many.
template <class P>
void expect_that_steps_do_not_matter() {
  std::size_t index = 0;
  for (const InertiaKVOptions& options : option_sets()) {
    SCOPED_TRACE(index++);
    auto single = engine_of<P>(options);
    single.prompt(20);
    for (std::size_t t = 0; t < 12; ++t)
      single.feed(1);
    for (const std::size_t count : {2U, 4U, 12U}) {
      auto several = engine_of<P>(options);
      several.prompt(20, 7);
      for (std::size_t t = 0; t < 12; t += count)
        several.feed(count);
      EXPECT_EQ(scores_of(several.policy), scores_of(single.policy)) << count;
      EXPECT_EQ(several.select(), single.select()) << count;
    }
  }
}
TEST(InertiaKV, TokensOfAStepCountOneAfterAnother) {
  expect_that_steps_do_not_matter<InertiaKV>();
}
TEST(InertiaKV, TokensOfAStepCountOneAfterAnotherWithValueNorms) {
  expect_that_steps_do_not_matter<InertiaKVValueNorm>();
}

TEST(InertiaKV, RowsOfAStepStartAtItsFirstRefresh) {
  InertiaKV policy({.budget = 64, .refresh_interval = 4}, kTwoLayers);
  policy.begin(3);
  policy.append(2);
  EXPECT_EQ(policy.wanted_attention_rows(0), 0U);
  policy.append(1);
  EXPECT_EQ(policy.wanted_attention_rows(0), 0U);
  policy.append(2);  // t = 1, 2
  EXPECT_EQ(policy.wanted_attention_rows(0), 2U);
  policy.append(2);  // t = 3, 4
  EXPECT_EQ(policy.wanted_attention_rows(0), 0U);
  policy.append(6);  // t = 5 .. 10
  EXPECT_EQ(policy.wanted_attention_rows(1), 6U);
  policy.append(5);  // t = 11 .. 15; 13 refreshes
  EXPECT_EQ(policy.wanted_attention_rows(1), 3U);
}

template <class P>
void expect_that_rows_and_queries_agree() {
  for (const InertiaKVOptions& options : option_sets()) {
    auto queries = engine_of<P>(options);
    auto rows = engine_of<P>(options, RowsFrom::kEngine);
    for (auto* engine : {&queries, &rows}) {
      engine->prompt(30);
      engine->decode(25);
    }
    EXPECT_EQ(queries.positions(), rows.positions());
    expect_near(scores_of(queries.policy), scores_of(rows.policy));
    EXPECT_TRUE(rows.cache_is_intact());
    EXPECT_EQ(rows.policy.counters().firings, 25U);
    EXPECT_EQ(rows.policy.counters().non_finite, 0U);
  }
}
TEST(InertiaKV, RowsAndQueriesGiveTheSameMask) {
  expect_that_rows_and_queries_agree<InertiaKV>();
  expect_that_rows_and_queries_agree<InertiaKVValueNorm>();
}

// The paper's corollary: a common positive factor does not change the ranking.
TEST(InertiaKV, ScaleOfTheAttentionDoesNotMatter) {
  std::vector<RowSession<InertiaKV>> sessions(2, RowSession<InertiaKV>({.budget = 5}, kTwoLayers));
  kvevict_test::Random random(3);
  for (auto& session : sessions)
    session.prompt(8);
  for (std::size_t t = 0; t < 20; ++t) {
    std::vector<HeadRows> layers;
    for (std::size_t layer = 0; layer < 2; ++layer) {
      Floats row(sessions[0].cache.seq_len() + 1);
      for (float& a : row)
        a = static_cast<float>(random.below(64)) / 64.0F;
      layers.push_back({{row}});
    }
    sessions[0].step(layers);
    for (HeadRows& rows : layers) {
      for (float& a : rows[0][0])
        a *= .25F;
    }
    sessions[1].step(layers);
    for (auto& session : sessions)
      session.cut();
    ASSERT_EQ(sessions[0].kept(), sessions[1].kept()) << t;
  }
}

// Rule R19: the entry is left alone, decay included, and counted once however many heads spoil it.
TEST(InertiaKV, NonFiniteAttentionIsNoUpdate) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const CacheShape shape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};
  for (const bool per_step : {false, true}) {
    RowSession<InertiaKV> session({.budget = 9, .alpha = .5, .per_step = per_step}, shape);
    session.prompt(2);
    session.step({{{{.5F, .25F, .25F}}, {{.5F, .25F, .25F}}}});
    EXPECT_EQ(scores_of(session.policy), (Floats{.25F, .125F, .125F}));
    session.append(1);
    session.rows(0, {{{nan, .5F, infinity, .5F}}, {{nan, .5F, 0, .5F}}});
    EXPECT_EQ(scores_of(session.policy)[0], .25F);
    EXPECT_EQ(scores_of(session.policy)[1], .3125F);
    EXPECT_EQ(scores_of(session.policy)[2], .125F);
    EXPECT_EQ(session.policy.counters().non_finite, 2U);
  }
}
// One value that is not finite takes nothing from the other tokens.
TEST(InertiaKV, NonFiniteValueIsNoUpdate) {
  RowSession<InertiaKVValueNorm> session({.budget = 9, .alpha = 0}, kOneLayer);
  session.prompt(2);
  session.append(1);
  session.cache.value(0, 0, 0)[0] = std::numeric_limits<float>::quiet_NaN();
  session.cache.value(0, 0, 1)[0] = 1;
  session.cache.value(0, 0, 2)[0] = 3;
  session.rows(0, {{{.5F, .25F, .25F}}});
  session.policy.observe_cache(session.cache.view());
  EXPECT_EQ(scores_of(session.policy), (Floats{0, .125F, .375F}));
  EXPECT_EQ(session.policy.counters().non_finite, 1U);
}

TEST(InertiaKV, PaddingGoesFirst) {
  RowSession<InertiaKV> session({.budget = 3}, kOneLayer);
  session.prompt(6);
  session.cache.valid() = {0, 0, 1, 1, 1, 1, 1};
  session.step({{{{.5F, .5F, .1F, .2F, .3F, .1F, .2F}}}});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{3, 4, 6}));
}

// What a taken-back token gave stays, its own entry goes, and so does half a step.
TEST(InertiaKV, TruncateTakesTheNewestEntriesBack) {
  RowSession<InertiaKV> session({.budget = 9, .alpha = .5, .refresh_interval = 2}, kTwoLayers);
  session.prompt(2);
  session.step({{{{.5F, .25F, .25F}}}, {{{.5F, .25F, .25F}}}});
  session.append(1);
  session.truncate(3);
  EXPECT_EQ(scores_of(session.policy), (Floats{.375F, .1875F, .1875F}));
  session.append(2);  // t = 2, 3
  EXPECT_EQ(session.policy.wanted_attention_rows(0), 1U);
  session.rows(0, {{{1, 0, 0, 0, 0}}});
  session.truncate(2);
  EXPECT_EQ(scores_of(session.policy), (Floats{.375F, .1875F}));
  session.append(1);  // t = 1 again
  session.rows(0, {{{0, 0, 1}}});
  session.rows(1, {{{0, 0, 1}}});
  EXPECT_EQ(scores_of(session.policy), (Floats{.09375F, .046875F, .8203125F}));
}

TEST(InertiaKV, CopyForksTheSequence) {
  auto first = engine_of<InertiaKV>({.budget = 8});
  first.prompt(12);
  first.decode(3);
  auto second = first;
  first.decode(4);
  const Positions before(second.positions().begin(), second.positions().end());
  const Floats kept = scores_of(second.policy);
  second.decode(4);
  EXPECT_EQ(second.positions(), first.positions());
  EXPECT_EQ(scores_of(second.policy), scores_of(first.policy));
  EXPECT_NE(scores_of(second.policy), kept);
}

TEST(InertiaKV, RefusesWhatCannotWork) {
  static_assert(is_flash_attention_compatible<InertiaKV>);
  EXPECT_TRUE(refuses([] { InertiaKV({.alpha = 1}, kOneLayer); }, {"InertiaKV", "alpha"}));
  EXPECT_TRUE(refuses([] { InertiaKV({.alpha = -.1}, kOneLayer); }, {"alpha", "-0.1"}));
  EXPECT_TRUE(refuses([] { InertiaKV({.alpha = std::nan("")}, kOneLayer); }, {"alpha"}));
  EXPECT_TRUE(refuses([] { InertiaKV({.refresh_interval = 0}, kOneLayer); },
                      {"InertiaKV", "refresh_interval = 0"}));
  EXPECT_TRUE(refuses(
      [] {
        InertiaKVValueNorm({.layers = {0, 2}}, kTwoLayers);
      },
      {"InertiaKVValueNorm", "layers = 2"}));
}

TEST(InertiaKV, OptionsCanBeWritten) {
  InertiaKVOptions options;
  detail::read_options<Composed<InertiaKVRecipe>>(
      "budget=25%,alpha=0.9,aggregator=cumulative,per_step=true,refresh_interval=4,"
      "score_free=true,entropy_weighted=true,layers=1:3,num_sink_tokens=4,recent_window=8",
      options);
  EXPECT_EQ(options.budget.tokens_of(100), 25U);
  EXPECT_EQ(options.alpha, .9);
  EXPECT_EQ(options.aggregator, Aggregator::kCumulative);
  EXPECT_TRUE(options.per_step);
  EXPECT_EQ(options.refresh_interval, 4U);
  EXPECT_TRUE(options.score_free);
  EXPECT_TRUE(options.entropy_weighted);
  EXPECT_EQ(options.layers, (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(options.num_sink_tokens, 4U);
  EXPECT_EQ(options.recent_window, 8U);
}

}  // namespace
}  // namespace kvevict
