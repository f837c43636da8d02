#include "kvevict/policies/cake.hpp"

#include "kvevict/policies/snapkv.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CAKE;
using kvevict::CAKEOptions;
using kvevict::SnapKV;

constexpr kvevict::CacheShape kOneHead{
    .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr kvevict::CacheShape kModel{
    .num_layers = 5, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};

// Slot 0: .5 and .25, mean .375, variance (.125^2 + .125^2) / 1 = .03125; slot 1: .25 twice. All
// four entries before the window have -a ln a = .25 ln 4 = .5 ln 2, together 2 ln 2.
TEST(CAKE, ScoresByMeanAndVariance) {
  CAKE policy({.budget = 3, .observation_window = 2, .gamma = 4, .pooling = {.kernel_size = 1}},
              kOneHead);
  WindowCache cache(kOneHead, 8);
  feed_rows(policy, cache, {{{.5F, .25F, .25F}, {.25F, .25F, .25F, .25F}}});
  const std::vector<float> scores = scores_of(policy, cache);
  EXPECT_FLOAT_EQ(scores[0], .375F + 4 * .03125F);
  EXPECT_FLOAT_EQ(scores[1], .25F);
  const auto& signal = policy.method().parts().signal();
  EXPECT_NEAR(signal.attention_entropy(0), 2 * std::log(2.0), 1e-6);
  EXPECT_NEAR(signal.attention_variance(0), .03125, 1e-7);
  EXPECT_NEAR(policy.method().allocator().preference(4, 9), 36, 1e-12);
  const kvevict::KeepMask& mask = policy.select(cache.view());
  EXPECT_TRUE(mask.keeps(0, 0, 0) && !mask.keeps(0, 0, 1) && mask.keeps(0, 0, 2));
}

// Flat rows: entropy n ln n / n each, variance 0 without w > 1 different rows; then all layers are
// equal. So they are with a window of one row, whose variance is undefined elsewhere.
TEST(CAKE, ASingleRowHasNoVariance) {
  CAKE policy({.budget = 3, .observation_window = 1, .pooling = {.kernel_size = 1}}, kOneHead);
  WindowCache cache(kOneHead, 8);
  feed_rows(policy, cache, {{{.1F, .5F, .2F, .1F, .1F}}});
  EXPECT_EQ(policy.method().parts().signal().attention_variance(0), 0.0);
  EXPECT_EQ(policy.method().allocation(policy.sequence()).lane_budgets[0], 3U);
  const kvevict::KeepMask& mask = policy.select(cache.view());
  EXPECT_TRUE(mask.keeps(0, 0, 1) && mask.keeps(0, 0, 2) && mask.keeps(0, 0, 4));
}

// R19: an entry that is not finite changes nothing and is counted.
TEST(CAKE, NaNIsNoSample) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CAKE policy({.budget = 3, .observation_window = 2, .gamma = 4, .pooling = {.kernel_size = 1}},
              kOneHead);
  WindowCache cache(kOneHead, 8);
  feed_rows(policy, cache, {{{nan, .25F, .25F}, {.25F, .25F, .25F, .25F}}});
  EXPECT_EQ(policy.counters().non_finite, 1U);
  for (const float score : scores_of(policy, cache))
    EXPECT_TRUE(std::isfinite(score));
}

template <class P>
struct Prompt {
  P policy;
  WindowCache cache;
  Random random{11};

  Prompt(const typename P::Options& options, std::size_t len,
         const kvevict::CacheShape& shape = kModel, std::size_t chunk = 100)
      : policy(options, shape), cache(shape, 96) {
    cache.fill(random);
    // Layers differ: keys grow with the depth, so that attention becomes steeper.
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
        for (std::size_t slot = 0; slot < len; ++slot) {
          for (std::size_t c = 0; c < shape.head_dim; ++c)
            cache.key(layer, head, slot)[c] *= 1.0F + 2.0F * static_cast<float>(layer);
        }
      }
    }
    feed_prompt(policy, cache, len, WindowQueries(shape, 4, random), chunk);
  }
  std::vector<std::size_t> budgets() {
    std::vector<std::size_t> result;
    for (std::size_t lane = 0; lane < policy.sequence().num_lanes(); ++lane)
      result.push_back(policy.method().allocation(policy.sequence()).lane_budgets[lane]);
    return result;
  }
};

CAKEOptions options(std::size_t budget) {
  return {.budget = budget, .observation_window = 4};
}

TEST(CAKE, BudgetsAddUpWhateverTheLayersDo) {
  for (const std::size_t len : {5U, 12U, 13U, 14U, 20U, 60U}) {
    Prompt<CAKE> prompt(options(12), len);
    std::size_t kept = 0;
    for (const std::size_t tokens : prompt.budgets())
      kept += std::min(tokens, len);
    EXPECT_EQ(kept, 10 * std::min<std::size_t>(12, len)) << len;
    EXPECT_EQ(prompt.policy.select(prompt.cache.view()).total_count(), kept);
  }
  const std::vector<std::size_t> budgets = Prompt<CAKE>(options(12), 60).budgets();
  EXPECT_LT(budgets[0], budgets[4]);
}

