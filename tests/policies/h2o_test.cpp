#include "kvevict/policies/h2o.hpp"

#include "kvevict/option_text.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "support/errors.hpp"
#include "support/layouts.hpp"
#include "support/masks.hpp"
#include "support/row_session.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::HeadRows;
using kvevict_test::RowSession;
using kvevict_test::RowsFrom;
using kvevict_test::scores_of;
using kvevict_test::Slots;
using kvevict_test::TestEngine;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
using Positions = std::vector<Position>;

/// A prompt whose attention rows are given, and its end.
RowSession<H2O> session_of(const H2OOptions& options, const CacheShape& shape,
                           const HeadRows& rows) {
  RowSession<H2O> session(options, shape, 512);
  session.policy.begin(rows[0].size());
  session.append(rows[0].size());
  session.rows(0, rows);
  session.policy.end_prefill(session.cache.view());
  return session;
}

/// A prompt that leaves these sums behind: all rows but the last are zero.
HeadRows rows_with_sums(const std::vector<float>& sums) {
  std::vector<std::vector<float>> rows;
  for (std::size_t t = 0; t + 1 < sums.size(); ++t)
    rows.emplace_back(t + 1, 0.0F);
  rows.push_back(sums);
  return {rows};
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-6) << i;
}

// Sums 1 + .6 + .5, .4 + .1, .4. The newest stays, and the heaviest of the others.
TEST(H2O, KeepsTheHeaviestAndTheNewest) {
  auto session =
      session_of({.heavy = 1, .recent = 1}, kOneHead, {{{1}, {.6F, .4F}, {.5F, .1F, .4F}}});
  expect_near(scores_of(session.policy, session.cache), {2.1F, .5F, .4F});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 2}));
}

// Case O-19: every row of the prompt counts: 1 + .9 + .2 + .1, .1 + .7 + .2, .1 + .6, .1.
TEST(H2O, SumsAllRowsOfThePrompt) {
  auto session = session_of({.heavy = 1, .recent = 1}, kOneHead,
                            {{{1}, {.9F, .1F}, {.2F, .7F, .1F}, {.1F, .2F, .6F, .1F}}});
  expect_near(scores_of(session.policy, session.cache), {2.2F, 1.0F, .7F, .1F});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 3}));
}

// Case O-17: under even attention the first token gets 1 + 1/2 + 1/3 + 1/4, the last 1/4.
TEST(H2O, SumsFavourOldTokens) {
  HeadRows rows(1);
  for (std::size_t t = 1; t <= 4; ++t)
    rows[0].emplace_back(t, 1.0F / static_cast<float>(t));
  auto session = session_of({.heavy = 4, .recent = 0}, kOneHead, rows);
  expect_near(scores_of(session.policy, session.cache), {2.083333F, 1.083333F, .583333F, .25F});
}

// Case O-02: no recent window protects nothing.
TEST(H2O, RecentWindowOfZeroProtectsNothing) {
  auto session =
      session_of({.heavy = 3, .recent = 0}, kOneHead, rows_with_sums({5, 1, 4, 2, 3, 0, 0, 0}));
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2, 4}));
}

// Case O-16. Sums 3, 2, 1, .5; after the first row 3.1, 2.1, 1.1, .6, .6: of the old ones slot 3
// goes. After the second 3.2, 2.2, 1.15, and 1.25 of the token that has left the window.
TEST(H2O, NewcomerCompetesOnceItLeavesTheWindow) {
  auto session = session_of({.heavy = 3, .recent = 1}, kOneHead, rows_with_sums({3, 2, 1, .5F}));
  EXPECT_FALSE(session.cut());
  session.step({{{{.1F, .1F, .1F, .1F, .6F}}}});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 4}));
  session.step({{{{.1F, .1F, .05F, .65F, .1F}}}});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1, 4, 5}));
  expect_near(scores_of(session.policy, session.cache), {3.2F, 2.2F, 1.25F, .1F});
}

// Case O-16 without a window: .5 of the new token against .7, so it goes in the step it came.
TEST(H2O, NewcomerWithoutWindowMayGoAtOnce) {
  auto session = session_of({.heavy = 4, .recent = 0}, kOneHead, rows_with_sums({3, 2, 1, .5F}));
  session.step({{{{.1F, .1F, .1F, .2F, .5F}}}});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(session.policy.length(), 5U);
  session.step({{{{0, 0, 0, 0, 1}}}});  // 1 against .7
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 5}));
}

