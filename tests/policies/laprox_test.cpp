#include "kvevict/policies/laprox.hpp"

#include "kvevict/option_text.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace kvevict;
using namespace kvevict_test;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr Pooling kNoPooling{.kernel_size = 1};
constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kPair{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kTwoHeads{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};
constexpr CacheShape kTwoLayers{
    .num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kModel{.num_layers = 3, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = 5};
constexpr std::size_t kHidden = 11;

using Projection = std::shared_ptr<const OutputProjection>;

/// W_O of every layer, [num_q_heads * head_dim, hidden_size].
Projection project(const CacheShape& shape, std::size_t hidden_size,
                   std::initializer_list<std::vector<float>> weights) {
  auto projection = std::make_shared<OutputProjection>(shape, hidden_size);
  std::size_t layer = 0;
  for (const std::vector<float>& weight : weights)
    projection->set_layer(layer++, weight.data());
  return projection;
}

Projection random_projection(const CacheShape& shape, Random& random) {
  auto projection = std::make_shared<OutputProjection>(shape, kHidden);
  std::vector<float> weight(shape.num_q_heads * shape.head_dim * kHidden);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    for (float& w : weight)
      w = random.eighths();
    projection->set_layer(layer, weight.data());
  }
  return projection;
}

void set_value(WindowCache& cache, std::size_t layer, std::size_t head, std::size_t slot,
               std::initializer_list<float> value) {
  std::copy(value.begin(), value.end(), cache.value(layer, head, slot));
}

/// A prompt whose last row of attention is given for each layer; every layer [q_head][slot].
void feed_last_rows(LaProx& policy, WindowCache& cache,
                    const std::vector<std::vector<std::vector<float>>>& layers) {
  const std::size_t len = layers[0][0].size();
  cache.append(len);
  policy.begin(len);
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<std::vector<std::vector<float>>> rows;
    for (const std::vector<float>& row : layers[layer])
      rows.push_back({row});
    policy.observe_attention(layer, GivenRows(rows).rows());
  }
  policy.end_prefill(cache.view());
}

// papers.md 2.9: two query heads on one KV head, w = 2, W1 = I, W2 = diag(2, .5). The window's own
// columns are zero, so the three slots of the example are the prefix.
struct Example {
  Projection projection = project(kPair, 2, {{1, 0, 0, 1, 2, 0, 0, .5F}});

  [[nodiscard]] LaProxOptions options(GroupReading reading) const {
    return {.budget = 4,
            .observation_window = 2,
            .group_reading = reading,
            .pooling = kNoPooling,
            .output_projection = projection};
  }
  static void feed(LaProx& policy, WindowCache& cache) {
    set_value(cache, 0, 0, 0, {1, 0});
    set_value(cache, 0, 0, 1, {0, 2});
    set_value(cache, 0, 0, 2, {1, 1});
    feed_rows(
        policy, cache,
        {{{.5F, .3F, .2F, 0}, {.1F, .6F, .3F, 0, 0}}, {{.2F, .2F, .6F, 0}, {.4F, .4F, .2F, 0, 0}}});
  }
};

TEST(LaProx, FourReadingsOfAGroup) {
  const Example example;
  const auto check = [&](GroupReading reading, const std::vector<float>& expected,
                         const Slots& kept) {
    LaProx policy(example.options(reading), kPair);
    WindowCache cache(kPair, 5);
    Example::feed(policy, cache);
    const std::vector<float> p = scores_of(policy, cache);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(p[i], expected[i], 1e-6F) << i;
    EXPECT_EQ(p[3], 0.0F);  // the window is no candidate
    EXPECT_EQ(kept_slots(policy.select(cache.view())), kept);
  };
  check(GroupReading::kHeadProducts, {.702164571F, .894427191F, .906871216F}, {1, 2, 3, 4});
  check(GroupReading::kMeanNorms, {.645174395F, .838525492F, .819757860F}, {1, 2, 3, 4});
  check(GroupReading::kSummed, {1.290348790F, 1.677050983F, 1.582126733F}, {1, 2, 3, 4});
  check(GroupReading::kExact, {1.272792206F, 1.788854382F, 1.691153453F}, {1, 2, 3, 4});
}

