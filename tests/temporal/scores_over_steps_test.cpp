// Scores over steps, through the policies that are made of them.
#include "kvevict/temporal/scores_over_steps.hpp"

#include "kvevict/policies/aggregated.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::GivenRows;
using kvevict_test::mask_of;
using kvevict_test::Random;
using kvevict_test::refuses;
using kvevict_test::scores_of;
using kvevict_test::WindowCache;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Floats = std::vector<float>;

/// -|k| of what the cache holds now. KeyNorm remembers it, since keys do not change; here they do.
struct NormNow {
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  [[nodiscard]] static std::tuple<> state() noexcept { return {}; }
  static void score(const ScoreInput& input, LaneScores& scores) {
    scores.start(0, scores.seq_len(), 1);
    std::vector<float> gathered;
    row_norms(scores.cache().keys, input.sequence.shape().head_dim, 0, scores.seq_len(),
              input.kernel, gathered, scores.array(0));
    input.kernel.scale(-1.0F, scores.count(), scores.array(0).data());
  }
};
struct NormNowRecipe : KnormRecipe {
  template <class O>
  static auto pipeline(const O& /*options*/, const CacheShape& /*shape*/) {
    return Pipeline(NormNow());
  }
};
using AggregatedKnorm = Policy<Composed<AggregatedOver<NormNowRecipe>>>;

AggregatedKnorm policy_of(TemporalRule rule, double decay = .5) {
  AggregatedKnorm::Options options;
  options.temporal_rule = rule;
  options.decay = decay;
  options.temporal_threshold = -2;
  return {options, kShape};
}

/// A cache whose keys change from step to step, so that their scores, -|k|, do.
struct Steps {
  explicit Steps(AggregatedKnorm p) : policy(std::move(p)), cache(kShape, 16) {}

  /// The keys of all slots; those behind the ones that are there are new tokens.
  void step(const Floats& keys) {
    const std::size_t count = keys.size() - cache.seq_len();
    policy.append(count);
    cache.append(count);
    for (std::size_t slot = 0; slot < keys.size(); ++slot)
      *cache.key(0, 0, slot) = keys[slot];
    policy.observe_cache(cache.view());
  }
  Floats scores() { return scores_of(policy, cache); }

  AggregatedKnorm policy;
  WindowCache cache;
};

// Samples of slot 0: -1, -3, 0; of slot 1: -2, -2, none; of slot 2, from the second step: -5, -1;
// of slot 3, the third step's: -6.
Floats after_three_steps(TemporalRule rule) {
  Steps steps(policy_of(rule));
  steps.step({1, 2});
  steps.step({3, 2, 5});
  steps.step({0, kNaN, 1, 6});
  EXPECT_EQ(steps.policy.counters().non_finite, 1U);
  return steps.scores();
}

TEST(ScoresOverSteps, Single) {
  EXPECT_EQ(after_three_steps(TemporalRule::kSingle), (Floats{0, -2, -1, -6}));
}
// -1 / 2 - 3 / 2 = -2, then -2 / 2 + 0; -5 / 2 - 1 / 2.
TEST(ScoresOverSteps, Ema) {
  EXPECT_EQ(after_three_steps(TemporalRule::kEma), (Floats{-1, -2, -3, -6}));
}
TEST(ScoresOverSteps, Cumulative) {
  EXPECT_EQ(after_three_steps(TemporalRule::kCumulative), (Floats{-4, -4, -6, -6}));
}
// A sample that is missing does not count in the divisor.
TEST(ScoresOverSteps, LifetimeMean) {
  const Floats scores = after_three_steps(TemporalRule::kLifetimeMean);
  EXPECT_FLOAT_EQ(scores[0], -4.0F / 3);
  EXPECT_EQ(scores[1], -2.0F);
  EXPECT_EQ(scores[2], -3.0F);
}
// The NaN of the third step is not looked at: slot 1 has its score.
TEST(ScoresOverSteps, Frozen) {
  Steps steps(policy_of(TemporalRule::kFrozen));
  steps.step({1, 2});
  steps.step({3, 2, 5});
  steps.step({0, kNaN, 1, 6});
  EXPECT_EQ(steps.scores(), (Floats{-1, -2, -5, -6}));
  EXPECT_EQ(steps.policy.counters().non_finite, 0U);
}

