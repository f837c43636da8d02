#include "kvevict/temporal/running_scores.hpp"

#include "kvevict/kernels/kernels.hpp"
#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Floats = std::vector<float>;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

Floats values_of(const RunningScores& scores) {
  return {scores.values().begin(), scores.values().end()};
}
RunningScores scores_of(Aggregator aggregator, double decay, const Floats& start) {
  RunningScores scores(kShape, aggregator, decay);
  scores.append(start.size());
  std::copy(start.begin(), start.end(), scores.values().begin());
  return scores;
}
std::size_t update(RunningScores& scores, const Floats& sample) {
  return scores.update(sample, kernels::best());
}

TEST(RunningScores, Aggregators) {
  auto ema = scores_of(Aggregator::kEma, .75, {1, 2});
  update(ema, {2, 0});
  EXPECT_EQ(values_of(ema), (Floats{1.25F, 1.5F}));
  auto cumulative = scores_of(Aggregator::kCumulative, .75, {1, 2});
  update(cumulative, {2, 0});
  EXPECT_EQ(values_of(cumulative), (Floats{3, 2}));
  auto single = scores_of(Aggregator::kSingle, .75, {1, 2});
  update(single, {2, 0});
  EXPECT_EQ(values_of(single), (Floats{2, 0}));
}

// Case O-10: m[0] is left alone by the NaN, then 1 - .5 * .9^10 = .825661.
TEST(RunningScores, OneBadSampleIsForgotten) {
  auto scores = scores_of(Aggregator::kEma, .9, {.5F, .5F, .5F});
  std::size_t non_finite = update(scores, {std::numeric_limits<float>::quiet_NaN(), .2F, .2F});
  EXPECT_EQ(scores.values()[0], .5F);
  EXPECT_FLOAT_EQ(scores.values()[1], .47F);
  for (int t = 0; t < 10; ++t)
    non_finite += update(scores, {1, 0, 0});
  EXPECT_NEAR(scores.values()[0], .825661F, 1e-6);
  EXPECT_GT(scores.values()[0], scores.values()[1]);
  EXPECT_EQ(non_finite, 1U);
  for (const Aggregator aggregator : {Aggregator::kCumulative, Aggregator::kSingle}) {
    auto other = scores_of(aggregator, .9, {.5F, .5F});
    EXPECT_EQ(update(other, {std::numeric_limits<float>::infinity(), .5F}), 1U);
    EXPECT_EQ(other.values()[0], .5F);
  }
}

// Case O-18: what has faded to nothing is 0, not a subnormal number that costs a hundred cycles.
TEST(RunningScores, FadedScoresAreZero) {
  const float tiny = 1e-39F;
  auto scores = scores_of(Aggregator::kEma, .9, {tiny, 1e-37F, 1, -tiny});
  update(scores, {0, 0, 0, 0});
  EXPECT_EQ(scores.values()[0], 0.0F);
  EXPECT_FLOAT_EQ(scores.values()[1], 9e-38F);
  EXPECT_EQ(scores.values()[3], 0.0F);
  for (int t = 0; t < 200; ++t)
    update(scores, {0, 0, 0, 0});
  for (const float m : scores.values())
    EXPECT_TRUE(m == 0.0F || std::isnormal(m));
}

// Rule R20.
TEST(RunningScores, TokensEnterAtTheMean) {
  RunningScores scores(kShape, Aggregator::kEma, .5);
  scores.append(3);
  EXPECT_EQ(values_of(scores), (Floats{0, 0, 0}));
  update(scores, {1, 2, 0});
  scores.append(2);
  EXPECT_EQ(values_of(scores), (Floats{.5F, 1, 0, .5F, .5F}));
  update(scores, {0, 0, 4});  // the first three only
  scores.enter(3);
  scores.enter(4);
  EXPECT_EQ(values_of(scores), (Floats{.25F, .5F, 2, 2.75F / 3, (2.75F + 2.75F / 3) / 4}));
  scores.reset();
  EXPECT_TRUE(values_of(scores).empty());
  scores.append(2);
  EXPECT_EQ(values_of(scores), (Floats{0, 0}));
}

// The mean that an entry gets is rounded before it counts in the next one's.
TEST(RunningScores, SeveralTokensEnterAsIfAppendedSingly) {
  Floats start(1001);
  for (std::size_t i = 0; i < start.size(); ++i) {
    start[i] = std::sqrt(static_cast<float>(i * 7919 % 1001)) / 3.0F;
  }
  auto together = scores_of(Aggregator::kEma, .5, start);
  auto singly = together;
  together.append(40);
  for (int i = 0; i < 40; ++i)
    singly.append(1);
  EXPECT_EQ(values_of(together), values_of(singly));
}

// A long cache: the mean of a million entries of .1 is .1 to the last bit of a float.
TEST(RunningScores, MeanOfALongCacheIsExact) {
  RunningScores scores(kShape, Aggregator::kEma, .5);
  scores.append(1'000'003);
  for (float& m : scores.values())
    m = .1F;
  scores.append(1);
  EXPECT_EQ(scores.values().back(), .1F);
}

TEST(RunningScores, FollowTheCache) {
  auto scores = scores_of(Aggregator::kEma, .5, {.6F, .5F, .4F, .3F, .2F, .1F});
  scores.apply(kvevict_test::mask_of("101101"));
  scores.apply(kvevict_test::mask_of("1011"));
  EXPECT_EQ(values_of(scores), (Floats{.6F, .3F, .1F}));  // case O-24
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(2);
  scores.truncate(sequence);
  EXPECT_EQ(values_of(scores), (Floats{.6F, .3F}));
}

}  // namespace
}  // namespace kvevict