// The first of them ranks slot 2 before slot 1, the others the other way round.
TEST(LaProx, ReadingsRankDifferently) {
  const Example example;
  for (const auto& [reading, first] : {std::pair{GroupReading::kHeadProducts, std::size_t{2}},
                                       std::pair{GroupReading::kMeanNorms, std::size_t{1}},
                                       std::pair{GroupReading::kSummed, std::size_t{1}},
                                       std::pair{GroupReading::kExact, std::size_t{1}}}) {
    LaProxOptions options = example.options(reading);
    options.budget = 3;
    LaProx policy(options, kPair);
    WindowCache cache(kPair, 5);
    Example::feed(policy, cache);
    EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{first, 3, 4}));
  }
}

// The indicator ablation on the same numbers: |mean A| = (.35, .25), (.25, .5), (.4, .25), and
// |v| = 1, 2, sqrt(2).
TEST(LaProx, FactorsAlone) {
  const Example example;
  const std::vector<float> attention{std::hypot(.35F, .25F), std::hypot(.25F, .5F),
                                     std::hypot(.4F, .25F)};
  const std::vector<float> norms{1.0F, 2.0F, std::sqrt(2.0F)};
  for (const GroupReading reading :
       {GroupReading::kMeanNorms, GroupReading::kSummed, GroupReading::kExact}) {
    for (const bool with_norm : {false, true}) {
      LaProxOptions options = example.options(reading);
      options.value_factor = with_norm ? ValueFactor::kNorm : ValueFactor::kNone;
      options.output_projection = nullptr;
      LaProx policy(options, kPair);
      WindowCache cache(kPair, 5);
      Example::feed(policy, cache);
      const std::vector<float> p = scores_of(policy, cache);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(p[i], attention[i] * (with_norm ? norms[i] : 1.0F), 1e-6F);
      }
    }
  }
}

// The exact reading is the Frobenius norm of what the token adds to the output of the window's
// rows: here formed in full, sum_h A_h[:, i] (v_i W^h), [rows, hidden_size].
TEST(LaProx, ExactReadingIsTheTrueContribution) {
  constexpr std::size_t kLen = 20;
  constexpr std::size_t kWindow = 4;
  const CacheShape shape{.num_layers = 1, .num_q_heads = 3, .num_kv_heads = 1, .head_dim = 5};
  Random random(2);
  WindowCache cache(shape, kLen);
  cache.fill(random);
  std::vector<float> weight(3 * 5 * kHidden);
  for (float& w : weight)
    w = random.eighths();
  // Head 1 undoes most of head 0: a contribution that cancels.
  for (std::size_t i = 0; i < 5 * kHidden; ++i) {
    weight[5 * kHidden + i] = -weight[i] + (i % 7 == 0 ? .125F : 0.0F);
  }
  std::vector<std::vector<std::vector<float>>> rows(3);
  for (auto& head : rows) {
    for (std::size_t r = 0; r < kWindow; ++r) {
      head.emplace_back(kLen - kWindow + 1 + r);
      for (float& a : head.back())
        a = static_cast<float>(random.below(64)) / 512.0F;
    }
  }
  LaProx policy({.budget = kLen,
                 .observation_window = kWindow,
                 .group_reading = GroupReading::kExact,
                 .pooling = kNoPooling,
                 .output_projection = project(shape, kHidden, {weight})},
                shape);
  feed_rows(policy, cache, rows);
  const std::vector<float> p = scores_of(policy, cache);
  for (std::size_t slot = 0; slot < kLen - kWindow; ++slot) {
    double squares = 0;
    for (std::size_t r = 0; r < kWindow; ++r) {
      for (std::size_t d = 0; d < kHidden; ++d) {
        double sum = 0;
        for (std::size_t h = 0; h < 3; ++h) {
          for (std::size_t c = 0; c < 5; ++c) {
            sum += static_cast<double>(rows[h][r][slot]) *
                   static_cast<double>(cache.value(0, 0, slot)[c]) *
                   static_cast<double>(weight[(h * 5 + c) * kHidden + d]);
          }
        }
        squares += sum * sum;
      }
    }
    EXPECT_NEAR(p[slot], std::sqrt(squares), 1e-5 * (1 + std::sqrt(squares))) << slot;
  }
}

