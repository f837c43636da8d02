#include "kvevict/policies/snapkv.hpp"

#include "kvevict/option_text.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace kvevict;
using namespace kvevict_test;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kPair{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kModel{.num_layers = 2, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = 5};
constexpr Pooling kNoPooling{.kernel_size = 1};

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                 float tolerance = 1e-6F) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "slot " << i;
  }
}

// Case O-19: only the window's rows count, only the columns before it are scored.
TEST(SnapKV, ScoresThePrefixByTheWindowsRows) {
  SnapKV policy({.budget = 2, .observation_window = 1, .pooling = kNoPooling}, kOneHead);
  WindowCache cache(kOneHead, 4);
  feed_rows(policy, cache, {{{.1F, .2F, .6F, .1F}}});
  expect_near(scores_of(policy, cache), {.1F, .2F, .6F, 0.0F});
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{2, 3}));
}

// policies.md 3.1 (a): uniform logits, n = 4, w = 2: rows of 1/3 and 1/4, so 7/12 for both slots
// of the prefix. A tie goes to the lower slot (rule R3).
TEST(SnapKV, UniformLogitsTie) {
  SnapKV policy({.budget = 3, .observation_window = 2, .pooling = kNoPooling}, kOneHead);
  WindowCache cache(kOneHead, 4);  // keys and queries of zeros
  cache.append(4);
  const std::vector<float> queries(4);
  policy.begin(4);
  policy.observe_queries(
      0, {.data = queries.data(), .num_q_heads = 1, .num_rows = 2, .row_stride = 2}, cache.view());
  policy.end_prefill(cache.view());
  const float score = 1.0F / 3.0F + 1.0F / 4.0F;
  expect_near(scores_of(policy, cache), {score, score, 0.0F, 0.0F});
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 2, 3}));
}

// policies.md 3.1 (b): with zeros counted at the edge the largest score falls behind.
TEST(SnapKV, PoolsOverNeighboursOfThePrefix) {
  const std::vector<float> row{.30F, .02F, .02F, .25F, .02F, .24F, .15F};
  const auto check = [&](const Pooling& pooling, std::vector<float> expected, const Slots& kept) {
    SnapKV policy({.budget = 3, .observation_window = 1, .pooling = pooling}, kOneHead);
    WindowCache cache(kOneHead, 7);
    feed_rows(policy, cache, {{row}});
    expected.push_back(0.0F);  // the window has no score and is no neighbour
    expect_near(scores_of(policy, cache), expected, 1e-5F);
    EXPECT_EQ(kept_slots(policy.select(cache.view())), kept);
  };
  check({.kind = PoolKind::kAverage, .kernel_size = 3},
        {.10667F, .11333F, .09667F, .09667F, .17F, .08667F}, {1, 4, 6});
  check({.kind = PoolKind::kAverage, .kernel_size = 3, .edge = kernels::PoolEdge::kShrink},
        {.16F, .11333F, .09667F, .09667F, .17F, .13F}, {0, 4, 6});
  check({.kind = PoolKind::kMax, .kernel_size = 3}, {.30F, .30F, .25F, .25F, .25F, .24F},
        {0, 1, 6});
}

// policies.md 10.1: two heads (1,0,0) and (0,0,1) under a maximum of three.
TEST(SnapKV, OrderOfPoolingAndReductionMatters) {
  const auto scores = [](bool pool_first, GroupReduce reduce, PoolKind kind) {
    SnapKV policy({.budget = 4,
                   .observation_window = 1,
                   .pooling = {.kind = kind, .kernel_size = 3},
                   .group_reduce = reduce,
                   .pool_first = pool_first},
                  kPair);
    WindowCache cache(kPair, 4);
    feed_rows(policy, cache, {{{1, 0, 0, 0}}, {{0, 0, 1, 0}}});
    return scores_of(policy, cache);
  };
  expect_near(scores(true, GroupReduce::kMean, PoolKind::kMax), {.5F, 1, .5F, 0});
  expect_near(scores(false, GroupReduce::kMean, PoolKind::kMax), {.5F, .5F, .5F, 0});
  expect_near(scores(true, GroupReduce::kMax, PoolKind::kMax), {1, 1, 1, 0});
  expect_near(scores(false, GroupReduce::kMax, PoolKind::kMax), {1, 1, 1, 0});
  // Averages: (1/3, 1/3, 0) and (0, 1/3, 1/3); their mean, and their maximum in either order.
  for (const bool pool_first : {false, true}) {
    expect_near(scores(pool_first, GroupReduce::kMean, PoolKind::kAverage),
                {1 / 6.F, 1 / 3.F, 1 / 6.F, 0});
  }
  expect_near(scores(true, GroupReduce::kMax, PoolKind::kAverage), {1 / 3.F, 1 / 3.F, 1 / 3.F, 0});
  expect_near(scores(false, GroupReduce::kMax, PoolKind::kAverage), {1 / 3.F, 2 / 3.F, 1 / 3.F, 0});
}