// Case O-15: 300 and 280 rows of 1.0. A sum of 8 bits' precision would stop at 256 for both.
TEST(H2O, LongSumsDoNotStick) {
  HeadRows rows(1);
  for (std::size_t t = 0; t < 301; ++t) {
    rows[0].emplace_back(t + 1, 0.0F);
    if (t > 0 && t <= 280)
      rows[0][t][0] = 1;
    if (t > 0)
      rows[0][t][1] = 1;
  }
  auto session = session_of({.heavy = 1, .recent = 0}, kOneHead, rows);
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1}));
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{300}));
}

// Case O-22: a row that gave .6 to a sink outside the cache is used as it is.
TEST(H2O, RowsNeedNotSumToOne) {
  auto session = session_of({.heavy = 2, .recent = 1}, kOneHead, rows_with_sums({.1F, .1F, .2F}));
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{.1F, .1F, .2F}));
}

// Sums 2.25, .875, .5, .375 over 4, 3, 2, 1 rows: .5625, .2917, .25, .375.
TEST(H2O, LifetimeMeanDividesByTheRowsThatSawTheToken) {
  const HeadRows rows = {{{1}, {.5F, .5F}, {.5F, .25F, .25F}, {.25F, .125F, .25F, .375F}}};
  auto sums = session_of({.heavy = 2, .recent = 0}, kOneHead, rows);
  sums.cut();
  EXPECT_EQ(sums.kept(), (Positions{0, 1}));
  auto means = session_of({.heavy = 2, .recent = 0, .lifetime_mean = true}, kOneHead, rows);
  expect_near(scores_of(means.policy, means.cache), {.5625F, .875F / 3, .25F, .375F});
  means.cut();
  EXPECT_EQ(means.kept(), (Positions{0, 3}));
  // A row for both, and one for the new token: (2.25 + .5) / 5, (.375 + .25) / 2, .25.
  means.step({{{{.5F, .25F, .25F}}}});
  expect_near(scores_of(means.policy, means.cache), {.55F, .3125F, .25F});
}

// Rows that a rollback took back stay in the sums and so in their number.
TEST(H2O, LifetimeMeanCountsRowsOfTakenBackTokens) {
  auto session =
      session_of({.heavy = 9, .recent = 1, .lifetime_mean = true}, kOneHead, {{{1}, {.5F, .5F}}});
  session.append(2);
  session.rows(0, {{{.5F, .25F, .25F}, {.25F, .25F, .25F, .25F}}});
  session.truncate(2);
  // (1 + .5 + .5 + .25) / 4, (.5 + .25 + .25) / 3
  expect_near(scores_of(session.policy, session.cache), {.5625F, 1.0F / 3});
}

constexpr CacheShape kTwoLayers{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 2};

// Case O-30: query heads 0 and 1 read KV head 0 and see slot 0, 2 and 3 see slot 1.
TEST(H2O, GroupsHaveTheirMeanAndTheirOwnSet) {
  CacheShape shape = kTwoLayers;
  shape.num_layers = 1;
  const std::vector<std::vector<float>> first = {{1}, {1, 0}};
  const std::vector<std::vector<float>> second = {{0}, {.25F, .5F}};
  const std::vector<std::vector<float>> third = {{0}, {.25F, 1}};
  auto session =
      session_of({.heavy = 1, .recent = 0}, shape, HeadRows{first, first, second, third});
  EXPECT_EQ(scores_of(session.policy, session.cache, 0), (std::vector<float>{2, 0}));
  EXPECT_EQ(scores_of(session.policy, session.cache, 1), (std::vector<float>{.25F, .75F}));
  session.cut();
  EXPECT_EQ(session.kept(0), (Positions{0}));
  EXPECT_EQ(session.kept(1), (Positions{1}));
}

