#include "kvevict/policies/offline_budgets.hpp"

#include "kvevict/option_text.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Budget;
using kvevict::EvolKV;
using kvevict::EvolKVOptions;
using kvevict::HeadKV;
using kvevict::HeadKVOptions;
using kvevict::LUKVKnorm;
using kvevict::PerLayerKnorm;
using kvevict::SnapKV;
using Sizes = std::vector<std::size_t>;

constexpr kvevict::CacheShape kModel{
    .num_layers = 3, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};
constexpr kvevict::CacheShape kFourHeads{
    .num_layers = 1, .num_q_heads = 4, .num_kv_heads = 4, .head_dim = 4};

/// A prompt of `len` random tokens, with the queries of its last four where the policy wants them.
template <class P>
struct Prompt {
  P policy;
  WindowCache cache;

  Prompt(const typename P::Options& options, std::size_t len,
         const kvevict::CacheShape& shape = kModel)
      : policy(options, shape), cache(shape, 64) {
    Random random(7);
    cache.fill(random);
    if constexpr (P::kAttentionUse != kvevict::AttentionUse::kNone) {
      feed_prompt(policy, cache, len, WindowQueries(shape, 4, random), 7);
    } else {
      cache.append(len);
      policy.begin(len);
      policy.end_prefill(cache.view());
    }
  }
  kvevict::KeepMask mask() { return policy.select(cache.view()); }
  Sizes counts() {
    const kvevict::KeepMask kept = mask();
    Sizes result;
    for (std::size_t lane = 0; lane < kept.num_lanes(); ++lane)
      result.push_back(kept.lane_count(lane));
    return result;
  }
};

EvolKVOptions evol(std::size_t budget, Sizes table) {
  return {.budget = budget, .layer_budgets = std::move(table), .observation_window = 4};
}

// The mean of the table is the budget: the table itself. Twice the budget: 10, 20, 30 less the
// window of 4 is 6, 16, 26 of 48, which is all of it. Half of it: 5, 10, 15.
TEST(EvolKV, CompletesTheTableInProportion) {
  EXPECT_EQ(Prompt<EvolKV>(evol(20, {10, 20, 30}), 60).counts(), (Sizes{10, 10, 20, 20, 30, 30}));
  EXPECT_EQ(Prompt<EvolKV>(evol(10, {10, 20, 30}), 60).counts(), (Sizes{5, 5, 10, 10, 15, 15}));
  // 2, 10, 18 beside nothing: -2, 6, 14 beside the window, of which 18 are there: 0, 5.4, 12.6.
  EXPECT_EQ(Prompt<EvolKV>(evol(10, {2, 10, 18}), 60).counts(), (Sizes{4, 4, 9, 9, 17, 17}));
  // A prompt of 20 cannot take 30: of 33 beside the windows it has 16, and the other 17 go 1 : 6.
  EXPECT_EQ(Prompt<EvolKV>(evol(15, {5, 10, 30}), 20).counts(), (Sizes{6, 6, 19, 19, 20, 20}));
}

TEST(EvolKV, WithoutATableIsSnapKV) {
  Prompt<SnapKV> snapkv({.budget = 12, .observation_window = 4}, 40);
  EXPECT_EQ(Prompt<EvolKV>(evol(12, {}), 40).mask(), snapkv.mask());
  EXPECT_EQ(Prompt<EvolKV>(evol(12, {3, 3, 3}), 40).mask(), snapkv.mask());
  for (const std::size_t len : {0U, 1U, 12U})
    EXPECT_EQ(Prompt<EvolKV>(evol(12, {1, 5, 9}), len).mask().total_evicted(), 0U);
  EXPECT_EQ(Prompt<EvolKV>(evol(12, {1, 5, 9}), 13).mask().total_evicted(), 6U);
}

TEST(EvolKV, RefusesWhatCannotBe) {
  EXPECT_TRUE(refuses(
      [] {
        EvolKV(evol(12, {1, 2}), kModel);
      },
      {"EvolKV", "layer_budgets.size() = 2 must be 0 (no table) or 3 (num_layers)"}));
  EXPECT_TRUE(refuses([] { EvolKV(evol(12, {0, 0, 0}), kModel); }, {"EvolKV", "layer_budgets"}));
  EXPECT_TRUE(refuses([] { EvolKV(evol(3, {}), kModel); }, {"EvolKV", "budget = 3", "window"}));
}

HeadKVOptions head(std::vector<double> scores, double beta) {
  return {.budget = 12, .head_scores = std::move(scores), .beta = beta, .observation_window = 4};
}