// The maximum over heads is taken of their sums over rows: head 0 (.5, .3), head 1 (.1, .6).
TEST(SnapKV, GroupMaximumIsOfSumsOverRows) {
  for (const auto& [reduce, first, second] :
       {std::tuple{GroupReduce::kMean, .30F, .45F}, std::tuple{GroupReduce::kMax, .5F, .6F}}) {
    SnapKV policy(
        {.budget = 4, .observation_window = 2, .pooling = kNoPooling, .group_reduce = reduce},
        kPair);
    WindowCache cache(kPair, 4);
    feed_rows(policy, cache,
              {{{.4F, .1F, .5F}, {.1F, .2F, .3F, .4F}}, {{.1F, .3F, .6F}, {0, .3F, .3F, .4F}}});
    expect_near(scores_of(policy, cache), {first, second, 0, 0});
  }
}

// Case O-05: prompts that are as short as the window, or shorter.
TEST(SnapKV, PromptNotLongerThanTheWindowIsKept) {
  Random random(1);
  const WindowQueries queries(kOneHead, 8, random);
  const auto kept = [&](std::size_t len, std::size_t budget) {
    SnapKV policy({.budget = budget, .observation_window = 8}, kOneHead);
    WindowCache cache(kOneHead, 16);
    feed_prompt(policy, cache, len, queries, 3);
    EXPECT_EQ(policy.should_evict(), len > budget);
    return kept_slots(policy.select(cache.view()));
  };
  EXPECT_EQ(kept(0, 8), range(0, 0));
  EXPECT_EQ(kept(3, 8), range(0, 3));
  EXPECT_EQ(kept(8, 8), range(0, 8));
  EXPECT_EQ(kept(9, 8), range(1, 9));
  EXPECT_EQ(kept(9, 9), range(0, 9));
  EXPECT_TRUE(refuses([] { SnapKV({.budget = 7, .observation_window = 8}, kOneHead); },
                      {"SnapKV", "budget = 7", "recent_window"}));
}

// Case O-07: a fully masked row has no softmax and adds nothing. Here it comes from a query whose
// logits are all -infinity; the other row's logits are 0, 0, ln 2, 0.
TEST(SnapKV, FullyMaskedRowAddsNothing) {
  WindowCache cache(kOneHead, 4);
  for (std::size_t slot = 0; slot < 4; ++slot) {
    cache.key(0, 0, slot)[0] = 1.0F;
    cache.key(0, 0, slot)[1] = slot == 2 ? std::log(2.0F) : 0.0F;
  }
  cache.append(4);
  const std::vector<float> queries{-kInfinity, 0.0F, 0.0F, 1.0F};
  const auto run = [&](std::size_t budget) {
    SnapKV policy(
        {.budget = budget, .observation_window = 2, .pooling = kNoPooling, .protect_window = false},
        kOneHead);
    policy.begin(4);
    policy.observe_queries(
        0,
        {.data = queries.data(), .num_q_heads = 1, .num_rows = 2, .row_stride = 2, .scale = 1.0F},
        cache.view());
    policy.end_prefill(cache.view());
    expect_near(scores_of(policy, cache), {.2F, .2F, .4F, .2F});
    return kept_slots(policy.select(cache.view()));
  };
  EXPECT_EQ(run(1), (Slots{2}));
  EXPECT_EQ(run(4), range(0, 4));
}

// Case O-22: rows are used as given, and heads weigh as much as their rows do (rule R16).
TEST(SnapKV, RowsNeedNotSumToOne) {
  SnapKV policy({.budget = 4, .observation_window = 1, .pooling = kNoPooling}, kPair);
  WindowCache cache(kPair, 4);
  feed_rows(policy, cache, {{{.1F, .1F, .2F, 0}}, {{.5F, .2F, .3F, 0}}});
  expect_near(scores_of(policy, cache), {.3F, .15F, .25F, 0});
}