// Two heads that undo each other, A / 3 with -3 W, leave nothing; rounding must not make it the
// root of a negative number.
TEST(LaProx, ExactReadingOfHeadsThatCancel) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 5};
  Random random(5);
  WindowCache cache(shape, 100);
  cache.fill(random);
  std::vector<float> weight(5 * kHidden);
  for (float& w : weight)
    w = random.eighths() / 3.0F;
  for (std::size_t i = 0; i < 5 * kHidden; ++i)
    weight.push_back(-3.0F * weight[i]);
  std::vector<float> row(100);
  for (float& a : row)
    a = static_cast<float>(random.below(64)) / 700.0F;
  LaProx policy({.budget = 50,
                 .observation_window = 1,
                 .group_reading = GroupReading::kExact,
                 .pooling = kNoPooling,
                 .output_projection = project(shape, kHidden, {weight})},
                shape);
  std::vector<float> third = row;
  for (float& a : third)
    a /= 3.0F;
  feed_last_rows(policy, cache, {{row, third}});
  for (const float p : scores_of(policy, cache))
    EXPECT_NEAR(p, 0.0F, 1e-3F);
  EXPECT_EQ(policy.select(cache.view()).total_count(), 50U);
}

// A group of one leaves nothing to read: all four agree up to rounding.
TEST(LaProx, ReadingsAgreeWithoutGroups) {
  const CacheShape shape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 5};
  Random random(4);
  WindowCache filled(shape, 40);
  filled.fill(random);
  const WindowQueries queries(shape, 4, random);
  const Projection projection = random_projection(shape, random);
  std::vector<KeepMask> masks;
  for (const GroupReading reading : {GroupReading::kHeadProducts, GroupReading::kMeanNorms,
                                     GroupReading::kSummed, GroupReading::kExact}) {
    WindowCache cache = filled;
    LaProx policy({.budget = 16,
                   .observation_window = 4,
                   .group_reading = reading,
                   .pool_stage = PoolStage::kProduct,
                   .output_projection = projection},
                  shape);
    feed_prompt(policy, cache, 40, queries, 40);
    masks.push_back(policy.select(cache.view()));
  }
  for (const KeepMask& mask : masks)
    EXPECT_EQ(mask, masks[0]);
  EXPECT_EQ(masks[0].total_count(), 4U * 16U);
}

// Attention (.4, .1, .1, .2), values 1, 4, 1, 1, average of three with zeros counted.
// Attention pooled: .5, .6, .4, .3 over three; times the values. The product pooled: .4, .4, .1, .2
// becomes .8, .9, .7, .3 over three.
TEST(LaProx, PoolingBeforeOrAfterTheValues) {
  for (const auto& [stage, expected] :
       {std::pair{PoolStage::kAttention, std::vector<float>{.5F, 2.4F, .4F, .3F}},
        std::pair{PoolStage::kProduct, std::vector<float>{.8F, .9F, .7F, .3F}}}) {
    LaProx policy({.budget = 5,
                   .observation_window = 1,
                   .pooling = {.kernel_size = 3},
                   .pool_stage = stage,
                   .output_projection = project(kOneHead, 2, {{1, 0, 0, 1}})},
                  kOneHead);
    WindowCache cache(kOneHead, 5);
    for (std::size_t slot = 0; slot < 4; ++slot) {
      set_value(cache, 0, 0, slot, {slot == 1 ? 4.0F : 1.0F, 0});
    }
    feed_last_rows(policy, cache, {{{.4F, .1F, .1F, .2F, .2F}}});
    const std::vector<float> p = scores_of(policy, cache);
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(p[i], expected[i] / 3, 1e-6F) << i;
    EXPECT_EQ(p[4], 0.0F);
  }
}

// Case O-32: W_O [[1,1,1],[1,9,1]] is row-major: norms 1.732051 and 9.110434.
TEST(LaProx, OutputProjectionIsRowMajor) {
  LaProx policy({.budget = 2,
                 .observation_window = 1,
                 .pooling = kNoPooling,
                 .output_projection = project(kOneHead, 3, {{1, 1, 1, 1, 9, 1}})},
                kOneHead);
  WindowCache cache(kOneHead, 3);
  set_value(cache, 0, 0, 0, {1, 0});
  set_value(cache, 0, 0, 1, {0, 1});
  feed_last_rows(policy, cache, {{{.5F, .5F, 0}}});
  EXPECT_NEAR(scores_of(policy, cache)[0], .5F * 1.732051F, 1e-6F);
  EXPECT_NEAR(scores_of(policy, cache)[1], .5F * 9.110434F, 1e-6F);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{1, 2}));
}

