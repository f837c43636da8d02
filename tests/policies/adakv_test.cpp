#include "kvevict/policies/adakv.hpp"

#include "kvevict/policies/aggregated.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/tova.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::AdaKV;
using kvevict::AdaKVOptions;
using kvevict::FloorRule;
using kvevict::SnapKV;
using Counts = std::pair<std::size_t, std::size_t>;

constexpr kvevict::CacheShape kTwoHeads{
    .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};
constexpr kvevict::CacheShape kModel{
    .num_layers = 3, .num_q_heads = 6, .num_kv_heads = 3, .head_dim = 4};

/// One window row over five slots before it; budget 3 is b = 2.
AdaKVOptions options(double floor, FloorRule rule = FloorRule::kInterpolate) {
  return {.budget = 3,
          .observation_window = 1,
          .floor_rule = rule,
          .floor = floor,
          .pooling = {.kernel_size = 1}};
}
/// What the two heads keep beside the window.
Counts counts(const AdaKVOptions& options,
              std::vector<float> first = {.24F, .21F, .20F, .18F, .17F, 0},
              std::vector<float> second = {.9F, .05F, .03F, .01F, .01F, 0}) {
  AdaKV policy(options, kTwoHeads);
  WindowCache cache(kTwoHeads, 8);
  feed_rows(policy, cache, {{std::move(first)}, {std::move(second)}});
  const kvevict::KeepMask& mask = policy.select(cache.view());
  EXPECT_TRUE(mask.keeps(0, 0, 5) && mask.keeps(0, 1, 5));
  return {mask.count(0, 0) - 1, mask.count(0, 1) - 1};
}

// The four best are .9, .24, .21, .20, so c = (3, 1). Floor .2: 2.8 and 1.2, the missing one of 4
// to the larger fraction. Floor .5: 2.5 and 1.5, a tie, to the lower head. The authors: int(2 * .2)
// = 0, 2.4 and .8 are rounded to 2 and 1; int(2 * .5) = 1, 2.5 and 1.5 to 2 and 2.
TEST(AdaKV, FloorLiesBetweenWhatAHeadWinsAndAnEqualShare) {
  EXPECT_EQ(counts(options(0)), Counts(3, 1));
  EXPECT_EQ(counts(options(0.2)), Counts(3, 1));
  EXPECT_EQ(counts(options(0.5)), Counts(3, 1));
  EXPECT_EQ(counts(options(1)), Counts(2, 2));
  AdaKVOptions official = options(0.2);
  official.official_rounding = true;
  EXPECT_EQ(counts(official), Counts(2, 1));
  official.floor = 0.5;
  EXPECT_EQ(counts(official), Counts(2, 2));
}

// b floor = .4: one of each head is safe and two more are won by the first. With the window in it,
// 3 * .7 = 2.1: of two safe entries the window is one.
TEST(AdaKV, GuaranteedFloorsComeFirst) {
  EXPECT_EQ(counts(options(0.2, FloorRule::kGuarantee)), Counts(3, 1));
  EXPECT_EQ(counts(options(1, FloorRule::kGuarantee)), Counts(2, 2));
  const std::vector<float> flat = {.01F, .01F, .01F, .01F, .01F, 0};
  const std::vector<float> steep = {.5F, .2F, .1F, .1F, .1F, 0};
  EXPECT_EQ(counts(options(0, FloorRule::kGuarantee), flat, steep), Counts(0, 4));
  EXPECT_EQ(counts(options(0.2, FloorRule::kGuarantee), flat, steep), Counts(1, 3));
  AdaKVOptions whole = options(0.7, FloorRule::kGuarantee);
  whole.floor_of_whole = true;
  EXPECT_EQ(counts(whole, flat, steep), Counts(1, 3));
  whole.floor = 0.3;  // 0.9 of an entry is one, and that is the window
  EXPECT_EQ(counts(whole, flat, steep), Counts(0, 4));
}