// Case O-30: query head q belongs to KV head q / group (rule R10).
TEST(SnapKV, QueryHeadsBelongToContiguousGroups) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 2};
  SnapKV policy({.budget = 2, .observation_window = 1, .pooling = kNoPooling}, shape);
  WindowCache cache(shape, 3);
  const std::vector<std::vector<float>> first{{1, 0, 0}};
  const std::vector<std::vector<float>> second{{0, 1, 0}};
  feed_rows(policy, cache, {first, first, second, second});
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(kept_slots(mask, 0, 0), (Slots{0, 2}));
  EXPECT_EQ(kept_slots(mask, 0, 1), (Slots{1, 2}));
}

// Rows (.4, .1 | .5) and (.04, .06 | .6, .3): their shares of the past are (.8, .2) and (.4, .6).
// As they are they sum to (.44, .16), over the past alone to (1.2, .8).
TEST(SnapKV, SoftmaxOverThePastLetsRowsWeighAlike) {
  const auto scores = [](SoftmaxSupport support,
                         const std::vector<std::vector<std::vector<float>>>& rows) {
    SnapKV policy(
        {.budget = 4, .observation_window = 2, .pooling = kNoPooling, .softmax_support = support},
        kOneHead);
    WindowCache cache(kOneHead, 4);
    feed_rows(policy, cache, rows);
    EXPECT_EQ(policy.counters().non_finite, 0U);
    return scores_of(policy, cache);
  };
  const std::vector<std::vector<std::vector<float>>> rows{
      {{.4F, .1F, .5F}, {.04F, .06F, .6F, .3F}}};
  expect_near(scores(SoftmaxSupport::kAll, rows), {.44F, .16F, 0, 0});
  expect_near(scores(SoftmaxSupport::kPast, rows), {1.2F, .8F, 0, 0});
  // A row that sees the window only has nothing to say on the past.
  expect_near(scores(SoftmaxSupport::kPast, {{{0, 0, 1}, {.04F, .06F, .6F, .3F}}}),
              {.4F, .6F, 0, 0});
}

// The same from queries, in chunks that split the window: a softmax over the past is the row of a
// cache that ends there.
TEST(SnapKV, SoftmaxOverThePastFromQueries) {
  constexpr std::size_t kLen = 40;
  constexpr std::size_t kWindow = 6;
  Random random(3);
  WindowCache cache(kModel, kLen);
  cache.fill(random);
  const WindowQueries queries(kModel, kWindow, random);
  SnapKV policy({.budget = kLen,
                 .observation_window = kWindow,
                 .pooling = kNoPooling,
                 .softmax_support = SoftmaxSupport::kPast},
                kModel);
  feed_prompt(policy, cache, kLen, queries, 4);

  for (std::size_t head = 0; head < kModel.num_kv_heads; ++head) {
    std::vector<float> expected(kLen);
    for (std::size_t h = 0; h < 3; ++h) {
      for (std::size_t r = 0; r < kWindow; ++r) {
        const QueryRows rows = queries.rows(1, r, 1);
        const float* query =
            rows.data + static_cast<std::ptrdiff_t>(head * 3 + h) * rows.head_stride;
        std::vector<double> weight(kLen - kWindow);
        double sum = 0;
        for (std::size_t slot = 0; slot < weight.size(); ++slot) {
          double dot = 0;
          for (std::size_t c = 0; c < 5; ++c) {
            dot += static_cast<double>(query[c]) * static_cast<double>(cache.key(1, head, slot)[c]);
          }
          sum += weight[slot] = std::exp(dot / std::sqrt(5.0));
        }
        for (std::size_t slot = 0; slot < weight.size(); ++slot) {
          expected[slot] += static_cast<float>(weight[slot] / sum / 3);
        }
      }
    }
    expect_near(scores_of(policy, cache, 2 + head), expected, 1e-5F);
  }
}

// With the window free its own tokens are scored, pooled and evicted like all others; a budget
// below the window is then fine.
TEST(SnapKV, FreeWindowCompetes) {
  SnapKV policy({.budget = 2,
                 .observation_window = 3,
                 .pooling = {.kind = PoolKind::kMax, .kernel_size = 3},
                 .protect_window = false},
                kOneHead);
  WindowCache cache(kOneHead, 5);
  feed_rows(policy, cache, {{{.5F, 0, .5F}, {.1F, 0, .1F, .8F}, {0, 0, 0, 0, 1}}});
  expect_near(scores_of(policy, cache), {.6F, .6F, .8F, 1, 1});
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{3, 4}));
}