// .5 (.5 x -1 - 3) + 0 = -1.75; -2 / 2 - 2 = -3; -5 / 2 - 1.
TEST(ScoresOverSteps, DecayedSum) {
  EXPECT_EQ(after_three_steps(TemporalRule::kDecayedSum), (Floats{-1.75F, -3, -3.5F, -6}));
}
TEST(ScoresOverSteps, Max) {
  EXPECT_EQ(after_three_steps(TemporalRule::kMax), (Floats{0, -2, -1, -6}));
}

// Above -2, which -2 is not: -1 and 0; none; the second; none. The NaN is no sample.
TEST(ScoresOverSteps, Count) {
  EXPECT_EQ(after_three_steps(TemporalRule::kCount), (Floats{2, 0, 1, 0}));
}
// Slot 0 was above in the newest step and slot 2 as well; slot 1 has had one more sample since it
// came, the NaN being none; slot 3 just came.
TEST(ScoresOverSteps, LastTime) {
  EXPECT_EQ(after_three_steps(TemporalRule::kLastTime), (Floats{0, -1, 0, 0}));
}

/// Scores of one token whose samples are `samples`, under a window of 3.
Floats windowed(TemporalRule rule, const Floats& samples) {
  AggregatedKnorm::Options options;
  options.temporal_rule = rule;
  options.temporal_threshold = -2;
  options.temporal_window = 3;
  Steps steps(AggregatedKnorm(options, kShape));
  Floats keys;
  Floats scores;
  for (const float sample : samples) {
    keys.push_back(9);
    keys.front() = -sample;
    steps.step(keys);
    scores.push_back(steps.scores().front());
  }
  return scores;
}
// Of the last three, across the borders of the blocks that they are kept in. A NaN is no sample and
// moves no window.
TEST(ScoresOverSteps, OverAWindow) {
  const Floats samples{-1, -4, -2, -1, -8, -3, kNaN, -1, -5};
  EXPECT_EQ(windowed(TemporalRule::kCumulative, samples),
            (Floats{-1, -5, -7, -7, -11, -12, -12, -12, -9}));
  EXPECT_EQ(windowed(TemporalRule::kMax, {-1, -4, -3, -5, -6, -7, -2, -9, -8}),
            (Floats{-1, -1, -1, -3, -3, -5, -2, -2, -2}));
  EXPECT_EQ(windowed(TemporalRule::kCount, {-1, -1, -1, -1, -2, -3, -4, -1}),
            (Floats{1, 2, 3, 3, 2, 1, 0, 1}));
  const Floats means = windowed(TemporalRule::kLifetimeMean, samples);
  EXPECT_EQ(means[1], -2.5F);
  EXPECT_FLOAT_EQ(means[4], -11.0F / 3);
  EXPECT_EQ(means[5], -4.0F);
}
// Each token has a window of its own, and it goes with it.
TEST(ScoresOverSteps, WindowsFollowTheCache) {
  AggregatedKnorm::Options options;
  options.temporal_rule = TemporalRule::kCumulative;
  options.temporal_window = 2;
  Steps steps(AggregatedKnorm(options, kShape));
  steps.step({1, 2, 4});
  steps.step({1, 2, 4, 8});
  EXPECT_EQ(steps.scores(), (Floats{-2, -4, -8, -8}));
  const KeepMask mask = mask_of(MaskScope::kHead, 1, 1, {"0101"});
  steps.cache.evict(mask);
  steps.policy.apply(mask);
  steps.step({3, 9, 1});
  EXPECT_EQ(steps.scores(), (Floats{-5, -17, -1}));
  steps.policy.truncate(4);
  steps.cache.truncate(2);
  steps.step({1, 1, 7});
  EXPECT_EQ(steps.scores(), (Floats{-4, -10, -7}));
}