// b = 8, beta 2: share 4, pool 16, 4 for everybody: 12, 8.8, 5.6, 5.6. By largest remainder 12, 9,
// 6, 5; each rounded by itself 12, 9, 6, 6, 33 in all.
TEST(HeadKV, SharesAPoolByScore) {
  Prompt<HeadKV> exact(head({.5, .3, .1, .1}, 2), 60, kFourHeads);
  EXPECT_EQ(exact.counts(), (Sizes{16, 13, 10, 9}));
  HeadKVOptions official = head({.5, .3, .1, .1}, 2);
  official.official_rounding = true;
  EXPECT_EQ(Prompt<HeadKV>(official, 60, kFourHeads).counts(), (Sizes{16, 13, 10, 10}));
  // Scores need not add up to 1. Squares of 1, 1, 1, 3: a pool of 16 goes 1 : 1 : 1 : 9.
  EXPECT_EQ(Prompt<HeadKV>(head({5, 3, 1, 1}, 2), 60, kFourHeads).counts(), (Sizes{16, 13, 10, 9}));
  HeadKVOptions squares = head({1, 1, 1, 3}, 2);
  squares.power = 2;
  EXPECT_EQ(Prompt<HeadKV>(squares, 60, kFourHeads).counts(), (Sizes{10, 9, 9, 20}));
  // A prompt of 14 cannot take 16: what is left of 48 is shared by the others in proportion.
  EXPECT_EQ(Prompt<HeadKV>(head({.5, .3, .1, .1}, 2), 14, kFourHeads).counts(),
            (Sizes{14, 14, 10, 10}));
}

TEST(HeadKV, QueryHeadsAreMeansOfTheirGroups) {
  const Sizes by_group = Prompt<HeadKV>(head({1, 2, 3, 4, 5, 6}, 1.5), 40).counts();
  const Sizes by_query =
      Prompt<HeadKV>(head({0, 2, 2, 2, 3, 3, 8, 0, 6, 4, 1, 11}, 1.5), 40).counts();
  EXPECT_EQ(by_group, by_query);
}

TEST(HeadKV, WithEqualScoresIsSnapKV) {
  const kvevict::Pooling pooling{.kind = kvevict::PoolKind::kMax, .kernel_size = 7};
  Prompt<SnapKV> snapkv({.budget = 12, .observation_window = 4, .pooling = pooling}, 40);
  EXPECT_EQ(Prompt<HeadKV>(head({}, 1.5), 40).mask(), snapkv.mask());
  EXPECT_EQ(Prompt<HeadKV>(head(std::vector<double>(6, .25), 1.5), 40).mask(), snapkv.mask());
}

TEST(HeadKV, RefusesWhatCannotBe) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(refuses(
      [] {
        HeadKV(head({1, 2}, 2), kModel);
      },
      {"HeadKV", "head_scores.size() = 2"}));
  EXPECT_TRUE(refuses(
      [&] {
        HeadKV(head({1, 2, 3, nan}, 2), kFourHeads);
      },
      {"HeadKV", "head_scores = nan"}));
  EXPECT_TRUE(refuses(
      [] {
        HeadKV(head({1, 2, 3, -4}, 2), kFourHeads);
      },
      {"HeadKV", "head_scores = -4"}));
  EXPECT_TRUE(refuses(
      [] {
        HeadKV(head({0, 0, 0, 0}, 2), kFourHeads);
      },
      {"HeadKV", "head_scores", "> 0"}));
  EXPECT_TRUE(refuses([] { HeadKV(head({}, 0.9), kModel); }, {"HeadKV", "beta = 0.9"}));
}

TEST(HeadKV, ReadsItsTableFromText) {
  HeadKVOptions options;
  kvevict::detail::read_options<kvevict::Composed<kvevict::HeadKVRecipe>>(
      "head_scores=0.5:0.25:1,beta=2", options);
  EXPECT_EQ(options.head_scores, (std::vector<double>{0.5, 0.25, 1}));
}

PerLayerKnorm::Options per_layer(std::vector<double> ratios, bool only_at_prefill_end = true) {
  PerLayerKnorm::Options options;
  options.compression_ratios = std::move(ratios);
  options.only_at_prefill_end = only_at_prefill_end;
  return options;
}

// R6: 10 (1 - .9) is 1, not 0; only a ratio of 1 keeps nothing.
TEST(PerLayer, EveryLayerHasItsRatio) {
  EXPECT_EQ(PerLayerKnorm::kName, "PerLayerKnorm");
  EXPECT_EQ(Prompt<PerLayerKnorm>(per_layer({0, .5, .9}), 10).counts(),
            (Sizes{10, 10, 5, 5, 1, 1}));
  EXPECT_EQ(Prompt<PerLayerKnorm>(per_layer({.99, 1, .25}), 3).counts(), (Sizes{1, 1, 0, 0, 2, 2}));
  EXPECT_EQ(Prompt<PerLayerKnorm>(per_layer({}), 10).mask().total_evicted(), 0U);
  EXPECT_EQ(Prompt<PerLayerKnorm>(per_layer({.5, .5, .5}), 0).mask().total_count(), 0U);
}