// Case O-06: a global budget leaves a head of small scores with its window alone, unless min_keep,
// which counts the window, gives it more.
TEST(LaProx, FloorPerHead) {
  const auto kept = [](std::size_t min_keep) {
    LaProx policy({.budget = Budget::total(4),
                   .observation_window = 1,
                   .window_extra = true,
                   .min_keep = min_keep,
                   .value_factor = ValueFactor::kNone,
                   .pooling = kNoPooling},
                  kTwoHeads);
    WindowCache cache(kTwoHeads, 5);
    feed_last_rows(policy, cache, {{{.4F, .3F, .2F, .09F, 0}, {.004F, .003F, .002F, .001F, 0}}});
    const KeepMask& mask = policy.select(cache.view());
    return std::pair(kept_slots(mask, 0, 0), kept_slots(mask, 0, 1));
  };
  EXPECT_EQ(kept(0), std::pair(range(0, 5), Slots{4}));
  EXPECT_EQ(kept(1), std::pair(range(0, 5), Slots{4}));
  EXPECT_EQ(kept(2), std::pair(Slots{0, 1, 2, 4}, Slots{0, 4}));
  EXPECT_TRUE(refuses(
      [] {
        LaProx({.budget = Budget::total(1),
                .observation_window = 1,
                .window_extra = true,
                .min_keep = 2,
                .value_factor = ValueFactor::kNone},
               kTwoHeads);
      },
      {"LaProx", "budget = 1", "min_keep"}));
}

// Scores (4, 3, 2, 1) in the shallow layer and 10 (8, 1, .5, .5) in the deep one, window of one
// token, four more entries. As they are, the deep layer takes 80, 10, 5, 5 and the shallow one
// starves; divided by their sums, 10 and 100, they are (.4, .3, .2, .1) and (.8, .1, .05, .05).
TEST(LaProx, WhoSharesABudget) {
  const auto kept = [](Competition competition, LayerNormaliser normaliser) {
    LaProx policy({.budget = 3,
                   .observation_window = 1,
                   .value_factor = ValueFactor::kNorm,
                   .pooling = kNoPooling,
                   .competition = competition,
                   .normaliser = normaliser},
                  kTwoLayers);
    WindowCache cache(kTwoLayers, 5);
    for (std::size_t slot = 0; slot < 5; ++slot) {
      set_value(cache, 0, 0, slot, {10, 0});
      set_value(cache, 1, 0, slot, {100, 0});
    }
    feed_last_rows(policy, cache, {{{.4F, .3F, .2F, .1F, 0}}, {{.8F, .1F, .05F, .05F, 0}}});
    const KeepMask& mask = policy.select(cache.view());
    return std::pair(kept_slots(mask, 0, 0), kept_slots(mask, 1, 0));
  };
  EXPECT_EQ(kept(Competition::kModel, LayerNormaliser::kNone), std::pair(Slots{4}, range(0, 5)));
  EXPECT_EQ(kept(Competition::kModel, LayerNormaliser::kCandidates),
            std::pair(Slots{0, 1, 2, 4}, Slots{0, 4}));
  EXPECT_EQ(kept(Competition::kLayer, LayerNormaliser::kCandidates),
            std::pair(Slots{0, 1, 4}, Slots{0, 1, 4}));
  EXPECT_EQ(kept(Competition::kLane, LayerNormaliser::kCandidates),
            std::pair(Slots{0, 1, 4}, Slots{0, 1, 4}));
}

// Within a layer the heads may share, and then it matters which is larger.
TEST(LaProx, HeadsOfALayerShareOrNot) {
  const auto kept = [](Competition competition) {
    LaProx policy({.budget = 3,
                   .observation_window = 1,
                   .value_factor = ValueFactor::kNone,
                   .pooling = kNoPooling,
                   .competition = competition},
                  kTwoHeads);
    WindowCache cache(kTwoHeads, 5);
    feed_last_rows(policy, cache, {{{.4F, .3F, .2F, .1F, 0}, {.35F, .05F, .05F, .05F, .5F}}});
    const KeepMask& mask = policy.select(cache.view());
    return std::pair(kept_slots(mask, 0, 0), kept_slots(mask, 0, 1));
  };
  EXPECT_EQ(kept(Competition::kLayer), std::pair(Slots{0, 1, 2, 4}, Slots{0, 4}));
  EXPECT_EQ(kept(Competition::kLane), std::pair(Slots{0, 1, 4}, Slots{0, 1, 4}));
}