// Means over the heads of a layer and over the model. Layer 0: heads 0 and 1 give (1, 0), 2 and 3
// (0, 1) and (0, .5); layer 1: all heads (0, 1).
TEST(H2O, SharedSetsUseTheMeanOfTheirHeads) {
  const auto run = [](MaskScope scope, bool lifetime_mean) {
    RowSession<H2O> session(
        {.heavy = 1, .recent = 0, .scope = scope, .lifetime_mean = lifetime_mean}, kTwoLayers);
    session.policy.begin(2);
    session.append(2);
    session.rows(0, {{{0}, {1, 0}}, {{0}, {1, 0}}, {{0}, {0, 1}}, {{0}, {0, .5F}}});
    session.rows(1, HeadRows(4, {{0}, {0, 1}}));
    session.policy.end_prefill(session.cache.view());
    return session;
  };
  auto layer = run(MaskScope::kLayer, false);
  EXPECT_EQ(scores_of(layer.policy, layer.cache, 0), (std::vector<float>{.5F, .375F}));
  EXPECT_EQ(scores_of(layer.policy, layer.cache, 1), (std::vector<float>{0, 1}));
  layer.cut();
  EXPECT_EQ(layer.kept(0), (Positions{0}));
  EXPECT_EQ(layer.kept(1), (Positions{1}));
  auto model = run(MaskScope::kModel, false);
  EXPECT_EQ(scores_of(model.policy, model.cache), (std::vector<float>{.25F, .6875F}));
  model.cut();
  EXPECT_EQ(model.kept(), (Positions{1}));
  EXPECT_EQ(model.policy.counters().evicted, 4U);  // one token of four lanes
  // Two rows saw slot 0 and one slot 1, however many heads share them.
  auto means = run(MaskScope::kModel, true);
  EXPECT_EQ(scores_of(means.policy, means.cache), (std::vector<float>{.125F, .6875F}));
}

// Identity: without heavy tokens a sliding window.
TEST(H2O, WithoutHeavyTokensIsASlidingWindow) {
  H2O h2o({.heavy = 0, .recent = 5}, kOneHead);
  StreamingLLM window({.num_sink_tokens = 0, .recent_window = 5}, kOneHead);
  kvevict_test::WindowCache cache(kOneHead, 32);
  for (std::size_t step = 0; step < 12; ++step) {
    cache.append(1);
    h2o.append(1);
    window.append(1);
    ASSERT_EQ(h2o.should_evict(), window.should_evict());
    const KeepMask mask = h2o.select(cache.view());
    ASSERT_EQ(kvevict_test::text_of(mask), kvevict_test::text_of(window.select(cache.view())));
    cache.evict(mask);
    h2o.apply(mask);
    window.apply(mask);
  }
}

// The authors' int(0.1 L0) of each kind, and at least one.
TEST(H2O, DefaultIsATenthOfTheFirstPromptEach) {
  const auto budgets = [](const H2O& policy) {
    return std::vector<std::size_t>{policy.method().allocation(policy.sequence()).budget.count(),
                                    policy.method().protection(policy.sequence()).recent_window};
  };
  for (const auto& [prompt, each] : std::vector<std::pair<std::size_t, std::size_t>>{
           {40, 4}, {30, 3}, {29, 2}, {9, 1}, {1000, 100}}) {
    RowSession<H2O> session({}, kOneHead, 2048);
    session.prompt(prompt);
    EXPECT_EQ(budgets(session.policy), (std::vector<std::size_t>{2 * each, each})) << prompt;
    session.cut();
    for (std::size_t step = 0; step < 5; ++step)
      session.append(1);
    session.prompt(100);  // a second prompt changes nothing
    EXPECT_EQ(budgets(session.policy), (std::vector<std::size_t>{2 * each, each})) << prompt;
    session.policy.reset();
    session.policy.begin(70);
    session.policy.append(70);
    EXPECT_EQ(budgets(session.policy), (std::vector<std::size_t>{14, 7}));
  }
}

TEST(H2O, HeavyAndRecentMayBeOfDifferentKinds) {
  RowSession<H2O> session({.heavy = Budget::keep_ratio(0.25), .recent = 3}, kOneHead);
  session.prompt(20);
  session.cut();
  EXPECT_EQ(session.kept().size(), 8U);
}

TEST(H2O, AnUnfinishedPromptIsCutOnRequestOnly) {
  for (const bool cut : {false, true}) {
    RowSession<H2O> session({.heavy = 2, .recent = 2, .cut_between_chunks = cut}, kOneHead);
    session.policy.begin(12);
    session.append(6);
    EXPECT_EQ(session.policy.should_evict(), cut);
    if (!cut) {
      EXPECT_EQ(session.policy.select(session.cache.view()).total_evicted(), 0U);
    }
    session.append(6);
    EXPECT_TRUE(session.policy.should_evict());
    session.cut();
    EXPECT_EQ(session.kept().size(), 4U);
  }
}

constexpr CacheShape kGqa{.num_layers = 3, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = 80};

TestEngine<H2O> engine_of(const H2OOptions& options, RowsFrom rows_from = RowsFrom::kQueries) {
  return {
      H2O(options, kGqa), kvevict_test::layouts::nhd(kGqa, 100, ElementType::kF32), {}, rows_from};
}