// R4: NaN goes first and is counted; ties between heads stay with the lower one.
TEST(AdaKV, NaNAndTies) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(
      counts(options(0), {nan, nan, nan, nan, nan, 0}, {.1F, .1F, .1F, .1F, .1F, 0}).first +
          counts(options(0), {nan, nan, nan, nan, nan, 0}, {.1F, .1F, .1F, .1F, .1F, 0}).second,
      4U);
  EXPECT_EQ(counts(options(0), {.1F, .1F, .1F, .1F, .1F, 0}, {.1F, .1F, .1F, .1F, .1F, 0}),
            Counts(4, 0));
}

template <class P>
struct Prompt {
  P policy;
  WindowCache cache;

  Prompt(const typename P::Options& options, std::size_t len, std::size_t chunk = 7)
      : policy(options, kModel), cache(kModel, 64) {
    Random random(5);
    cache.fill(random);
    feed_prompt(policy, cache, len, WindowQueries(kModel, 4, random), chunk);
  }
  kvevict::KeepMask mask() { return policy.select(cache.view()); }
};

TEST(AdaKV, WithAFloorOfOneIsSnapKV) {
  const kvevict::Pooling pooling{.kind = kvevict::PoolKind::kMax, .kernel_size = 7};
  Prompt<SnapKV> snapkv({.budget = 12, .observation_window = 4, .pooling = pooling}, 40);
  for (const FloorRule rule : {FloorRule::kInterpolate, FloorRule::kGuarantee}) {
    Prompt<AdaKV> ada({.budget = 12, .observation_window = 4, .floor_rule = rule, .floor = 1}, 40);
    EXPECT_EQ(ada.mask(), snapkv.mask());
  }
}

TEST(AdaKV, LayersKeepTheirBudgets) {
  for (const std::size_t len : {0U, 1U, 4U, 12U, 13U, 14U, 40U}) {
    Prompt<AdaKV> ada({.budget = 12, .observation_window = 4}, len);
    const kvevict::KeepMask mask = ada.mask();
    EXPECT_EQ(ada.policy.should_evict(), len > 12) << len;
    for (std::size_t layer = 0; layer < 3; ++layer) {
      std::size_t kept = 0;
      for (std::size_t head = 0; head < 3; ++head)
        kept += mask.count(layer, head);
      EXPECT_EQ(kept, 3 * std::min<std::size_t>(12, len)) << len;
    }
  }
  // b = 8, beta 4: 14, 8, 2 per head beside the window.
  Prompt<AdaKV> pyramid({.budget = 12, .observation_window = 4, .pyramid_beta = 4}, 40);
  const kvevict::KeepMask mask = pyramid.mask();
  for (std::size_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(mask.count(layer, 0) + mask.count(layer, 1) + mask.count(layer, 2),
              3 * (18 - 6 * layer));
  }
}

// Over any other scores: nothing protected, floor 0, so that the layer's best keys stay; R15 keeps
// one entry of a head that wins nothing.
TEST(AdaKVOver, SharesTheBudgetOfOtherScores) {
  kvevict::AdaKVKnorm::Options options;
  options.budget = 2;
  options.floor = 0;
  EXPECT_EQ(kvevict::AdaKVKnorm::kName, "AdaKVKnorm");
  for (const FloorRule rule : {FloorRule::kInterpolate, FloorRule::kGuarantee}) {
    options.floor_rule = rule;
    kvevict::AdaKVKnorm policy(options, kTwoHeads);
    WindowCache cache(kTwoHeads, 8);
    policy.begin(4);
    cache.append(4);
    for (std::size_t slot = 0; slot < 4; ++slot) {
      cache.key(0, 0, slot)[0] = 1.0F + static_cast<float>(slot);
      cache.key(0, 1, slot)[0] = 9.0F - static_cast<float>(slot);
    }
    policy.end_prefill(cache.view());
    const kvevict::KeepMask& mask = policy.select(cache.view());
    EXPECT_EQ(mask.count(0, 0), 3U);
    EXPECT_EQ(mask.count(0, 1), 1U);
    EXPECT_TRUE(mask.keeps(0, 1, 3));
  }
}