// Layers cut one after another: after layer m the first m + 1 share the whole budget, and what a
// layer lost is gone. Replayed here with masks of their own; the end is what `cascading` says, and
// but for roundings what one cut says.
TEST(CAKE, CascadingEndsWhereOneCutEnds) {
  for (const bool official : {false, true}) {
    CAKEOptions once = options(12);
    once.official_rounding = official;
    CAKEOptions cascading = once;
    cascading.cascading = true;
    Prompt<CAKE> a(once, 60);
    Prompt<CAKE> b(cascading, 60);
    const std::size_t layers = kModel.num_layers;
    const auto& signal = a.policy.method().parts().signal();
    std::vector<std::size_t> left(layers, 60 - 4);
    for (std::size_t m = 1; m <= layers; ++m) {
      std::vector<double> shares;
      for (std::size_t layer = 0; layer < m; ++layer) {
        shares.push_back(a.policy.method().allocator().preference(
            signal.attention_entropy(layer), signal.attention_variance(layer)));
      }
      std::vector<std::size_t> numbers(m);
      kvevict::share_by_preference(shares, 8 * layers, 60 - 4, official, numbers);
      for (std::size_t layer = 0; layer < m; ++layer)
        left[layer] = std::min(left[layer], numbers[layer]);
    }
    for (std::size_t layer = 0; layer < layers; ++layer) {
      EXPECT_EQ(b.budgets()[2 * layer], left[layer] + 4);
      EXPECT_NEAR(static_cast<double>(a.budgets()[2 * layer]),
                  static_cast<double>(b.budgets()[2 * layer]), 1.0);
    }
  }
}

// One layer has all of the budget, and without the variance the order is SnapKV's.
TEST(CAKE, OfOneLayerWithoutVarianceIsSnapKV) {
  constexpr kvevict::CacheShape kShape{
      .num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};
  Prompt<CAKE> cake({.budget = 12, .observation_window = 4, .gamma = 0}, 60, kShape);
  Prompt<SnapKV> snapkv({.budget = 12, .observation_window = 4}, 60, kShape);
  EXPECT_EQ(cake.policy.select(cake.cache.view()), snapkv.policy.select(snapkv.cache.view()));
}

TEST(CAKE, ChunksDoNotMatter) {
  Prompt<CAKE> whole(options(12), 60);
  for (const std::size_t chunk : {1U, 3U, 58U}) {
    Prompt<CAKE> pieces(options(12), 60, kModel, chunk);
    EXPECT_EQ(whole.policy.select(whole.cache.view()), pieces.policy.select(pieces.cache.view()));
  }
}

// While decoding, budgets stay and the newest query decides: window 2, one entry beside it.
TEST(CAKE, DecodesWithinItsBudget) {
  CAKE policy({.budget = 3, .observation_window = 2, .gamma = 4, .pooling = {.kernel_size = 1}},
              kOneHead);
  WindowCache cache(kOneHead, 8);
  feed_rows(policy, cache, {{{.5F, .25F, .25F}, {.25F, .25F, .25F, .25F}}});
  cut(policy, cache);  // positions 0, 2, 3
  const auto step = [&](const std::vector<float>& row) {
    policy.append(1);
    cache.append(1);
    EXPECT_EQ(policy.wanted_attention_rows(0), 1U);
    policy.observe_attention(0, GivenRows({{row}}).rows());
    EXPECT_TRUE(policy.should_evict());
    cut(policy, cache);
    std::vector<kvevict::Position> positions;
    for (std::size_t slot = 0; slot < policy.sequence().seq_len(0); ++slot)
      positions.push_back(policy.sequence().position(0, slot));
    return positions;
  };
  EXPECT_EQ(step({.2F, .3F, .1F, .4F}), (std::vector<kvevict::Position>{2, 3, 4}));
  EXPECT_EQ(step({.4F, .3F, .0F, .3F}), (std::vector<kvevict::Position>{2, 4, 5}));
  EXPECT_EQ(policy.counters().missing_signals, 0U);
}

TEST(CAKE, MayCutPromptsAlone) {
  CAKEOptions prompts_only = options(12);
  prompts_only.only_at_prefill_end = true;
  Prompt<CAKE> prompt(prompts_only, 60);
  cut(prompt.policy, prompt.cache);
  prompt.policy.append(1);
  EXPECT_EQ(prompt.policy.wanted_attention_rows(0), 0U);
  EXPECT_FALSE(prompt.policy.should_evict());
}

// Padding is no token: it has no budget and is never kept.
TEST(CAKE, PaddingHasNoBudget) {
  CAKE policy(options(8), kModel);
  WindowCache cache(kModel, 64);
  Random random(3);
  cache.fill(random);
  cache.valid().assign(25, 1);
  for (std::size_t slot = 0; slot < 5; ++slot)
    cache.valid()[slot] = 0;
  feed_prompt(policy, cache, 25, WindowQueries(kModel, 4, random), 25);
  const kvevict::KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(mask.total_count(), 10U * 8U);
  for (std::size_t slot = 0; slot < 5; ++slot)
    EXPECT_FALSE(mask.keeps(0, 0, slot));
}

TEST(CAKE, RefusesWhatCannotBe) {
  EXPECT_TRUE(refuses([] { CAKE({.budget = 3, .observation_window = 4}, kModel); },
                      {"CAKE", "budget = 3", "window"}));
  EXPECT_TRUE(
      refuses([] { CAKE({.observation_window = 0}, kModel); }, {"CAKE", "observation_window = 0"}));
  EXPECT_TRUE(refuses([] { CAKE({.gamma = -1}, kModel); }, {"CAKE", "gamma = -1"}));
  EXPECT_TRUE(refuses([] { CAKE({.tau1 = 0}, kModel); }, {"CAKE", "tau1 = 0"}));
  EXPECT_TRUE(refuses([] { CAKE({.tau2 = -2}, kModel); }, {"CAKE", "tau2 = -2"}));
}

}  // namespace
}  // namespace kvevict_test