// Chunks of a prompt and tokens per step change no bit of a score, whoever shares a set.
TEST(H2O, ChunksDoNotMatter) {
  for (const MaskScope scope : {MaskScope::kHead, MaskScope::kLayer, MaskScope::kModel}) {
    for (const bool lifetime_mean : {false, true}) {
      const H2OOptions options{
          .heavy = 9, .recent = 4, .scope = scope, .lifetime_mean = lifetime_mean};
      auto whole = engine_of(options);
      whole.prompt(37);
      whole.evict_if_due();
      whole.feed(4);
      const KeepMask expected = whole.select();
      for (const std::size_t chunk : {1U, 5U, 16U, 36U}) {
        auto pieces = engine_of(options);
        pieces.prompt(37, chunk);
        pieces.evict_if_due();
        for (std::size_t step = 0; step < 4; ++step)
          pieces.feed(1);
        EXPECT_EQ(pieces.select(), expected) << chunk;
        const auto view = pieces.cache.view();
        const auto whole_view = whole.cache.view();
        Scratch scratch;
        for (std::size_t lane = 0; lane < expected.num_lanes(); ++lane) {
          const auto scores = [&](const H2O& policy, const auto& of) {
            const ViewRef ref(of);
            std::vector<float> out(policy.sequence().seq_len(lane));
            policy.method().score({ref, policy.sequence(), kernels::best(), scratch}, lane, out);
            return out;
          };
          EXPECT_EQ(scores(pieces.policy, view), scores(whole.policy, whole_view)) << chunk;
        }
      }
    }
  }
}

TEST(H2O, RowsAndQueriesGiveTheSameMask) {
  for (const MaskScope scope : {MaskScope::kHead, MaskScope::kLayer, MaskScope::kModel}) {
    auto queries = engine_of({.heavy = 9, .recent = 4, .scope = scope});
    auto rows = engine_of({.heavy = 9, .recent = 4, .scope = scope}, RowsFrom::kEngine);
    for (auto* engine : {&queries, &rows}) {
      engine->prompt(30);
      engine->evict_if_due();
      engine->decode(20);
    }
    EXPECT_EQ(queries.all_positions(), rows.all_positions());
    EXPECT_TRUE(rows.cache_is_intact());
  }
}

TEST(H2O, WantsEveryRow) {
  static_assert(!is_flash_attention_compatible<H2O>);
  H2O policy({.heavy = 4, .recent = 4}, kTwoLayers);
  policy.begin(20);
  EXPECT_EQ(policy.wanted_attention_rows(0), 20U);
  policy.append(7);
  EXPECT_EQ(policy.wanted_attention_rows(1), 7U);
  policy.append(13);
  policy.append(1);
  EXPECT_EQ(policy.wanted_attention_rows(1), 1U);
}

// Rule R19, and selection still keeps what it should.
TEST(H2O, NonFiniteAttentionAddsNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  auto session =
      session_of({.heavy = 1, .recent = 1}, kOneHead, {{{1}, {infinity, .5F}, {.25F, nan, .5F}}});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{1.25F, .5F, .5F}));
  EXPECT_EQ(session.policy.counters().non_finite, 2U);
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2}));
}

// Rule R9: padding is neither kept nor counted, whatever its sums.
TEST(H2O, PaddingGoesFirst) {
  auto session = session_of({.heavy = 2, .recent = 1}, kOneHead,
                            rows_with_sums({.3F, .3F, .3F, .01F, .02F, .04F, .03F, 0}));
  session.cache.valid() = {0, 0, 0, 1, 1, 1, 1, 1};
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{5, 6, 7}));
}

// A third and a sixth of the six tokens of a prompt that came padded to nine, not of the nine.
TEST(H2O, SharesAreOfTokensNotOfPadding) {
  RowSession<H2O> session(
      H2OOptions{.heavy = Budget::keep_ratio(0.34), .recent = Budget::keep_ratio(0.17)}, kOneHead,
      512);
  session.policy.begin(9);
  session.append(9);
  session.rows(0, rows_with_sums({.3F, .3F, .3F, .01F, .02F, .04F, .05F, .03F, 0}));
  session.cache.valid() = {0, 0, 0, 1, 1, 1, 1, 1, 1};
  session.policy.end_prefill(session.cache.view());
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{5, 6, 8}));
}