// One piece or chunks, also such that split the window: the same bits (rule R18).
TEST(SnapKV, ChunksOfAPromptChangeNothing) {
  for (const bool pool_first : {false, true}) {
    for (const SoftmaxSupport support : {SoftmaxSupport::kAll, SoftmaxSupport::kPast}) {
      std::vector<std::vector<float>> scores;
      std::vector<KeepMask> masks;
      for (const std::size_t chunk : {50U, 49U, 13U, 7U, 1U}) {
        Random random(5);
        WindowCache cache(kModel, 50);
        cache.fill(random);
        const WindowQueries queries(kModel, 20, random);
        SnapKV policy({.budget = 25,
                       .observation_window = 20,
                       .pooling = {.kind = PoolKind::kMax, .kernel_size = 5},
                       .pool_first = pool_first,
                       .softmax_support = support},
                      kModel);
        feed_prompt(policy, cache, 50, queries, chunk);
        scores.push_back(scores_of(policy, cache, 3));
        masks.push_back(policy.select(cache.view()));
      }
      for (std::size_t i = 1; i < scores.size(); ++i) {
        EXPECT_EQ(scores[i], scores[0]);
        EXPECT_EQ(masks[i], masks[0]);
      }
      EXPECT_EQ(masks[0].total_count(), 4U * 25U);
    }
  }
}

// The window of a second prompt looks at all that is cached by then, decoded tokens too, and
// nothing of the first window is left (cases O-21, O-25).
TEST(SnapKV, SecondPromptIsAFreshWindow) {
  SnapKV policy({.budget = 4, .observation_window = 2, .pooling = kNoPooling}, kOneHead);
  WindowCache cache(kOneHead, 16);
  feed_rows(policy, cache, {{{.1F, .5F, .2F, 0, .2F}, {.1F, .2F, .6F, 0, 0, .1F}}});
  // Sums .2, .7, .8, 0 before the window of slots 4 and 5.
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{1, 2, 4, 5}));
  cut(policy, cache);

  cache.append(2);  // decoded: positions 6 and 7
  policy.append(1);
  policy.append(1);
  EXPECT_FALSE(policy.should_evict());
  EXPECT_FALSE(policy.wants_attention(0));

  cache.append(3);  // a second prompt of positions 8, 9, 10
  policy.begin(3);
  ASSERT_EQ(policy.wanted_attention_rows(0), 2U);
  policy.observe_attention(
      0, GivenRows({{{0, .1F, 0, 0, .3F, .2F, .3F, .1F}, {.1F, .1F, 0, 0, .3F, 0, .4F, 0, .1F}}})
             .rows());
  policy.end_prefill(cache.view());
  ASSERT_TRUE(policy.should_evict());
  // Positions 1, 2, 4, 5, 6, 7, 8 | 9, 10: sums .1, .2, 0, 0, .6, .2, .7.
  expect_near(scores_of(policy, cache), {.1F, .2F, 0, 0, .6F, .2F, .7F, 0, 0});
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{4, 6, 7, 8}));
  cut(policy, cache);
  EXPECT_EQ(policy.sequence().position(0, 0), 6);
  EXPECT_EQ(policy.counters().firings, 2U);
}

// A second prompt that is shorter than the window votes with the rows that it has; the window that
// stays still has its full length.
TEST(SnapKV, ShortSecondPrompt) {
  SnapKV policy({.budget = 4, .observation_window = 3, .pooling = kNoPooling}, kOneHead);
  WindowCache cache(kOneHead, 8);
  feed_rows(policy, cache, {{{1, 0}, {0, 1, 0}, {0, 0, 1, 0}}});
  EXPECT_FALSE(policy.should_evict());
  cache.append(1);
  policy.begin(1);
  ASSERT_EQ(policy.wanted_attention_rows(0), 1U);
  policy.observe_attention(0, GivenRows({{{.1F, .3F, .2F, .2F, .2F}}}).rows());
  policy.end_prefill(cache.view());
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{1, 2, 3, 4}));
}

TEST(SnapKV, DecodedTokensStay) {
  Random random(7);
  WindowCache cache(kModel, 40);
  cache.fill(random);
  const WindowQueries queries(kModel, 4, random);
  SnapKV policy({.budget = 8, .observation_window = 4}, kModel);
  feed_prompt(policy, cache, 20, queries, 20);
  cut(policy, cache);
  EXPECT_EQ(policy.counters().kept, 4U * 8U);
  for (std::size_t step = 0; step < 12; ++step) {
    cache.append(1);
    policy.append(1);
    EXPECT_FALSE(policy.wants_attention(0));
    EXPECT_FALSE(policy.should_evict());
  }
  EXPECT_EQ(policy.select(cache.view()).total_evicted(), 0U);
}