// A rule of one's own is one struct: the least of all samples.
struct LeastSoFar {
  float next(float before, float sample, float /*count*/) const { return std::min(before, sample); }
};
struct LeastKnormRecipe : NormNowRecipe {
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(ScoresOverSteps(shape, scope(options), NormNowRecipe::pipeline(options, shape),
                                    LeastSoFar{}));
  }
};
TEST(ScoresOverSteps, TakeARuleOfOnesOwn) {
  Policy<Composed<LeastKnormRecipe>> policy({}, kShape);
  WindowCache cache(kShape, 4);
  for (const Floats& keys : {Floats{1, 2}, Floats{3, 1, 5}}) {
    policy.append(keys.size() - cache.seq_len());
    cache.append(keys.size() - cache.seq_len());
    for (std::size_t slot = 0; slot < keys.size(); ++slot)
      *cache.key(0, 0, slot) = keys[slot];
    policy.observe_cache(cache.view());
  }
  EXPECT_EQ(scores_of(policy, cache), (Floats{-3, -2, -5}));
}

// No allocator says so: what a prompt's tokens are worth is known at its end.
TEST(ScoresOverSteps, KeepAnUnfinishedPromptInAnyRecipe) {
  Policy<Composed<LeastKnormRecipe>> policy({.budget = 1}, kShape);
  policy.begin(3);
  policy.append(2);
  EXPECT_FALSE(policy.should_evict());
  policy.append(1);
  EXPECT_TRUE(policy.should_evict());
}

struct WrongScopeRecipe : NormNowRecipe {
  static constexpr std::string_view kName = "WrongScope";
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(ScoresOverSteps(shape, MaskScope::kModel,
                                    NormNowRecipe::pipeline(options, shape), LeastSoFar{}));
  }
};
TEST(ScoresOverSteps, RefuseARecipeOfAnotherScope) {
  EXPECT_TRUE(refuses([] { Policy<Composed<WrongScopeRecipe>>({}, kShape); },
                      {"WrongScope: scope", "must be that of its signal"}));
}

// A weight of 0 for the past is no past.
TEST(ScoresOverSteps, AnEmaWithoutDecayIsTheNewestSample) {
  Steps steps(policy_of(TemporalRule::kEma, 0.0));
  steps.step({1, 2});
  steps.step({3, 4, 5});
  EXPECT_EQ(steps.scores(), (Floats{-3, -4, -5}));
}

// Rule R19: a token that never had a number goes first, and starts with the first that it gets.
TEST(ScoresOverSteps, ATokenWithoutANumber) {
  Steps steps(policy_of(TemporalRule::kCumulative));
  steps.step({1, kNaN});
  EXPECT_EQ(steps.scores(), (Floats{-1, -kInfinity}));
  steps.step({1, 4, 2});
  EXPECT_EQ(steps.scores(), (Floats{-2, -4, -2}));
}

// A step that the engine did not show is a sample less; a token whose first step it was is scored
// when it is seen.
TEST(ScoresOverSteps, AStepThatWasNotShown) {
  for (const TemporalRule rule : {TemporalRule::kFrozen, TemporalRule::kSingle}) {
    Steps steps(policy_of(rule));
    steps.step({1, 2});
    steps.policy.append(1);
    steps.cache.append(1);
    *steps.cache.key(0, 0, 2) = 7;
    EXPECT_EQ(steps.scores(), (Floats{-1, -2, -kInfinity}));
    steps.step({1, 2, 7, 3});
    EXPECT_EQ(steps.scores(), (Floats{-1, -2, -7, -3}));
    EXPECT_EQ(steps.policy.counters().missing_signals, 1U);
  }
}

// A prompt in chunks is one step, and inside it nothing is cut; frozen scores are there at once.
TEST(ScoresOverSteps, APromptIsOneStep) {
  AggregatedKnorm::Options options;
  options.budget = 1;
  options.temporal_rule = TemporalRule::kCumulative;
  Steps steps(AggregatedKnorm(options, kShape));
  steps.policy.begin(3);
  steps.step({1, 2});
  EXPECT_EQ(steps.scores(), (Floats{-kInfinity, -kInfinity}));
  EXPECT_FALSE(steps.policy.should_evict());
  steps.step({1, 2, 3});
  EXPECT_EQ(steps.scores(), (Floats{-1, -2, -3}));
  steps.policy.end_prefill(steps.cache.view());
  EXPECT_TRUE(steps.policy.should_evict());
  steps.step({1, 2, 3, 4});
  EXPECT_EQ(steps.scores(), (Floats{-2, -4, -6, -4}));
  Steps frozen(policy_of(TemporalRule::kFrozen));
  frozen.policy.begin(3);
  frozen.step({1, 2});
  EXPECT_EQ(frozen.scores(), (Floats{-1, -2}));
}

