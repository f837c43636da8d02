#include "kvevict/policies/epikv.hpp"

#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"
#include "support/epikv_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::EpiKVCache;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr float kNone = -std::numeric_limits<float>::infinity();

/// Options for two layers, A = 0 and B = 1.
template <class P = EpiKV>
typename P::Options options_of(std::size_t budget, std::size_t recent_window,
                               std::size_t window = 64) {
  typename P::Options options;
  options.budget = budget;
  options.recent_window = recent_window;
  options.window = window;
  options.layers_a = {0};
  options.layers_b = {1};
  return options;
}

HiddenRows rows_of(const float* data, std::size_t count, std::size_t dim) {
  return {data, count, dim, static_cast<std::ptrdiff_t>(dim * sizeof(float)), ElementType::kF32};
}

/// Hands over the newest tokens' vectors, of one channel, of both layers.
template <class P>
void observe(P& policy, const std::vector<float>& a, const std::vector<float>& b) {
  policy.observe_hidden(0, rows_of(a.data(), a.size(), 1));
  policy.observe_hidden(1, rows_of(b.data(), b.size(), 1));
}

/// The score of each decoded token, one a step, of vectors that differ by `a` and `b`.
template <class P>
std::vector<float> scores_of(P& policy, const std::vector<float>& a, const std::vector<float>& b) {
  float sum_a = 0;
  float sum_b = 0;
  std::vector<float> scores;
  for (std::size_t t = 0; t < a.size(); ++t) {
    sum_a += a[t];
    sum_b += b[t];
    policy.append(1);
    observe(policy, {sum_a}, {sum_b});
    scores.push_back(policy.method().scores().back());
  }
  return scores;
}