// Layer 0 sees (.3, .1) and .6 of its own window, layer 1 (.2, .1) and nothing. Over candidates
// the shares are (.75, .25) and (.67, .33), over all slots (.3, .1) and (.67, .33).
TEST(LaProx, NormaliserWithAndWithoutTheWindow) {
  const auto kept = [](LayerNormaliser normaliser) {
    LaProx policy({.budget = Budget::total(3),
                   .observation_window = 1,
                   .value_factor = ValueFactor::kNone,
                   .pooling = kNoPooling,
                   .normaliser = normaliser},
                  kTwoLayers);
    WindowCache cache(kTwoLayers, 3);
    feed_last_rows(policy, cache, {{{.3F, .1F, .6F}}, {{.2F, .1F, 0}}});
    EXPECT_NEAR(scores_of(policy, cache)[2], normaliser == LayerNormaliser::kAllSlots ? .6F : 0.0F,
                1e-6F);
    const KeepMask& mask = policy.select(cache.view());
    return std::pair(kept_slots(mask, 0, 0), kept_slots(mask, 1, 0));
  };
  EXPECT_EQ(kept(LayerNormaliser::kCandidates), std::pair(Slots{0, 2}, Slots{2}));
  EXPECT_EQ(kept(LayerNormaliser::kAllSlots), std::pair(Slots{2}, Slots{0, 2}));
}

// What is pinned competes with nothing and has no share: layer 0 divides .1, .1 by .2, layer 1
// divides .03, .01 by .04. With the pinned scores inside, .8 and .54, layer 0 would win.
TEST(LaProx, NormaliserLeavesOutWhatIsPinned) {
  LaProx policy({.budget = Budget::total(5),
                 .observation_window = 1,
                 .value_factor = ValueFactor::kNone,
                 .pooling = kNoPooling},
                kTwoLayers);
  WindowCache cache(kTwoLayers, 4);
  cache.append(4);
  policy.begin(4, std::vector<PositionSpan>{{0, 1}});
  policy.observe_attention(0, GivenRows({{{.6F, .1F, .1F, .2F}}}).rows());
  policy.observe_attention(1, GivenRows({{{.5F, .03F, .01F, 0}}}).rows());
  policy.end_prefill(cache.view());
  // Five entries: two pinned, two of the windows, one more. Layer 0 offers .5, layer 1 .75.
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(kept_slots(mask, 0, 0), (Slots{0, 3}));
  EXPECT_EQ(kept_slots(mask, 1, 0), (Slots{0, 1, 3}));
}

TEST(LaProx, WindowInsideOrOnTopOfTheBudget) {
  Random random(6);
  WindowCache filled(kModel, 50);
  filled.fill(random);
  const WindowQueries queries(kModel, 8, random);
  const Projection projection = random_projection(kModel, random);
  for (const bool extra : {false, true}) {
    for (const std::size_t budget : {8U, 9U, 20U, 42U, 50U, 60U}) {
      WindowCache cache = filled;
      LaProx policy({.budget = budget,
                     .observation_window = 8,
                     .window_extra = extra,
                     .output_projection = projection},
                    kModel);
      feed_prompt(policy, cache, 50, queries, 50);
      const KeepMask& mask = policy.select(cache.view());
      EXPECT_EQ(mask.total_count(), 6 * std::min<std::size_t>(50, budget + (extra ? 8 : 0)));
      for (std::size_t lane = 0; lane < 6; ++lane) {
        for (std::size_t slot = 42; slot < 50; ++slot) {
          EXPECT_TRUE(mask.keeps(lane / 2, lane % 2, slot));
        }
      }
    }
  }
}

// A layer whose scores are all zero has no share: it keeps its window, and nothing is NaN.
TEST(LaProx, LayerWithoutContribution) {
  LaProx policy({.budget = 3,
                 .observation_window = 1,
                 .pooling = kNoPooling,
                 .output_projection = project(kTwoLayers, 2, {{0, 0, 0, 0}, {1, 0, 0, 1}})},
                kTwoLayers);
  WindowCache cache(kTwoLayers, 5);
  Random random(8);
  cache.fill(random);
  for (std::size_t slot = 0; slot < 5; ++slot)
    set_value(cache, 1, 0, slot, {1, 0});
  feed_last_rows(policy, cache, {{{.4F, .3F, .2F, .1F, 0}}, {{.4F, .3F, .2F, .1F, 0}}});
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(kept_slots(mask, 0, 0), (Slots{4}));
  EXPECT_EQ(kept_slots(mask, 1, 0), range(0, 5));
  policy.apply(mask);
  EXPECT_EQ(policy.counters().non_finite, 0U);
}