// Tokens that were decoded before the engine found the time to cut are on top of the budget.
TEST(SnapKV, LateCutSparesWhatWasDecoded) {
  SnapKV policy({.budget = 2, .observation_window = 1, .pooling = kNoPooling}, kOneHead);
  WindowCache cache(kOneHead, 8);
  feed_rows(policy, cache, {{{.1F, .2F, .6F, .1F}}});
  cache.append(2);
  policy.append(2);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{2, 3, 4, 5}));
}

TEST(SnapKV, ForkAndRollback) {
  Random random(11);
  WindowCache cache(kModel, 40);
  cache.fill(random);
  const WindowQueries queries(kModel, 4, random);
  SnapKV policy({.budget = 8, .observation_window = 4}, kModel);
  feed_prompt(policy, cache, 30, queries, 30);
  const KeepMask before = policy.select(cache.view());

  SnapKV fork = policy;
  cache.append(3);
  fork.append(3);
  fork.truncate(30);  // drafts that were not accepted
  WindowCache shorter(kModel, 40);
  Random again(11);
  shorter.fill(again);
  shorter.append(30);
  EXPECT_EQ(fork.select(shorter.view()), before);
  EXPECT_EQ(policy.length(), 30U);

  // The next request on the same object: the same prompt gives the same mask.
  fork.reset();
  WindowCache fresh(kModel, 40);
  Random third(11);
  fresh.fill(third);
  feed_prompt(fork, fresh, 30, queries, 8);
  EXPECT_EQ(fork.select(fresh.view()), before);
}

// Rule R19: an entry that is not finite is no vote; the rest of its row is, and it is counted.
TEST(SnapKV, NonFiniteEntryIsNoVote) {
  for (const SoftmaxSupport support : {SoftmaxSupport::kAll, SoftmaxSupport::kPast}) {
    SnapKV policy(
        {.budget = 3, .observation_window = 2, .pooling = kNoPooling, .softmax_support = support},
        kOneHead);
    WindowCache cache(kOneHead, 5);
    feed_rows(policy, cache, {{{.2F, kNaN, .2F, .6F}, {.3F, .1F, .1F, 0, .5F}}});
    EXPECT_EQ(policy.counters().non_finite, 1U);
    // As they are: .5, .1, .3. Over the past: halves of the finite, and .6, .2, .2.
    expect_near(scores_of(policy, cache), support == SoftmaxSupport::kAll
                                              ? std::vector<float>{.5F, .1F, .3F, 0, 0}
                                              : std::vector<float>{1.1F, .2F, .7F, 0, 0});
    EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 3, 4}));
  }
}

// Rule R9: a prompt that is padded on the left is cut like the same prompt without padding, under
// every pooling; what lies in the padding is never looked at.
TEST(SnapKV, LeftPaddingChangesNothing) {
  constexpr std::size_t kLen = 30;
  constexpr std::size_t kPadding = 5;
  for (const Pooling& pooling :
       {Pooling{}, Pooling{.edge = kernels::PoolEdge::kShrink}, Pooling{.kind = PoolKind::kMax}}) {
    Random random(13);
    WindowCache plain(kModel, kLen);
    plain.fill(random);
    const WindowQueries queries(kModel, 4, random);
    WindowCache padded(kModel, kPadding + kLen);
    padded.valid().assign(kPadding + kLen, 1);
    std::fill_n(padded.valid().begin(), kPadding, std::uint8_t{0});
    for (std::size_t lane = 0; lane < 4; ++lane) {
      std::fill_n(padded.key(lane / 2, lane % 2, 0), kPadding * 5, kNaN);
      std::copy_n(plain.key(lane / 2, lane % 2, 0), kLen * 5,
                  padded.key(lane / 2, lane % 2, kPadding));
    }
    const SnapKVOptions options{.budget = 12, .observation_window = 4, .pooling = pooling};
    SnapKV a(options, kModel);
    SnapKV b(options, kModel);
    feed_prompt(a, plain, kLen, queries, kLen);
    feed_prompt(b, padded, kPadding + kLen, queries, kPadding + kLen);
    const KeepMask& expected = a.select(plain.view());
    const KeepMask& actual = b.select(padded.view());
    for (std::size_t lane = 0; lane < 4; ++lane) {
      EXPECT_EQ(text_of(actual, lane / 2, lane % 2),
                std::string(kPadding, '0') + text_of(expected, lane / 2, lane % 2));
    }
  }
}