TEST(ScoresOverSteps, FollowTheCache) {
  Steps steps(policy_of(TemporalRule::kCumulative));
  steps.step({1, 2, 3, 4});
  const KeepMask mask = mask_of(MaskScope::kHead, 1, 1, {"1011"});
  steps.cache.evict(mask);
  steps.policy.apply(mask);
  EXPECT_EQ(steps.scores(), (Floats{-1, -3, -4}));
  steps.step({1, 3, 4, 5});
  EXPECT_EQ(steps.scores(), (Floats{-2, -6, -8, -5}));
  steps.policy.truncate(4);
  steps.cache.truncate(3);
  EXPECT_EQ(steps.scores(), (Floats{-2, -6, -8}));
  steps.policy.reset();
  steps.cache.truncate(0);
  steps.step({9});
  EXPECT_EQ(steps.scores(), (Floats{-9}));
}

// Scores that do not change come through every rule but the sum, which is what age makes of them.
TEST(ScoresOverSteps, ScoresThatStayTheSame) {
  for (const TemporalRule rule : {TemporalRule::kSingle, TemporalRule::kFrozen, TemporalRule::kEma,
                                  TemporalRule::kLifetimeMean}) {
    Steps steps(policy_of(rule));
    steps.step({4, 2});
    steps.step({4, 2, 8});
    steps.step({4, 2, 8, 1});
    EXPECT_EQ(steps.scores(), (Floats{-4, -2, -8, -1}));
  }
}

// ------------------------------------------------------------------ in some steps alone

/// Sums over a prompt of two tokens, its end being a sample, and then every second step's, or,
/// score free, the first one's.
Steps lazy_sums(bool score_free) {
  AggregatedKnorm::Options options;
  options.temporal_rule = TemporalRule::kCumulative;
  options.refresh_interval = score_free ? 1 : 2;
  options.score_free = score_free;
  Steps steps(AggregatedKnorm(options, kShape));
  steps.policy.begin(2);
  EXPECT_TRUE(steps.policy.wants_cache());
  steps.step({1, 2});
  steps.policy.end_prefill(steps.cache.view());
  EXPECT_EQ(steps.scores(), (Floats{-1, -2}));
  steps.step({3, 2, 5});
  return steps;
}

// In the second step nothing is seen and the new token enters at the mean of -4, -4 and -5; the
// third is the first sample of both new ones.
TEST(ScoresOverSteps, EverySecondStep) {
  Steps steps = lazy_sums(false);
  EXPECT_EQ(steps.scores(), (Floats{-4, -4, -5}));
  steps.policy.append(1);
  steps.cache.append(1);
  EXPECT_FALSE(steps.policy.wants_cache());
  EXPECT_EQ(steps.scores()[2], -5.0F);
  EXPECT_FLOAT_EQ(steps.scores()[3], -13.0F / 3);
  steps.step({1, 1, 1, 1, 1});
  EXPECT_EQ(steps.scores(), (Floats{-5, -5, -6, -1, -1}));
  EXPECT_EQ(steps.policy.counters().missing_signals, 0U);
}

// The mean is that of the tokens that are left: (-6 - 1 - 1) / 3.
TEST(ScoresOverSteps, ANewTokenEntersAtTheMeanOfThoseThatStayed) {
  Steps steps = lazy_sums(false);
  steps.step({9, 9, 9, 9});
  steps.step({1, 1, 1, 1, 1});
  const KeepMask mask = mask_of(MaskScope::kHead, 1, 1, {"00111"});
  steps.cache.evict(mask);
  steps.policy.apply(mask);
  steps.step({9, 9, 9, 9});
  EXPECT_EQ(steps.scores()[0], -6.0F);
  EXPECT_FLOAT_EQ(steps.scores()[3], -8.0F / 3);
}