// Rule R4: a value that is not a number loses its own slot and takes nothing from its layer.
TEST(LaProx, NonFiniteValueGoesFirst) {
  for (const ValueFactor factor : {ValueFactor::kNorm, ValueFactor::kProjected}) {
    LaProx policy({.budget = 4,
                   .observation_window = 1,
                   .value_factor = factor,
                   .pooling = kNoPooling,
                   .output_projection = project(kTwoLayers, 2, {{1, 0, 0, 1}, {1, 0, 0, 1}})},
                  kTwoLayers);
    WindowCache cache(kTwoLayers, 5);
    for (std::size_t slot = 0; slot < 5; ++slot) {
      set_value(cache, 0, 0, slot, {1, 0});
      set_value(cache, 1, 0, slot, {1, 0});
    }
    set_value(cache, 0, 0, 0, {kNaN, 0});
    feed_last_rows(policy, cache, {{{.9F, .04F, .03F, .02F, 0}}, {{.4F, .3F, .2F, .1F, 0}}});
    // Layer 0 divides by .09: .44, .33, .22. Of eight candidates six stay: NaN and .1 go.
    const KeepMask& mask = policy.select(cache.view());
    EXPECT_EQ(kept_slots(mask, 0, 0), range(1, 5));
    EXPECT_EQ(kept_slots(mask, 1, 0), (Slots{0, 1, 2, 4}));
    policy.apply(mask);
    EXPECT_EQ(policy.counters().non_finite, 1U);
  }
}

TEST(LaProx, ChunksOfAPromptChangeNothing) {
  for (const GroupReading reading : {GroupReading::kHeadProducts, GroupReading::kMeanNorms,
                                     GroupReading::kSummed, GroupReading::kExact}) {
    std::vector<KeepMask> masks;
    for (const std::size_t chunk : {50U, 33U, 7U, 1U}) {
      Random random(10);
      WindowCache cache(kModel, 50);
      cache.fill(random);
      const WindowQueries queries(kModel, 20, random);
      LaProx policy({.budget = 25,
                     .observation_window = 20,
                     .group_reading = reading,
                     .pool_stage = PoolStage::kProduct,
                     .output_projection = random_projection(kModel, random)},
                    kModel);
      feed_prompt(policy, cache, 50, queries, chunk);
      masks.push_back(policy.select(cache.view()));
      EXPECT_EQ(policy.select(cache.view()), masks.back());  // a second look changes nothing
    }
    for (const KeepMask& mask : masks)
      EXPECT_EQ(mask, masks[0]);
    EXPECT_EQ(masks[0].total_count(), 6U * 25U);
  }
}

// After a cut lanes differ in length. A second prompt looks at what is left with a fresh window:
// the same as a policy that never saw the first prompt's rows.
TEST(LaProx, SecondPromptIsAFreshWindow) {
  Random random(12);
  WindowCache cache(kModel, 80);
  cache.fill(random);
  const WindowQueries queries(kModel, 4, random);
  const WindowQueries later(kModel, 4, random);
  const LaProxOptions options{.budget = 12,
                              .observation_window = 4,
                              .pooling = {.kernel_size = 3},
                              .output_projection = random_projection(kModel, random)};
  LaProx policy(options, kModel);
  feed_prompt(policy, cache, 40, queries, 40);
  const KeepMask first = policy.select(cache.view());
  bool ragged = false;
  for (std::size_t lane = 1; lane < 6; ++lane) {
    ragged |= first.count(lane / 2, lane % 2) != first.count(0, 0);
  }
  EXPECT_TRUE(ragged);
  LaProx blind(options, kModel);
  blind.begin(40);
  blind.append(40);
  blind.end_prefill(cache.view());
  blind.apply(first);
  cut(policy, cache);
  EXPECT_EQ(policy.counters().kept, 6U * 12U);

  cache.append(3);
  policy.append(3);  // decoded
  blind.append(3);
  EXPECT_FALSE(policy.should_evict());
  WindowCache same = cache;
  feed_prompt(policy, cache, 20, later, 9);
  feed_prompt(blind, same, 20, later, 9);
  ASSERT_TRUE(policy.should_evict());
  EXPECT_EQ(policy.select(cache.view()), blind.select(same.view()));
  cut(policy, cache);
  EXPECT_EQ(policy.counters().kept, 6U * 12U);
  EXPECT_EQ(policy.counters().firings, 2U);
}

// Also where they came before the engine found the time to cut: they are on top of the budget.
TEST(LaProx, DecodedTokensStay) {
  Random random(13);
  WindowCache cache(kModel, 60);
  cache.fill(random);
  const WindowQueries queries(kModel, 4, random);
  LaProx policy({.budget = 10,
                 .observation_window = 4,
                 .output_projection = random_projection(kModel, random)},
                kModel);
  feed_prompt(policy, cache, 40, queries, 40);
  for (std::size_t step = 0; step < 8; ++step) {
    cache.append(1);
    policy.append(1);
    EXPECT_FALSE(policy.wants_attention(0));
  }
  cut(policy, cache);
  EXPECT_EQ(policy.counters().kept, 6U * (10U + 8U));
  cache.append(1);
  policy.append(1);
  EXPECT_FALSE(policy.should_evict());
  EXPECT_EQ(policy.select(cache.view()).total_evicted(), 0U);
}

