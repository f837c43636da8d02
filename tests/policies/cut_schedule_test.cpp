// When a policy says that it is time to cut: slack, interval, and prompts that are left alone.
#include "kvevict/policies/criticalkv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/policy.hpp"
#include "support/errors.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::refuses;
using kvevict_test::WindowCache;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

/// A policy and its cache, cut whenever the policy says so.
struct Loop {
  explicit Loop(const KnormOptions& options) : policy(options, kShape), cache(kShape, 64) {}

  /// Tokens held after the prompt and after each step of `count` tokens.
  std::vector<std::size_t> run(std::size_t prompt, std::size_t steps, std::size_t count = 1) {
    std::vector<std::size_t> sizes;
    policy.begin(prompt);
    cache.append(prompt);
    policy.end_prefill(cache.view());
    cut();
    sizes.push_back(cache.seq_len());
    for (std::size_t step = 0; step < steps; ++step) {
      policy.append(count);
      cache.append(count);
      cut();
      sizes.push_back(cache.seq_len());
    }
    return sizes;
  }
  void cut() {
    if (!policy.should_evict())
      return;
    const KeepMask mask = policy.select(cache.view());
    cache.evict(mask);
    policy.apply(mask);
  }

  Knorm policy;
  WindowCache cache;
};
using Sizes = std::vector<std::size_t>;

TEST(CutSchedule, WithoutOneEveryStepIsCut) {
  EXPECT_EQ(Loop({.budget = 4}).run(6, 3), (Sizes{4, 4, 4, 4}));
}

// 6 does not exceed 4 + 2; 7 does.
TEST(CutSchedule, SlackGathersAndACutGoesDownToTheBudget) {
  EXPECT_EQ(Loop({.budget = 4, .schedule = {.slack = 2}}).run(6, 7),
            (Sizes{6, 4, 5, 6, 4, 5, 6, 4}));
}

// The prompt is cut at its end, then every third decoded token.
TEST(CutSchedule, AnIntervalCountsStepsBehindThePrompt) {
  EXPECT_EQ(Loop({.budget = 4, .schedule = {.decode_interval = 3}}).run(6, 7),
            (Sizes{4, 5, 6, 4, 5, 6, 4, 5}));
}

TEST(CutSchedule, PromptsCanBeLeftAlone) {
  EXPECT_EQ(
      Loop({.budget = 4, .schedule = {.cuts_prompts = false, .decode_interval = 2}}).run(6, 3),
      (Sizes{6, 7, 4, 5}));
}

// Two tokens a step: the multiples 3, 6, 9 of the interval are reached or passed in steps 2, 3, 5.
TEST(CutSchedule, SeveralTokensMayPassAMultiple) {
  EXPECT_EQ(Loop({.budget = 4, .schedule = {.decode_interval = 3}}).run(4, 5, 2),
            (Sizes{4, 6, 4, 4, 6, 4}));
}

// A share is one of all tokens seen: floor(12 / 2) = 6, which 12 exceeds; floor(14 / 2) = 7.
TEST(CutSchedule, AShareGrowsBetweenTheCuts) {
  EXPECT_EQ(
      Loop({.budget = Budget::keep_ratio(0.5), .schedule = {.decode_interval = 2}}).run(10, 4),
      (Sizes{5, 6, 6, 7, 7}));
}

// At the interval the cache may hold no more than slack allows: the next chance is the next
// multiple.
TEST(CutSchedule, SlackAndIntervalBothHaveToBeUsedUp) {
  EXPECT_EQ(Loop({.budget = 4, .schedule = {.decode_interval = 2, .slack = 2}}).run(4, 6),
            (Sizes{4, 5, 6, 7, 4, 5, 6}));
}

TEST(CutSchedule, SlackIsNoPartOfASelection) {
  Loop loop({.budget = 4, .schedule = {.slack = 10}});
  loop.policy.append(6);
  loop.cache.append(6);
  EXPECT_FALSE(loop.policy.should_evict());
  EXPECT_EQ(loop.policy.select(loop.cache.view()).total_count(), 4U);
}

TEST(CutSchedule, ALargeSlackDoesNotOverflow) {
  Loop loop({.budget = 4, .schedule = {.slack = static_cast<std::size_t>(-1)}});
  loop.policy.append(6);
  EXPECT_FALSE(loop.policy.should_evict());
}

// What was rolled back is decoded again: the third token is due a second time.
TEST(CutSchedule, ARollbackCountsBack) {
  Loop loop({.budget = 4, .schedule = {.decode_interval = 3}});
  loop.run(4, 2);
  loop.policy.truncate(5);
  loop.cache.truncate(5);
  for (const bool due : {false, true}) {
    loop.policy.append(1);
    loop.cache.append(1);
    EXPECT_EQ(loop.policy.should_evict(), due);
  }
}

// Speculative decoding: each step appends 3 drafted tokens and takes one back. Of 2 tokens a step,
// every second step reaches a multiple of 4.
TEST(CutSchedule, DraftsThatAreTakenBackDoNotHideAMultiple) {
  Loop loop({.budget = 4, .schedule = {.decode_interval = 4}});
  loop.run(4, 0);
  Sizes sizes;
  for (std::size_t step = 0; step < 4; ++step) {
    loop.policy.append(3);
    loop.cache.append(3);
    loop.policy.truncate(loop.policy.length() - 1);
    loop.cache.truncate(loop.cache.seq_len() - 1);
    loop.cut();
    sizes.push_back(loop.cache.seq_len());
  }
  EXPECT_EQ(sizes, (Sizes{6, 4, 6, 4}));
}

TEST(CutSchedule, RefusesWhatCannotWork) {
  EXPECT_TRUE(refuses([] { Knorm({.schedule = {.decode_interval = 0}}, kShape); },
                      {"Knorm", "decode_interval = 0", "must be > 0"}));
  EXPECT_TRUE(refuses(
      [] { Knorm({.only_at_prefill_end = true, .schedule = {.cuts_prompts = false}}, kShape); },
      {"Knorm", "cuts_prompts = 0", "only_at_prefill_end"}));
}

// A recipe over another one goes by the schedule of its base.
TEST(CutSchedule, PassesThroughARecipeOverAnother) {
  using Critical = Policy<Composed<CriticalKVRecipe<KnormRecipe>>>;
  auto projection = std::make_shared<OutputProjection>(kShape, 1, std::nullopt, true);
  const float weight = 1.0F;
  projection->set_layer(0, &weight);
  Critical policy(
      {.base = {.budget = 4, .schedule = {.slack = 1}}, .output_projection = projection}, kShape);
  policy.append(5);
  EXPECT_FALSE(policy.should_evict());
  policy.append(1);
  EXPECT_TRUE(policy.should_evict());
}

}  // namespace
}  // namespace kvevict