// The same where the recipe below has an allocator of its own: head 0 has the better keys.
TEST(AdaKVOver, SharesTheBudgetOfARecipeWithAnAllocator) {
  using Method =
      kvevict::Composed<kvevict::AdaKVOver<kvevict::AggregatedOver<kvevict::KnormRecipe>>>;
  Method::Options options;
  options.budget = 2;
  options.floor = 0;
  kvevict::Policy<Method> policy(options, kTwoHeads);
  WindowCache cache(kTwoHeads, 8);
  policy.begin(4);
  cache.append(4);
  for (std::size_t slot = 0; slot < 4; ++slot) {
    cache.key(0, 0, slot)[0] = 1.0F + static_cast<float>(slot);
    cache.key(0, 1, slot)[0] = 9.0F - static_cast<float>(slot);
  }
  policy.append(4);
  policy.observe_cache(cache.view());
  policy.end_prefill(cache.view());
  EXPECT_EQ(policy.select(cache.view()).count(0, 0), 3U);
}

TEST(AdaKV, RefusesWhatCannotBe) {
  EXPECT_TRUE(refuses([] { AdaKV({.floor = 1.5}, kModel); }, {"AdaKV", "floor = 1.5"}));
  EXPECT_TRUE(refuses([] { AdaKV({.budget = 3, .observation_window = 4}, kModel); },
                      {"AdaKV", "budget = 3", "window"}));
  EXPECT_TRUE(refuses([] { AdaKV({.pyramid_beta = 0}, kModel); }, {"AdaKV", "pyramid_beta = 0"}));
  EXPECT_TRUE(refuses(
      [] {
        kvevict::AdaKVKnorm::Options options;
        options.floor = -1;
        kvevict::AdaKVKnorm(options, kModel);
      },
      {"AdaKVKnorm", "floor = -1"}));
}

// TOVA keeps one set per layer, inside which nothing competes; per head it has what AdaKV shares.
TEST(AdaKVOver, NeedsOneSetPerHead) {
  using AdaKVTOVA = kvevict::Policy<kvevict::Composed<kvevict::AdaKVOver<kvevict::TOVARecipe>>>;
  AdaKVTOVA::Options options;
  EXPECT_TRUE(refuses([&] { AdaKVTOVA(options, kModel); }, {"AdaKVTOVA", "scope", "per KV head"}));
  options.scope = kvevict::MaskScope::kHead;
  AdaKVTOVA(options, kModel);
}

// Brought to one set for both heads, a policy that chooses by itself still tells 1.004 from 1: each
// head keeps two of its own, all of which have one vote, and of these slots 1 and 3 have the higher
// scores, -1.
TEST(AdaKVOver, AProjectionGoesByScoresBetweenEqualVotes) {
  constexpr kvevict::CacheShape kTwo{
      .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};
  kvevict::AdaKVKnorm::Options options;
  options.budget = 2;
  kvevict::AdaKVKnorm policy(options, kTwo);
  kvevict_test::WindowCache cache(kTwo, 4);
  cache.append(4);
  const float keys[2][4] = {{1.004F, 1, 5, 5}, {5, 5, 1.004F, 1}};
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t slot = 0; slot < 4; ++slot)
      *cache.key(0, head, slot) = keys[head][slot];
  }
  policy.append(4);
  kvevict::Projection projection({.scope = kvevict::MaskScope::kLayer}, kTwo);
  const kvevict::KeepMask& mask = policy.select(cache.view(), projection);
  EXPECT_TRUE(mask.keeps(0, 0, 1));
  EXPECT_TRUE(mask.keeps(0, 0, 3));
  EXPECT_EQ(mask.count(0, 0), 2U);
}

}  // namespace
}  // namespace kvevict_test