TEST(LaProx, ForkAndRollback) {
  Random random(14);
  WindowCache cache(kModel, 40);
  cache.fill(random);
  const WindowQueries queries(kModel, 4, random);
  LaProx policy({.budget = 8,
                 .observation_window = 4,
                 .output_projection = random_projection(kModel, random)},
                kModel);
  feed_prompt(policy, cache, 30, queries, 30);
  const KeepMask before = policy.select(cache.view());
  LaProx fork = policy;
  fork.append(3);
  fork.truncate(30);
  EXPECT_EQ(fork.select(cache.view()), before);
  fork.reset();
  WindowCache fresh(kModel, 40);
  Random again(14);
  fresh.fill(again);
  feed_prompt(fork, fresh, 30, queries, 8);
  EXPECT_EQ(fork.select(fresh.view()), before);
}

// Rule R9: padding on the left, holding anything, changes no choice. The normaliser, too, is that
// of the valid slots.
TEST(LaProx, LeftPaddingChangesNothing) {
  constexpr std::size_t kLen = 30;
  constexpr std::size_t kPadding = 5;
  Random random(16);
  WindowCache plain_cache(kModel, kLen);
  plain_cache.fill(random);
  const WindowQueries queries(kModel, 4, random);
  const Projection projection = random_projection(kModel, random);
  for (const PoolStage stage : {PoolStage::kAttention, PoolStage::kProduct}) {
    for (const LayerNormaliser normaliser :
         {LayerNormaliser::kCandidates, LayerNormaliser::kAllSlots}) {
      WindowCache plain = plain_cache;
      WindowCache padded(kModel, kPadding + kLen);
      padded.valid().assign(kPadding + kLen, 1);
      std::fill_n(padded.valid().begin(), kPadding, std::uint8_t{0});
      for (std::size_t lane = 0; lane < 6; ++lane) {
        std::fill_n(padded.value(lane / 2, lane % 2, 0), kPadding * 5, kNaN);
        std::copy_n(plain.key(lane / 2, lane % 2, 0), kLen * 5,
                    padded.key(lane / 2, lane % 2, kPadding));
        std::copy_n(plain.value(lane / 2, lane % 2, 0), kLen * 5,
                    padded.value(lane / 2, lane % 2, kPadding));
      }
      const LaProxOptions options{.budget = 12,
                                  .observation_window = 4,
                                  .pool_stage = stage,
                                  .normaliser = normaliser,
                                  .output_projection = projection};
      LaProx a(options, kModel);
      LaProx b(options, kModel);
      feed_prompt(a, plain, kLen, queries, kLen);
      feed_prompt(b, padded, kPadding + kLen, queries, kPadding + kLen);
      const KeepMask& expected = a.select(plain.view());
      const KeepMask& actual = b.select(padded.view());
      for (std::size_t lane = 0; lane < 6; ++lane) {
        EXPECT_EQ(text_of(actual, lane / 2, lane % 2),
                  std::string(kPadding, '0') + text_of(expected, lane / 2, lane % 2));
      }
    }
  }
}

// A slot without a token in the middle, holding anything, is a neighbour that nothing looks at.
TEST(LaProx, InvalidSlotInTheMiddle) {
  LaProx policy({.budget = 3,
                 .observation_window = 1,
                 .value_factor = ValueFactor::kNorm,
                 .pooling = {.kernel_size = 3},
                 .pool_stage = PoolStage::kProduct},
                kOneHead);
  WindowCache cache(kOneHead, 6);
  for (std::size_t slot = 0; slot < 6; ++slot)
    set_value(cache, 0, 0, slot, {1, 0});
  set_value(cache, 0, 0, 2, {kNaN, 0});
  cache.valid() = {1, 1, 0, 1, 1, 1};
  feed_last_rows(policy, cache, {{{.1F, .4F, .5F, .2F, .1F, 0}}});
  // Over three: .5, .5, (.6), .3, .3: slots 0 and 1 and the window.
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 1, 5}));
}