std::string error_of(const EpiKV::Options& options, const CacheShape& shape = kShape) {
  try {
    const EpiKV policy(options, shape);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

/// `steps` random vectors, coarse enough for equal differences.
std::vector<float> coarse_walk(std::size_t steps, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> step(-2, 2);
  std::vector<float> walk;
  int sum = 0;
  for (std::size_t t = 0; t < steps; ++t)
    walk.push_back(static_cast<float>(sum += step(random)));
  return walk;
}

// ---------------------------------------------------------------------------------- the values

// w = 3, g_A = 1,2,4,1,3, g_B = 2,2,1,5,2: reference values of the paper's notes, section 1.10.
TEST(EpiKV, MeetsHandWorkedValues) {
  const std::vector<float> a = {1, 2, 4, 1, 3};
  const std::vector<float> b = {2, 2, 1, 5, 2};
  const std::vector<float> z = {0, .999998F, 2.750515701F, -2.441856249F, .659493067F};
  const std::vector<float> raw = {-1, -.5F, .666666667F, -.333333333F, 0};
  EpiKV z_policy(options_of(8, 0, 3), kShape);
  EpiKVRaw raw_policy(options_of<EpiKVRaw>(8, 0, 3), kShape);
  z_policy.begin(1);
  observe(z_policy, {0}, {0});
  raw_policy.begin(1);
  observe(raw_policy, {0}, {0});
  const std::vector<float> actual_z = scores_of(z_policy, a, b);
  const std::vector<float> actual_raw = scores_of(raw_policy, a, b);
  for (std::size_t t = 0; t < a.size(); ++t) {
    EXPECT_NEAR(actual_z[t], z[t], 2e-6) << t;
    EXPECT_NEAR(actual_raw[t], raw[t], 1e-6) << t;
  }
  EXPECT_EQ(z_policy.method().scores()[0], kNone);  // the prompt has no score
}

// Band A is layers 0 and 1 with g = (1, 3) and (2, 2), so the mean is 2 both times: z is 0, where
// the z-scores of the two layers alone are 1 and 0. The mean over layers comes first.
TEST(EpiKVBands, AveragesDifferencesBeforeTheZScore) {
  EpiKVBands::Options options;
  options.budget = 8;
  options.recent_window = 0;
  options.layers_a = {0, 1};
  options.layers_b = {2};
  const CacheShape shape{.num_layers = 3, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  EpiKVBands policy(options, shape);
  policy.begin(1);
  const auto feed = [&](float h0, float h1, float h2) {
    const std::vector<float> hidden = {h0, h1, h2};
    for (std::size_t l = 0; l < 3; ++l)
      policy.observe_hidden(l, rows_of(&hidden[l], 1, 1));
  };
  feed(0, 0, 0);
  policy.append(1);
  feed(1, 3, 1);  // g = 1, 3 | 1
  policy.append(1);
  feed(3, 5, 5);                                              // g = 2, 2 | 4
  EXPECT_NEAR(policy.method().scores().back(), -1.0F, 1e-5);  // 1.29 * 0 - 1 * 1
  policy.append(1);
  feed(7, 11, 5);  // g = 4, 6 | 0: means 2, 2, 5 -> z = sqrt 2; 1, 4, 0 -> z = -0.980581
  EXPECT_NEAR(policy.method().scores().back(), 1.29 * 1.414213 + 0.980580, 1e-5);
}

// The mean, not the sum: g_A = (3 + 5) / 2.
TEST(EpiKVRaw, BandIsTheMeanOfItsLayers) {
  EpiKVRaw::Options options = options_of<EpiKVRaw>(8, 0);
  options.layers_a = {0, 1};
  options.weight_b = 0.0;
  EpiKVRaw policy(options, kShape);
  policy.begin(1);
  observe(policy, {0}, {0});
  EXPECT_EQ(scores_of(policy, {3}, {5}), (std::vector<float>{4}));
}

// Case O-12: (a) one token, (b) two, (c) a hundred equal vectors, (d) ten with w = 64.
TEST(EpiKV, WarmUpAndConstantVectorsScoreZero) {
  EpiKV one(options_of(8, 0), kShape);
  EXPECT_EQ(scores_of(one, {5}, {7}), (std::vector<float>{0}));
  EpiKV two(options_of(8, 0), kShape);
  const std::vector<float> pair = scores_of(two, {0, 5}, {0, 5});
  EXPECT_EQ(pair[0], 0.0F);
  EXPECT_TRUE(std::isfinite(pair[1]));
  EpiKV flat(options_of(128, 0), kShape);
  EXPECT_EQ(scores_of(flat, std::vector<float>(100, 0), std::vector<float>(100, 0)),
            std::vector<float>(100, 0.0F));
  EpiKV ten(options_of(128, 0), kShape);
  const std::vector<float> scores =
      scores_of(ten, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, std::vector<float>(10, 1));
  EXPECT_EQ(scores[0], 0.0F);
  for (const float score : scores)
    EXPECT_TRUE(std::isfinite(score));
}

// Equal scores keep the lower slot: with a constant stream the oldest stay.
TEST(EpiKV, TiesKeepTheOlderToken) {
  EpiKV policy(options_of(4, 1), kShape);
  EpiKVCache cache(kShape, 16);
  policy.begin(1);
  observe(policy, {0}, {0});
  cache.append(1);
  for (std::size_t t = 0; t < 8; ++t) {
    policy.append(1);
    cache.append(1);
    observe(policy, {0}, {0});
    if (!policy.should_evict())
      continue;
    const KeepMask& mask = policy.select(cache.view());
    cache.evict(mask);
    policy.apply(mask);
  }
  EXPECT_EQ(cache.positions(), (std::vector<std::size_t>{0, 1, 2, 8}));
}

// Case O-14.
TEST(EpiKV, HalfPrecisionVectorsDoNotOverflow) {
  EpiKVRaw policy(options_of<EpiKVRaw>(8, 0), kShape);
  const std::vector<std::uint16_t> zero = {0, 0};
  const std::vector<std::uint16_t> row = {0x60B0, 0x6240};  // 600, 800
  const auto feed = [&](const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
    policy.observe_hidden(0, {a.data(), 1, 2, 4, ElementType::kF16});
    policy.observe_hidden(1, {b.data(), 1, 2, 4, ElementType::kF16});
  };
  policy.begin(1);
  feed(zero, zero);
  policy.append(1);
  feed(row, zero);
  EXPECT_EQ(policy.method().scores().back(), 1000.0F);
}

// Standing decision: a bad vector makes two bad differences, which enter no window; their tokens
// score 0 and are counted. The other layer's window goes on.
TEST(EpiKV, NonFiniteVectorScoresZeroTwice) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EpiKVRaw policy(options_of<EpiKVRaw>(16, 0, 8), kShape);
  policy.begin(1);
  observe(policy, {0}, {0});
  std::vector<float> scores;
  const std::vector<float> a = {3, nan, 3, 4};
  const std::vector<float> b = {1, 3, 6, 10};
  for (std::size_t t = 0; t < 4; ++t) {
    policy.append(1);
    observe(policy, {a[t]}, {b[t]});
    scores.push_back(policy.method().scores().back());
  }
  // g_A = 3, -, -, 1 with mean 2 at the end; g_B = 1, 2, 3, 4 with mean 2.5.
  EXPECT_EQ(scores, (std::vector<float>{2, 0, 0, -0.5F}));
  EXPECT_EQ(policy.counters().non_finite, 2U);
}

// ------------------------------------------------------------------------------------- options

TEST(EpiKV, LayersFollowTheDepth) {
  const auto wanted = [](auto policy, std::size_t depth) {
    std::vector<std::size_t> layers;
    for (std::size_t l = 0; l < depth; ++l) {
      if (policy.wants_hidden(l))
        layers.push_back(l);
    }
    return layers;
  };
  const auto flat = [&](std::size_t depth) {
    CacheShape shape = kShape;
    shape.num_layers = depth;
    return wanted(EpiKV({.budget = 8}, shape), depth);
  };
  using Layers = std::vector<std::size_t>;
  EXPECT_EQ(flat(32), (Layers{10, 21}));
  EXPECT_EQ(flat(30), (Layers{9, 20}));   // 9.375, 19.6875
  EXPECT_EQ(flat(16), (Layers{5, 11}));   // 5, 10.5 half up
  EXPECT_EQ(flat(80), (Layers{25, 53}));  // 25, 52.5
  EXPECT_EQ(flat(4), (Layers{1, 3}));
  EXPECT_EQ(flat(2), (Layers{1}));  // both: there is no difference to take
  EXPECT_EQ(flat(1), (Layers{0}));
  CacheShape shape = kShape;
  shape.num_layers = 32;
  EXPECT_EQ(wanted(EpiKVBands({.budget = 8}, shape), 32),
            (Layers{7, 8, 9, 10, 11, 12, 13, 18, 19, 20, 21, 22, 23, 24, 25}));
  EXPECT_EQ(wanted(EpiKV({.budget = 8, .layers_a = {3}, .layers_b = {30}}, shape), 32),
            (Layers{3, 30}));
}

TEST(EpiKV, RecencyIsAQuarterOfTheBudgetUpTo128) {
  const Sequence sequence("test", kShape, MaskScope::kModel);
  const auto recency = [&](const EpiKV::Options& options) {
    return EpiKV(options, kShape).method().protection(sequence).recent_window;
  };
  EXPECT_EQ(recency({.budget = 3}), 0U);
  EXPECT_EQ(recency({.budget = 100}), 25U);
  EXPECT_EQ(recency({.budget = 512}), 128U);
  EXPECT_EQ(recency({.budget = 4096}), 128U);
  EXPECT_EQ(recency({.budget = 100, .recent_window = 7}), 7U);
  EXPECT_EQ(recency({.budget = Budget::total(200)}), 25U);  // two lanes: 100 each
}

TEST(EpiKV, RefusesWhatCannotWork) {
  EXPECT_NE(error_of({.budget = Budget::keep_ratio(0.5)}).find("budget"), std::string::npos);
  EXPECT_NE(error_of({.budget = 8, .recent_window = 9}).find("budget = 8"), std::string::npos);
  EXPECT_NE(error_of({.budget = 8, .layers_a = {2}}).find("layers_a = 2"), std::string::npos);
  EXPECT_NE(error_of({.budget = 8, .layers_b = {0, 9}}).find("layers_b = 9"), std::string::npos);
  EXPECT_NE(error_of({.budget = 8, .window = 0}).find("window = 0"), std::string::npos);
  EXPECT_NE(error_of({.budget = 8, .window = 0}).find("EpiKV"), std::string::npos);
  EXPECT_EQ(error_of({.budget = 8}), "");
}

TEST(EpiKV, RefusesRowsThatDoNotFit) {
  EpiKV policy(options_of(8, 0), kShape);
  const std::vector<float> rows(8);
  policy.append(3);
  EXPECT_THROW(policy.observe_hidden(0, rows_of(rows.data(), 2, 1)), InvalidArgument);
  policy.observe_hidden(0, rows_of(rows.data(), 3, 2));
  EXPECT_THROW(policy.observe_hidden(1, rows_of(rows.data(), 3, 1)), InvalidArgument);
  EXPECT_THROW(policy.observe_hidden(2, rows_of(rows.data(), 3, 2)), InvalidArgument);
}

TEST(EpiKV, NeedsHiddenStatesOnly) {
  static_assert(EpiKV::kRequiredInputs == Inputs::kHiddenStates);
  static_assert(is_flash_attention_compatible<EpiKV>);
  static_assert(!PolicyForInputs<EpiKV, Inputs::kKeys | Inputs::kValues | Inputs::kAttention>);
  const EpiKV policy(options_of(8, 0), kShape);
  EXPECT_FALSE(policy.wants_cache());
  EXPECT_FALSE(policy.wants_attention(0));
}

// -------------------------------------------------------------------------------- how it is fed

TEST(EpiKV, SeveralTokensAStepScoreOneByOne) {
  const std::vector<float> a = coarse_walk(60, 1);
  const std::vector<float> b = coarse_walk(60, 2);
  std::vector<float> expected;
  for (const std::size_t step : {1U, 4U, 7U, 60U}) {
    EpiKV policy(options_of(128, 0, 16), kShape);
    policy.begin(1);
    observe(policy, {0}, {0});
    for (std::size_t t = 0; t < 60; t += step) {
      const std::size_t count = std::min<std::size_t>(step, 60 - t);
      policy.append(count);
      // Layers in either order, and more rows than new tokens.
      const std::size_t extra = std::min<std::size_t>(t, 2);
      const auto rows = [&](const std::vector<float>& walk) {
        return rows_of(walk.data() + t - extra, count + extra, 1);
      };
      policy.observe_hidden(step % 2, rows(step % 2 == 0 ? a : b));
      policy.observe_hidden(1 - step % 2, rows(step % 2 == 0 ? b : a));
    }
    const std::vector<float> scores(policy.method().scores().begin() + 1,
                                    policy.method().scores().end());
    if (step == 1)
      expected = scores;
    EXPECT_EQ(scores, expected) << step;
  }
}

// One chunk or many, all rows or those of the last token: only that one counts.
TEST(EpiKV, PromptChunksDoNotMatter) {
  const std::vector<float> prompt = {4, 9, 2, 8, 3, 5};
  const auto after = [](EpiKVRaw& policy) {
    policy.append(1);
    observe(policy, {8}, {1});
    return policy.method().scores().back();  // |8 - 5| - |1 - 5| = -1
  };
  EpiKVRaw whole(options_of<EpiKVRaw>(16, 0), kShape);
  whole.begin(6);
  observe(whole, prompt, prompt);
  EXPECT_EQ(after(whole), -1.0F);
  EpiKVRaw chunked(options_of<EpiKVRaw>(16, 0), kShape);
  chunked.begin(6);
  for (std::size_t t = 0; t < 6; t += 2) {
    chunked.append(2);
    observe(chunked, {prompt[t], prompt[t + 1]}, {prompt[t], prompt[t + 1]});
  }
  EXPECT_EQ(after(chunked), -1.0F);
  EpiKVRaw last(options_of<EpiKVRaw>(16, 0), kShape);
  last.begin(6);
  last.append(6);
  observe(last, {5}, {5});
  EXPECT_EQ(after(last), -1.0F);
  EXPECT_EQ(std::count(last.method().scores().begin(), last.method().scores().end(), kNone), 6);
}

// A step of four tokens, two of them the end of the prompt.
TEST(EpiKV, FirstDecodedTokensDifferFromTheLastOfThePrompt) {
  EpiKVRaw policy(options_of<EpiKVRaw>(16, 0), kShape);
  policy.begin(2);
  EXPECT_THROW(policy.append(4), kvevict::InvalidArgument);  // a step ends where its prompt ends
  policy.append(2);
  observe(policy, {1, 2}, {0, 0});
  policy.append(2);
  observe(policy, {4, 8}, {0, 0});
  // g_A = 2, 4: means 2, 3.
  EXPECT_EQ(std::vector<float>(policy.method().scores().begin(), policy.method().scores().end()),
            (std::vector<float>{kNone, kNone, 2, 3}));
}

TEST(EpiKV, MissingPromptVectorIsADifferenceOfZero) {
  EpiKVRaw policy(options_of<EpiKVRaw>(16, 0), kShape);
  policy.begin(3);
  policy.append(3);
  // g_A = 0, 4 and g_B = 0, 0: the zero is in the window, so the mean is 2.
  EXPECT_EQ(scores_of(policy, {7, 4}, {0, 0}), (std::vector<float>{0, 2}));
}

TEST(EpiKV, HandingOverTwiceChangesNothing) {
  EpiKVRaw policy(options_of<EpiKVRaw>(16, 0), kShape);
  policy.append(1);
  observe(policy, {0}, {0});
  policy.append(1);
  const std::vector<float> row = {6};
  policy.observe_hidden(0, rows_of(row.data(), 1, 1));
  policy.observe_hidden(0, rows_of(row.data(), 1, 1));
  policy.observe_hidden(1, rows_of(row.data(), 1, 1));
  EXPECT_EQ(policy.method().scores().back(), 0.0F);
  policy.append(1);
  observe(policy, {6}, {10});  // g_A = 0, 6, 0; g_B = 0, 6, 4
  EXPECT_NEAR(policy.method().scores().back(), 2.0F - 10.0F / 3.0F, 1e-6);
}

// A step whose layers were not handed over shows in the counter, and its token goes first.
TEST(EpiKV, TokenWithoutScoreGoesFirst) {
  EpiKV policy(options_of(3, 0), kShape);
  EpiKVCache cache(kShape, 8);
  for (std::size_t t = 0; t < 4; ++t) {
    policy.append(1);
    cache.append(1);
    if (t != 1)
      observe(policy, {1}, {1});
  }
  ASSERT_TRUE(policy.should_evict());
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(cache.evict(mask), (std::vector<std::size_t>{1}));
  policy.apply(mask);
  EXPECT_EQ(policy.counters().non_finite, 1U);
}

// Stages behind it see what comes after the first prompt alone: its first decoded token is pooled
// with the next one. Tokens of a further prompt count as 0.
struct PooledRawRecipe : EpiKVRecipe<EpiKVRollingMean> {
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return EpiKVRecipe<EpiKVRollingMean>::pipeline(options, shape) |
           Pool{{.kind = PoolKind::kMax, .kernel_size = 3}};
  }
};
TEST(EpiKV, StagesSeeDecodedTokensAlone) {
  Policy<Composed<PooledRawRecipe>> policy(options_of<EpiKVRaw>(16, 0, 1), kShape);
  EpiKVCache cache(kShape, 8);
  const auto scores = [&] {
    const auto view = cache.view();
    const ViewRef ref(view);
    Scratch scratch;
    std::vector<float> out(cache.positions().size());
    policy.method().score({ref, policy.sequence(), kernels::best(), scratch}, 0, out);
    return out;
  };
  policy.begin(2);
  policy.append(2);
  cache.append(2);
  observe(policy, {0}, {0});
  EXPECT_EQ(scores(), (std::vector<float>{0, 0}));
  for (const float a : {-5.0F, -8.0F}) {  // g_B = 5, 3
    policy.append(1);
    cache.append(1);
    observe(policy, {0}, {a});
  }
  EXPECT_EQ(scores(), (std::vector<float>{0, 0, -3, -3}));
  policy.begin(1);
  policy.append(1);
  cache.append(1);
  observe(policy, {0}, {0});
  policy.append(1);
  cache.append(1);
  observe(policy, {0}, {4});  // g_B = 4
  EXPECT_EQ(policy.method().scores().back(), -4.0F);
  EXPECT_EQ(scores(), (std::vector<float>{0, 0, -3, 0, 0, 0}));
}

TEST(EpiKV, RowStrideIsRespected) {
  EpiKVRaw policy(options_of<EpiKVRaw>(16, 0), kShape);
  policy.begin(1);
  observe(policy, {0}, {0});
  policy.append(2);
  const std::vector<float> padded = {3, -100, 5, -100};
  const HiddenRows rows{padded.data(), 2, 1, 2 * sizeof(float), ElementType::kF32};
  policy.observe_hidden(0, rows);
  const std::vector<float> zeros(2);
  policy.observe_hidden(1, rows_of(zeros.data(), 2, 1));
  EXPECT_EQ(policy.method().scores()[1], 3.0F);
  EXPECT_EQ(policy.method().scores()[2], 2.5F);
}

// --------------------------------------------------------------------------- truncate and forks

// Case O-26 for state: four drafts, one accepted, then on as if never drafted.
TEST(EpiKV, RollbackWithinTheReserveLeavesNoTrace) {
  const std::vector<float> a = coarse_walk(80, 3);
  const std::vector<float> b = coarse_walk(80, 4);
  EpiKV straight(options_of(256, 0, 16), kShape);
  EpiKV drafted(options_of(256, 0, 16), kShape);
  for (std::size_t t = 0; t < 80; ++t) {
    for (EpiKV* policy : {&straight, &drafted}) {
      policy->append(1);
      observe(*policy, {a[t]}, {b[t]});
    }
    const std::size_t draft = t % 17;  // 0 to 16 tokens, the default of max_rollback
    drafted.append(draft);
    const std::vector<float> wild(draft, 1000.0F);
    if (draft > 0)
      observe(drafted, wild, wild);
    drafted.truncate(t + 1);
    ASSERT_EQ(drafted.method().scores().size(), t + 1);
  }
  EXPECT_TRUE(std::equal(straight.method().scores().begin(), straight.method().scores().end(),
                         drafted.method().scores().begin()));
}

// Two vectors are kept; three tokens are taken back: the next difference is 0.
TEST(EpiKV, DeeperRollbackIsAMissingVector) {
  EpiKVRaw::Options options = options_of<EpiKVRaw>(64, 0, 2);
  options.max_rollback = 1;
  EpiKVRaw policy(options, kShape);
  policy.begin(1);
  observe(policy, {0}, {0});
  scores_of(policy, {1, 1, 1, 1, 1}, {0, 0, 0, 0, 0});
  policy.truncate(3);
  policy.append(1);
  observe(policy, {100}, {0});
  // The samples of three newer tokens are gone, so is what was older than three: only 0 is left.
  EXPECT_EQ(policy.method().scores().back(), 0.0F);
  policy.append(1);
  observe(policy, {106}, {0});
  EXPECT_EQ(policy.method().scores().back(), 3.0F);  // mean of 0 and 6
}

TEST(EpiKV, ForkAndResetAreIndependent) {
  EpiKVRaw policy(options_of<EpiKVRaw>(64, 0), kShape);
  policy.begin(1);
  observe(policy, {0}, {0});
  scores_of(policy, {3}, {1});
  EpiKVRaw fork = policy;
  fork.append(1);
  observe(fork, {50}, {1});
  policy.append(1);
  observe(policy, {4}, {1});
  EXPECT_EQ(policy.method().scores().back(), 2.0F - 0.5F);
  policy.reset();
  EXPECT_TRUE(policy.method().scores().empty());
  policy.begin(1);
  observe(policy, {0}, {0});
  EXPECT_EQ(scores_of(policy, {3}, {1}), (std::vector<float>{2}));
  // A vector of the request before is not the token before.
  policy.reset();
  policy.begin(2);
  policy.append(2);
  EXPECT_EQ(scores_of(policy, {9}, {5}), (std::vector<float>{0}));
}

// The first token behind a further prompt differs from that prompt's last one; windows go on.
TEST(EpiKV, SecondPromptIsKeptAndNotScored) {
  EpiKVRaw policy(options_of<EpiKVRaw>(6, 0), kShape);
  EpiKVCache cache(kShape, 16);
  const auto append = [&](std::size_t count) {
    policy.append(count);
    cache.append(count);
  };
  policy.begin(2);
  append(2);
  observe(policy, {0}, {0});
  append(2);
  observe(policy, {4, 5}, {0, 0});  // means 4, 2.5
  policy.begin(3);
  append(3);
  EXPECT_FALSE(policy.should_evict());  // never inside a prompt
  observe(policy, {20}, {0});
  append(1);
  observe(policy, {29}, {0});  // g = 9: mean of 4, 1, 9
  EXPECT_NEAR(policy.method().scores().back(), 14.0F / 3, 1e-5);
  ASSERT_TRUE(policy.should_evict());
  // Eight tokens, five of prompts: one decoded token stays, the best.
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(cache.evict(mask), (std::vector<std::size_t>{2, 3}));
  policy.apply(mask);
  EXPECT_EQ(policy.method().scores().size(), 6U);
}

// Of the newest two one is the second prompt's: of what was decoded before it the best stays, not
// the newest.
TEST(EpiKV, ASecondPromptTakesUpTheRecentWindow) {
  EpiKVRaw policy(options_of<EpiKVRaw>(7, 2), kShape);
  EpiKVCache cache(kShape, 16);
  const auto append = [&](std::size_t count) {
    policy.append(count);
    cache.append(count);
  };
  policy.begin(2);
  append(2);
  observe(policy, {0}, {0});
  append(2);
  observe(policy, {4, 5}, {0, 0});  // means 4, 2.5
  policy.begin(3);
  append(3);
  observe(policy, {20}, {0});
  append(1);
  observe(policy, {29}, {0});
  EXPECT_EQ(cache.evict(policy.select(cache.view())), (std::vector<std::size_t>{3}));
}

// ------------------------------------------------------------------------------------- budgets

TEST(EpiKV, CutsAtTheBudgetAndNotBefore) {
  EpiKV policy(options_of(5, 1), kShape);
  EpiKVCache cache(kShape, 16);
  policy.begin(2);
  policy.append(2);
  cache.append(2);
  observe(policy, {0}, {0});
  for (std::size_t t = 0; t < 3; ++t) {
    policy.append(1);
    cache.append(1);
    observe(policy, {static_cast<float>(t * t)}, {0});
    EXPECT_FALSE(policy.should_evict()) << t;
  }
  policy.append(1);
  cache.append(1);
  observe(policy, {50}, {0});
  ASSERT_TRUE(policy.should_evict());
  EXPECT_EQ(policy.select(cache.view()).count(0, 0), 5U);
  EXPECT_EQ(policy.select(cache.view()), policy.select(cache.view()));
}

TEST(EpiKV, PromptOverTheBudgetStaysAlone) {
  EpiKV policy(options_of(4, 2), kShape);
  EpiKVCache cache(kShape, 16);
  policy.begin(6);
  policy.append(6);
  cache.append(6);
  EXPECT_FALSE(policy.should_evict());
  for (std::size_t t = 0; t < 3; ++t) {
    policy.append(1);
    cache.append(1);
    observe(policy, {static_cast<float>(t)}, {0});
    ASSERT_TRUE(policy.should_evict());
    const KeepMask& mask = policy.select(cache.view());
    EXPECT_EQ(cache.evict(mask), (std::vector<std::size_t>{6 + t}));
    policy.apply(mask);
  }
  EXPECT_EQ(policy.counters().budget_not_reached, 3U);
}

TEST(EpiKV, EmptyCacheHasAnEmptyMask) {
  EpiKV policy(options_of(4, 1), kShape);
  EpiKVCache cache(kShape, 4);
  EXPECT_FALSE(policy.should_evict());
  EXPECT_EQ(policy.select(cache.view()).count(0, 0), 0U);
}

// Frozen scores make the heap exact: the same tokens go, step after step, ties included.
TEST(EpiKV, HeapFormEqualsSelectionStepByStep) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
    };
    const std::size_t budget = 1 + below(40);
    const std::size_t prompt = below(20);
    const std::size_t steps = 150;
    // A short window over few distinct differences gives many equal scores.
    const EpiKV::Options options = options_of(budget, below(budget + 1), 2 + below(4));
    EpiKV masks(options, kShape);
    EpiKV scorer(options, kShape);
    StreamingTopK heap = scorer.method().streaming();
    EpiKVCache cache(kShape, prompt + steps);
    for (EpiKV* policy : {&masks, &scorer}) {
      policy->begin(prompt);
      policy->append(prompt);
      if (prompt > 0)
        observe(*policy, {0}, {0});
    }
    cache.append(prompt);
    heap.push_prompt(prompt);
    const std::vector<float> a = coarse_walk(steps, 2 * seed);
    const std::vector<float> b = coarse_walk(steps, 2 * seed + 1);
    for (std::size_t t = 0; t < steps; ++t) {
      for (EpiKV* policy : {&masks, &scorer}) {
        policy->append(1);
        observe(*policy, {a[t]}, {b[t]});
      }
      cache.append(1);
      std::vector<std::size_t> gone;
      if (masks.should_evict()) {
        const KeepMask& mask = masks.select(cache.view());
        gone = cache.evict(mask);
        masks.apply(mask);
      }
      heap.push(scorer.method().scores().back());
      std::vector<std::size_t> popped;
      while (const std::optional<Position> position = heap.pop()) {
        popped.push_back(static_cast<std::size_t>(*position));
      }
      ASSERT_EQ(popped, gone) << "seed " << seed << ", step " << t;
    }
    EXPECT_EQ(heap.size(), cache.seq_len());
  }
}

}  // namespace
}  // namespace kvevict