// Tokens that come together have a sample if one of their steps is a refresh: the third.
TEST(ScoresOverSteps, ADraftWithARefreshInIt) {
  Steps steps = lazy_sums(false);
  steps.policy.append(2);
  EXPECT_TRUE(steps.policy.wants_cache());
  steps.cache.append(2);
  for (std::size_t slot = 0; slot < 5; ++slot)
    *steps.cache.key(0, 0, slot) = 1;
  steps.policy.observe_cache(steps.cache.view());
  EXPECT_EQ(steps.scores(), (Floats{-5, -5, -6, -1, -1}));
}

// Nothing is seen from the second step on, until a further prompt, which has a first step of its
// own.
TEST(ScoresOverSteps, ScoreFree) {
  Steps steps = lazy_sums(true);
  for (std::size_t len = 4; len < 7; ++len) {
    steps.policy.append(1);
    steps.cache.append(1);
    EXPECT_FALSE(steps.policy.wants_cache());
    EXPECT_EQ(steps.scores()[0], -4.0F);
    EXPECT_FLOAT_EQ(steps.scores()[len - 1], -13.0F / 3);
  }
  steps.policy.begin(1);
  EXPECT_TRUE(steps.policy.wants_cache());
  steps.step({1, 1, 1, 1, 1, 1, 1});
  steps.policy.end_prefill(steps.cache.view());
  EXPECT_EQ(steps.scores(), (Floats{-5, -5, -6, -1, -1, -1, -1}));
  steps.step({1, 1, 1, 1, 1, 1, 1, 2});
  EXPECT_EQ(steps.scores(), (Floats{-6, -6, -7, -2, -2, -2, -2, -2}));
  steps.policy.append(1);
  EXPECT_FALSE(steps.policy.wants_cache());
}

// A step that wants a sample and has none is counted, as ever.
TEST(ScoresOverSteps, ARefreshThatWasNotShown) {
  Steps steps = lazy_sums(false);
  steps.policy.append(1);
  steps.policy.append(1);
  steps.policy.append(1);
  EXPECT_EQ(steps.policy.counters().missing_signals, 1U);
}

// ------------------------------------------------------------------ over attention

AggregatedTOVA tova_of(TemporalRule rule, double decay = .5) {
  AggregatedTOVA::Options options;
  options.temporal_rule = rule;
  options.decay = decay;
  return {options, kShape};
}
/// A step of one token and its row.
void attend(AggregatedTOVA& policy, WindowCache& cache, const Floats& row) {
  policy.append(1);
  cache.append(1);
  policy.observe_attention(0, GivenRows({{row}}).rows());
  policy.observe_cache(cache.view());
}

// .75 / 2 + .5 / 2; .25 / 2 + .25 / 2; the new token has its first sample.
TEST(ScoresOverSteps, OfTheNewestRows) {
  for (const auto& [rule, expected] :
       {std::pair{TemporalRule::kEma, Floats{.625F, .25F, .25F}},
        std::pair{TemporalRule::kCumulative, Floats{2.25F, .5F, .25F}},
        std::pair{TemporalRule::kFrozen, Floats{1, .25F, .25F}}}) {
    AggregatedTOVA policy = tova_of(rule);
    WindowCache cache(kShape, 8);
    EXPECT_TRUE(policy.wants_cache());
    attend(policy, cache, {rule == TemporalRule::kEma ? .75F : 1});
    attend(policy, cache, {.75F, .25F});
    attend(policy, cache, {.5F, .25F, .25F});
    EXPECT_EQ(scores_of(policy, cache), expected);
    EXPECT_EQ(policy.counters().missing_signals, 0U);
  }
}

// A sample that was taken before the attention came would lack it.
TEST(ScoresOverSteps, RefuseAttentionBehindTheirSample) {
  AggregatedTOVA policy = tova_of(TemporalRule::kEma);
  WindowCache cache(kShape, 8);
  policy.append(1);
  cache.append(1);
  policy.observe_cache(cache.view());
  EXPECT_TRUE(refuses([&] { policy.observe_attention(0, GivenRows({{Floats{1}}}).rows()); },
                      {"AggregatedTOVA", "observe_cache", "must come after what the scores"}));
}