// policies.md 12 in spirit. With one row the L2 norm is the entry: LaProx on attention alone,
// every lane for itself, is SnapKV with the same pooling. And with W_O = I, |v W_O| is |v|.
TEST(LaProx, ReducesToSimplerMethods) {
  const CacheShape shape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 3};
  Random random(18);
  WindowCache filled(shape, 40);
  filled.fill(random);
  const WindowQueries queries(shape, 1, random);
  LaProxOptions options{.budget = 10,
                        .observation_window = 1,
                        .value_factor = ValueFactor::kNone,
                        .pooling = {.kernel_size = 5},
                        .competition = Competition::kLane};
  const auto mask_of_laprox = [&] {
    WindowCache cache = filled;
    LaProx policy(options, shape);
    feed_prompt(policy, cache, 40, queries, 40);
    return policy.select(cache.view());
  };
  WindowCache cache = filled;
  SnapKV snapkv({.budget = 10, .observation_window = 1, .pooling = {.kernel_size = 5}}, shape);
  feed_prompt(snapkv, cache, 40, queries, 40);
  EXPECT_EQ(mask_of_laprox(), snapkv.select(cache.view()));

  const std::vector<float> identity{1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1};
  options.output_projection = project(shape, 3, {identity, identity});
  options.value_factor = ValueFactor::kNorm;
  const KeepMask by_norm = mask_of_laprox();
  options.value_factor = ValueFactor::kProjected;
  EXPECT_EQ(mask_of_laprox(), by_norm);
}

TEST(LaProx, RefusesOptionsThatCannotWork) {
  Random random(20);
  const Projection projection = random_projection(kModel, random);
  const auto make = [](const LaProxOptions& options) {
    return [options] { LaProx policy(options, kModel); };
  };
  EXPECT_TRUE(refuses(make({.observation_window = 0, .output_projection = projection}),
                      {"LaProx", "observation_window = 0"}));
  EXPECT_TRUE(refuses(make({.pooling = {.kernel_size = 6}, .output_projection = projection}),
                      {"LaProx", "pooling.kernel_size = 6"}));
  EXPECT_TRUE(refuses(make({.budget = 31, .output_projection = projection}),
                      {"LaProx", "budget = 31", "recent_window"}));
  EXPECT_TRUE(
      refuses(make({.group_reading = GroupReading::kExact, .output_projection = projection}),
              {"LaProx", "pooling.kernel_size = 7", "pool_stage"}));
  EXPECT_TRUE(refuses(make({}), {"LaProx", "output_projection is missing"}));
  EXPECT_TRUE(
      refuses(make({.output_projection = std::make_shared<OutputProjection>(kModel, kHidden)}),
              {"LaProx", "layers that were not set"}));
  EXPECT_TRUE(refuses(make({.output_projection = random_projection(kPair, random)}),
                      {"LaProx", "num_layers = 1"}));
  auto summed = std::make_shared<OutputProjection>(kModel, kHidden, GroupReading::kSummed);
  const std::vector<float> weight(6 * 5 * kHidden);
  for (std::size_t layer = 0; layer < 3; ++layer)
    summed->set_layer(layer, weight.data());
  EXPECT_TRUE(refuses(make({.output_projection = summed}), {"LaProx", "group_reading"}));
}

TEST(LaProx, OptionsCanBeWrittenAsText) {
  LaProxOptions options;
  detail::read_options<LaProxRecipe>(
      "budget=total:4096,observation_window=16,window_extra=true,min_keep=20,"
      "group_reading=exact,value_factor=norm,pooling=max,pool_kernel_size=3,pool_edge=shrink,"
      "pool_stage=product,competition=layer,normaliser=all_slots",
      options);
  EXPECT_TRUE(options.budget.is_total());
  EXPECT_EQ(options.budget.count(), 4096U);
  EXPECT_EQ(options.observation_window, 16U);
  EXPECT_TRUE(options.window_extra);
  EXPECT_EQ(options.min_keep, 20U);
  EXPECT_EQ(options.group_reading, GroupReading::kExact);
  EXPECT_EQ(options.value_factor, ValueFactor::kNorm);
  EXPECT_EQ(options.pooling.kind, PoolKind::kMax);
  EXPECT_EQ(options.pooling.kernel_size, 3U);
  EXPECT_EQ(options.pooling.edge, kernels::PoolEdge::kShrink);
  EXPECT_EQ(options.pool_stage, PoolStage::kProduct);
  EXPECT_EQ(options.competition, Competition::kLayer);
  EXPECT_EQ(options.normaliser, LayerNormaliser::kAllSlots);
}

}  // namespace