// Of everything so far, evicted tokens included: 8 of 16, then 9 of 18; between the chunks of a
// prompt nothing goes.
TEST(PerLayer, KeepsItsShareWhileDecoding) {
  PerLayerKnorm policy(per_layer({.5, .5, .5}, false), kModel);
  WindowCache cache(kModel, 64);
  Random random(7);
  cache.fill(random);
  policy.begin(16);
  for (int chunk = 0; chunk < 2; ++chunk) {
    policy.append(8);
    cache.append(8);
    EXPECT_EQ(policy.should_evict(), chunk == 1);
  }
  policy.end_prefill(cache.view());
  cut(policy, cache);
  EXPECT_EQ(cache.seq_len(), 8U);
  policy.append(2);
  cache.append(2);
  cut(policy, cache);
  EXPECT_EQ(cache.seq_len(), 9U);
}

TEST(PerLayer, RefusesWhatCannotBe) {
  EXPECT_TRUE(refuses([] { PerLayerKnorm(per_layer({.5}), kModel); },
                      {"PerLayerKnorm", "compression_ratios.size() = 1"}));
  EXPECT_TRUE(refuses(
      [] {
        PerLayerKnorm(per_layer({.5, 2, 0}), kModel);
      },
      {"PerLayerKnorm", "compression_ratios = 2"}));
}

LUKVKnorm::Options lukv(std::vector<double> ratios, bool official = false) {
  LUKVKnorm::Options options;
  options.only_at_prefill_end = true;
  options.prune_ratios = std::move(ratios);
  options.official_rounding = official;
  return options;
}

// 20 tokens keep 12.4, 7.4, 10, 0.2: 30 in all, one of which is left over and goes to the first.
// The last head keeps one in any case; the largest pays for it, or nobody.
TEST(LUKV, CountsAddUp) {
  const std::vector<double> prune = {.38, .63, .5, .99};
  EXPECT_EQ(Prompt<LUKVKnorm>(lukv(prune), 20, kFourHeads).counts(), (Sizes{12, 7, 10, 1}));
  EXPECT_EQ(Prompt<LUKVKnorm>(lukv(prune, true), 20, kFourHeads).counts(), (Sizes{13, 7, 10, 1}));
}

// One ratio for all heads: the same number everywhere; the first four tokens and the newest stay.
TEST(LUKV, OfAFlatTableIsUniform) {
  Prompt<LUKVKnorm> prompt(lukv(std::vector<double>(4, .5)), 20, kFourHeads);
  const kvevict::KeepMask mask = prompt.mask();
  for (std::size_t head = 0; head < 4; ++head) {
    EXPECT_EQ(mask.count(0, head), 10U);
    for (const std::size_t slot : {0U, 1U, 2U, 3U, 19U})
      EXPECT_TRUE(mask.keeps(0, head, slot));
  }
  EXPECT_EQ(Prompt<LUKVKnorm>(lukv({}), 20, kFourHeads).mask().total_evicted(), 0U);
  EXPECT_EQ(Prompt<LUKVKnorm>(lukv({.5, .5, .5, .5}), 1, kFourHeads).mask().total_count(), 4U);
}

TEST(LUKV, RefusesWhatCannotBe) {
  EXPECT_TRUE(refuses(
      [] {
        LUKVKnorm(lukv({.5, .5, .5}), kModel);
      },
      {"LUKVKnorm", "prune_ratios.size() = 3"}));
  EXPECT_TRUE(refuses(
      [] {
        LUKVKnorm(lukv({.5, .5, .5, -1}), kFourHeads);
      },
      {"LUKVKnorm", "prune_ratios = -1"}));
}

// Their tables have a number for every KV head; MeanCentredNorm keeps one set per layer.
TEST(PerLayer, TablesNeedOneSetPerHead) {
  using Base = kvevict::MeanCentredNormRecipe;
  using PerLayer = kvevict::Policy<kvevict::Composed<kvevict::PerLayerRecipe<Base>>>;
  using LUKV = kvevict::Policy<kvevict::Composed<kvevict::LUKVRecipe<Base>>>;
  EXPECT_TRUE(refuses([] { PerLayer({}, kModel); }, {"PerLayerMeanCentredNorm", "scope"}));
  EXPECT_TRUE(refuses([] { LUKV({}, kModel); }, {"LUKVMeanCentredNorm", "scope"}));
}

}  // namespace
}  // namespace kvevict_test