// .5 x 1 + .5 x .5 = .75; the second step's token enters at (.75 + .5) / 2 and nothing is looked
// at; .75 / 2 + .25 / 2, .5 / 2 + .25 / 2, and the first samples of the two new ones.
TEST(ScoresOverSteps, RowsAreWantedInSampledStepsAlone) {
  AggregatedTOVA::Options options;
  options.decay = .5;
  options.refresh_interval = 2;
  AggregatedTOVA policy(options, kShape);
  WindowCache cache(kShape, 8);
  policy.begin(1);
  EXPECT_TRUE(policy.wants_attention(0));
  attend(policy, cache, {1});
  policy.end_prefill(cache.view());
  attend(policy, cache, {.5F, .5F});
  EXPECT_EQ(scores_of(policy, cache), (Floats{.75F, .5F}));
  policy.append(1);
  cache.append(1);
  EXPECT_FALSE(policy.wants_attention(0));
  EXPECT_FALSE(policy.wants_cache());
  EXPECT_EQ(scores_of(policy, cache), (Floats{.75F, .5F, .625F}));
  attend(policy, cache, {.25F, .25F, .25F, .25F});
  EXPECT_EQ(scores_of(policy, cache), (Floats{.5F, .375F, .25F, .25F}));
  EXPECT_EQ(policy.counters().missing_signals, 0U);
}

// What accumulates misses no row: sums 1, 1.5 + .5, and in the step that is not sampled + .25.
TEST(ScoresOverSteps, WhatAccumulatesWantsEveryRow) {
  Policy<Composed<AggregatedOver<H2ORecipe>>>::Options options;
  options.temporal_rule = TemporalRule::kSingle;
  options.refresh_interval = 2;
  Policy<Composed<AggregatedOver<H2ORecipe>>> policy(options, kShape);
  WindowCache cache(kShape, 8);
  policy.begin(1);
  const auto attend_to = [&](const Floats& row) {
    policy.append(1);
    cache.append(1);
    EXPECT_TRUE(policy.wants_attention(0));
    policy.observe_attention(0, GivenRows({{row}}).rows());
    policy.observe_cache(cache.view());
  };
  attend_to({1});
  policy.end_prefill(cache.view());
  attend_to({.5F, .5F});
  EXPECT_EQ(scores_of(policy, cache), (Floats{1.5F, .5F}));
  attend_to({.25F, .25F, .5F});
  EXPECT_EQ(scores_of(policy, cache), (Floats{1.5F, .5F, 1}));
  attend_to({.25F, .25F, .25F, .25F});
  EXPECT_EQ(scores_of(policy, cache), (Floats{2, 1, .75F, .25F}));
}

// One layer and one head: TOVA sampled lazily under kSingle is InertiaKV's single-step score, and a
// new token enters at the mean in both, whatever was evicted.
TEST(ScoresOverSteps, LazyOverTOVAIsLazyInertiaKV) {
  AggregatedTOVA::Options options;
  options.temporal_rule = TemporalRule::kSingle;
  options.refresh_interval = 3;
  AggregatedTOVA lazy(options, kShape);
  InertiaKV inertia({.budget = 64, .aggregator = Aggregator::kSingle, .refresh_interval = 3},
                    kShape);
  WindowCache cache(kShape, 64);
  Random random(7);
  for (std::size_t prompt = 0; prompt < 2; ++prompt) {
    lazy.begin(3);
    inertia.begin(3);
    lazy.append(3);
    inertia.append(3);
    cache.append(3);
    lazy.observe_attention(0, GivenRows({{Floats(cache.seq_len(), .125F)}}).rows());
    lazy.observe_cache(cache.view());
    lazy.end_prefill(cache.view());
    inertia.end_prefill(cache.view());
    for (std::size_t t = 1; t < 12; ++t) {
      lazy.append(1);
      inertia.append(1);
      cache.append(1);
      EXPECT_EQ(lazy.wants_attention(0), t % 3 == 1);
      EXPECT_EQ(inertia.wants_attention(0), t % 3 == 1);
      Floats row(cache.seq_len());
      for (float& a : row)
        a = static_cast<float>(random.bits() >> 58U) / 64;  // exact in sums
      lazy.observe_attention(0, GivenRows({{row}}).rows());
      inertia.observe_attention(0, GivenRows({{row}}).rows());
      lazy.observe_cache(cache.view());
      const auto expected = inertia.method().scores();
      EXPECT_EQ(scores_of(lazy, cache), Floats(expected.begin(), expected.end())) << t;
      if (t % 4 == 2) {
        std::string kept(cache.seq_len(), '1');
        kept[t / 2] = '0';
        const KeepMask mask = mask_of(MaskScope::kModel, 1, 1, {kept});
        cache.evict(mask);
        lazy.apply(mask);
        inertia.apply(mask);
      }
    }
  }
}