// policies.md 12: a smaller budget keeps a subset, and exactly as many as it may.
TEST(SnapKV, SmallerBudgetKeepsASubset) {
  Random random(17);
  WindowCache cache(kModel, 64);
  cache.fill(random);
  const WindowQueries queries(kModel, 4, random);
  KeepMask larger;
  for (std::size_t budget = 66; budget >= 4; --budget) {
    WindowCache here = cache;
    SnapKV policy({.budget = budget, .observation_window = 4}, kModel);
    feed_prompt(policy, here, 64, queries, 64);
    const KeepMask& mask = policy.select(here.view());
    EXPECT_EQ(mask.total_count(), 4U * std::min<std::size_t>(budget, 64));
    for (std::size_t lane = 0; larger.num_lanes() > 0 && lane < 4; ++lane) {
      const Slots few = kept_slots(mask, lane / 2, lane % 2);
      const Slots many = kept_slots(larger, lane / 2, lane % 2);
      EXPECT_TRUE(std::includes(many.begin(), many.end(), few.begin(), few.end()));
    }
    larger = mask;
  }
}

// A head size that no vector register divides, and a single KV head.
TEST(SnapKV, OddHeadSizes) {
  for (const std::size_t head_dim : {std::size_t{1}, std::size_t{80}, std::size_t{129}}) {
    const CacheShape shape{
        .num_layers = 1, .num_q_heads = 3, .num_kv_heads = 1, .head_dim = head_dim};
    Random random(head_dim);
    WindowCache cache(shape, 33);
    cache.fill(random);
    const WindowQueries queries(shape, 2, random);
    // The key of slot 7 is what every query looks for.
    for (std::size_t c = 0; c < head_dim; ++c) {
      float sum = 0;
      for (std::size_t h = 0; h < 3; ++h) {
        for (std::size_t r = 0; r < 2; ++r) {
          const QueryRows rows = queries.rows(0, r, 1);
          sum += rows.data[static_cast<std::ptrdiff_t>(h) * rows.head_stride +
                           static_cast<std::ptrdiff_t>(c)];
        }
      }
      cache.key(0, 0, 7)[c] = 20.0F * sum;
    }
    SnapKV policy({.budget = 3, .observation_window = 2, .pooling = kNoPooling}, shape);
    feed_prompt(policy, cache, 33, queries, 33);
    EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{7, 31, 32})) << head_dim;
  }
}

TEST(SnapKV, RefusesOptionsThatCannotWork) {
  const auto make = [](const SnapKVOptions& options) {
    return [options] { SnapKV policy(options, kModel); };
  };
  EXPECT_TRUE(refuses(make({.observation_window = 0}), {"SnapKV", "observation_window = 0"}));
  EXPECT_TRUE(
      refuses(make({.pooling = {.kernel_size = 4}}), {"SnapKV", "pooling.kernel_size = 4", "odd"}));
  EXPECT_TRUE(refuses(make({.pooling = {.kernel_size = 0}}), {"pooling.kernel_size = 0"}));
  EXPECT_TRUE(refuses(make({.budget = Budget::total(127), .observation_window = 32}),
                      {"SnapKV", "budget = 127"}));
  EXPECT_TRUE(refuses(make({.softmax_support = SoftmaxSupport::kPast, .protect_window = false}),
                      {"SnapKV", "protect_window"}));
}

TEST(SnapKV, OptionsCanBeWrittenAsText) {
  SnapKVOptions options;
  detail::read_options<SnapKVRecipe>(
      "budget=10%,observation_window=8,pooling=max,pool_kernel_size=7,pool_edge=shrink,"
      "group_reduce=max,pool_first=true,softmax_support=past,protect_window=false",
      options);
  EXPECT_EQ(options.budget.tokens_of(1000), 100U);
  EXPECT_EQ(options.observation_window, 8U);
  EXPECT_EQ(options.pooling.kind, PoolKind::kMax);
  EXPECT_EQ(options.pooling.kernel_size, 7U);
  EXPECT_EQ(options.pooling.edge, kernels::PoolEdge::kShrink);
  EXPECT_EQ(options.group_reduce, GroupReduce::kMax);
  EXPECT_TRUE(options.pool_first);
  EXPECT_EQ(options.softmax_support, SoftmaxSupport::kPast);
  EXPECT_FALSE(options.protect_window);
}

}  // namespace