// Padding that a cut between chunks took away is no token of the first prompt either.
TEST(H2O, SharesForgetPaddingThatWentBetweenChunks) {
  H2O policy({.heavy = Budget::keep_ratio(0.25),
              .recent = Budget::keep_ratio(0.25),
              .cut_between_chunks = true},
             kOneHead);
  kvevict_test::WindowCache cache(kOneHead, 20);
  policy.begin(20);
  for (std::size_t chunk = 0; chunk < 2; ++chunk) {
    cache.append(10);
    policy.append(10);
    cache.valid().assign(cache.seq_len(), 1);
    std::fill_n(cache.valid().begin(), chunk == 0 ? 8 : 0, std::uint8_t{0});
    const KeepMask mask = policy.select(cache.view());
    cache.valid().clear();
    cache.evict(mask);
    policy.apply(mask);
  }
  policy.end_prefill(cache.view());
  EXPECT_EQ(policy.sequence().first_prompt_padding(), 8U);
  EXPECT_EQ(policy.select(cache.view()).total_count(), 6U);  // half of twelve
}

TEST(H2O, SecondPromptAddsToTheSums) {
  auto session = session_of({.heavy = 2, .recent = 1}, kOneHead, rows_with_sums({3, 1, 2, 0}));
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2, 3}));
  session.policy.begin(2);
  session.append(2);
  session.rows(0, {{{0, 0, .5F, .5F}, {0, 0, .75F, .25F, 0}}});
  session.policy.end_prefill(session.cache.view());
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{3, 2, 1.25F, .75F, 0}));
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2, 5}));
}

TEST(H2O, CopyForksTheSequence) {
  auto session = session_of({.heavy = 2, .recent = 1}, kOneHead, rows_with_sums({3, 1, 2}));
  auto fork = session;
  fork.step({{{{0, 1, 0, 0}}}});
  session.step({{{{0, 0, 1, 0}}}});
  fork.cut();
  session.cut();
  EXPECT_EQ(fork.kept(), (Positions{0, 1, 3}));  // 2 and 2: the lower slot stays
  EXPECT_EQ(session.kept(), (Positions{0, 2, 3}));
}

TEST(H2O, EmptyAndSmallCachesStay) {
  H2O policy({.heavy = 2, .recent = 2}, kOneHead);
  kvevict_test::WindowCache cache(kOneHead, 8);
  EXPECT_FALSE(policy.should_evict());
  EXPECT_EQ(policy.select(cache.view()).total_count(), 0U);
  for (std::size_t n = 1; n <= 4; ++n) {
    cache.append(1);
    policy.append(1);
    EXPECT_FALSE(policy.should_evict()) << n;
    EXPECT_EQ(policy.select(cache.view()).total_evicted(), 0U) << n;
  }
  cache.append(1);
  policy.append(1);
  EXPECT_TRUE(policy.should_evict());
  EXPECT_EQ(kvevict_test::kept_slots(policy.select(cache.view())), (Slots{0, 1, 3, 4}));
}

TEST(H2O, RefusesWhatCannotWork) {
  using kvevict_test::refuses;
  EXPECT_TRUE(refuses([] { H2O({.heavy = Budget::total(8), .recent = 1}, kOneHead); },
                      {"H2O", "heavy", "8"}));
  EXPECT_TRUE(refuses([] { H2O({.heavy = 1, .recent = Budget::total(9)}, kOneHead); },
                      {"H2O", "recent", "9"}));
  EXPECT_TRUE(refuses([] { H2O({.heavy = 0, .recent = 0}, kOneHead); }, {"H2O", "recent = 0"}));
  EXPECT_TRUE(refuses(
      [] {
        H2O policy({.heavy = 1, .recent = 1}, kOneHead);
        policy.append(3);
        const std::vector<float> row(3);
        policy.observe_attention(
            0, {.data = row.data(), .num_q_heads = 1, .num_rows = 1, .row_stride = 3});
      },
      {"H2O", "num_rows = 1", "wanted_attention_rows"}));
}

TEST(H2O, OptionsCanBeWritten) {
  H2OOptions options;
  detail::read_options<H2ORecipe>(
      "heavy=12,recent=20%,scope=model,lifetime_mean=true,cut_between_chunks=1", options);
  EXPECT_EQ(options.heavy.count(), 12U);
  EXPECT_EQ(options.recent.tokens_of(100), 20U);
  EXPECT_EQ(options.scope, MaskScope::kModel);
  EXPECT_TRUE(options.lifetime_mean);
  EXPECT_TRUE(options.cut_between_chunks);
}

}  // namespace
}  // namespace kvevict