// What a stage does over all lanes of a pool is not lost below a rule: here shares of a layer.
struct SharedKnormRecipe : KnormRecipe {
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return KnormRecipe::pipeline(options, shape) | SharesOfLayer{};
  }
  static Allocation allocation(const Options& options) {
    return {.budget = options.budget, .competition = Competition::kModel};
  }
};
TEST(ScoresOverSteps, KeepWhatFollowsOverAPool) {
  constexpr CacheShape kTwo{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  const Policy<Composed<AggregatedOver<SharedKnormRecipe>>> policy({}, kTwo);
  WindowCache cache(kTwo, 2);
  Floats first{8, 3};
  Floats second{5, 4};
  std::vector<std::uint64_t> open{3, 3};
  std::vector<std::uint64_t> keep{0, 0};
  std::vector<ScoredLane> lanes{{0, first, std::span(open).first(1), std::span(keep).first(1)},
                                {1, second, std::span(open).last(1), std::span(keep).last(1)}};
  const auto view = cache.view();
  const ViewRef ref(view);
  Scratch scratch;
  policy.method().normalise(lanes, {ref, policy.sequence(), kernels::best(), scratch});
  EXPECT_EQ(first, (Floats{8.0F / 11, 3.0F / 11}));
  EXPECT_EQ(second, (Floats{5.0F / 9, 4.0F / 9}));
}

// KeyDiff's score of a token changes with its neighbours: of the first alone it is -1, beside one
// at a right angle -cos(45 degrees). The mean of both steps is -.853553, kept apart by heads.
TEST(ScoresOverSteps, EachLaneHasItsOwn) {
  constexpr CacheShape kTwo{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  AggregatedKeyDiff::Options options;
  options.temporal_rule = TemporalRule::kLifetimeMean;
  AggregatedKeyDiff policy(options, kTwo);
  WindowCache cache(kTwo, 2);
  const auto step = [&](float x, float y) {
    const std::size_t slot = cache.seq_len();
    policy.append(1);
    cache.append(1);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      cache.key(layer, 0, slot)[0] = layer == 0 ? x : 1.0F;
      cache.key(layer, 0, slot)[1] = layer == 0 ? y : 0.0F;
    }
    policy.observe_cache(cache.view());
  };
  step(1, 0);
  step(0, 1);
  EXPECT_NEAR(scores_of(policy, cache, 0)[0], -.853553F, 1e-6);
  EXPECT_NEAR(scores_of(policy, cache, 0)[1], -.707107F, 1e-6);
  EXPECT_NEAR(scores_of(policy, cache, 1)[0], -1.0F, 1e-6);
}

TEST(Aggregated, RefusesOptionsThatMakeNoSense) {
  EXPECT_TRUE(refuses([] { policy_of(TemporalRule::kEma, 1.0); },
                      {"AggregatedKnorm", "decay = 1", "must be in [0, 1)"}));
  AggregatedKnorm::Options options;
  options.refresh_interval = 0;
  EXPECT_TRUE(refuses([&] { AggregatedKnorm(options, kShape); },
                      {"AggregatedKnorm", "refresh_interval = 0", "must be > 0"}));
  options = {};
  options.temporal_threshold = kNaN;
  EXPECT_TRUE(refuses([&] { AggregatedKnorm(options, kShape); },
                      {"AggregatedKnorm", "temporal_threshold = ", "must be finite"}));
  options = {};
  options.temporal_window = 2;  // of an EMA
  EXPECT_TRUE(refuses([&] { AggregatedKnorm(options, kShape); },
                      {"AggregatedKnorm", "temporal_window = 2", "has a meaning for rule"}));
}

}  // namespace
}  // namespace kvevict
