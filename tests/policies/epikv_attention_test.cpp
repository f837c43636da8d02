#include "kvevict/policies/epikv_attention.hpp"

#include "support/epikv_cache.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::EpiKVCache;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 1};

struct Session {
  EpiKVAttention policy;
  EpiKVCache cache{kShape, 64};

  explicit Session(const EpiKVAttention::Options& options, std::size_t prompt = 0)
      : policy(options, kShape) {
    if (prompt > 0)
      policy.begin(prompt);
    if (prompt > 0)
      append(prompt);
  }
  void append(std::size_t count) {
    policy.append(count);
    cache.append(count);
  }
  void hidden(const std::vector<float>& rows) {
    policy.observe_hidden(0, {rows.data(), rows.size(), 1, sizeof(float), ElementType::kF32});
  }
  /// The same rows, [num_rows, seq_len], for every layer; query head 1 gets `scale` times head 0's.
  void attention(const std::vector<float>& rows, std::size_t num_rows, float scale) {
    const std::size_t n = cache.seq_len();
    std::vector<float> heads = rows;
    for (const float value : rows)
      heads.push_back(scale * value);
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      ASSERT_EQ(policy.wanted_attention_rows(layer), num_rows);
      policy.observe_attention(
          layer, {heads.data(), 2, num_rows, static_cast<std::ptrdiff_t>(num_rows * n),
                  static_cast<std::ptrdiff_t>(n)});
    }
  }
  std::vector<float> scores() { return scores(cache.view()); }
  template <class View>
  std::vector<float> scores(const View& view) const {
    const ViewRef ref(view);
    Scratch scratch;
    std::vector<float> out(cache.seq_len());
    policy.method().score({ref, policy.sequence(), kernels::best(), scratch}, 0, out);
    return out;
  }
};

EpiKVAttention::Options options_of(std::size_t budget) {
  return {.budget = budget, .recent_window = 0, .num_sink_tokens = 0, .layers = {0}};
}

// A prompt token and three decoded ones. Attention to slots 1, 2, 3, mean over layers and heads:
//   step 1: .4; step 2: .2, .2; step 3: 0, .2, .6  ->  sums .6, .4, .6, scaled 1, 0, 1.
// g = 1, 3, 2: z = 0, 1 (of 1, 3), 0 (of 1, 3, 2)  ->  scaled 0, 1, 0.
TEST(EpiKVAttention, AddsTwoScaledTerms) {
  Session run(options_of(16), 1);
  run.hidden({0});
  run.append(1);
  run.hidden({1});
  run.attention({.5F, .5F}, 1, .6F);  // mean of a and .6 a is .8 a
  run.append(1);
  run.hidden({4});
  run.attention({.5F, .25F, .25F}, 1, .6F);
  run.append(1);
  run.hidden({6});
  run.attention({0, 0, .25F, .75F}, 1, .6F);
  const std::vector<float> scores = run.scores();
  EXPECT_NEAR(scores[1], 1.0F, 1e-5);
  EXPECT_NEAR(scores[2], 1.0F, 1e-5);
  EXPECT_NEAR(scores[3], 1.0F, 1e-5);
  Session weighted(
      [] {
        EpiKVAttention::Options options = options_of(16);
        options.hidden_weight = 0.25;
        return options;
      }(),
      1);
  weighted.hidden({0});
  weighted.append(3);
  weighted.hidden({1, 4, 6});
  // The three rows in one step; what a row does not see is not read.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  weighted.attention({.5F, .5F, nan, nan, .5F, .25F, .25F, nan, 0, 0, .25F, .75F}, 3, .6F);
  const std::vector<float> less = weighted.scores();
  EXPECT_NEAR(less[1], 1.0F, 1e-5);
  EXPECT_NEAR(less[2], 0.25F, 1e-5);
  EXPECT_NEAR(less[3], 1.0F, 1e-5);
  EXPECT_EQ(weighted.policy.counters().non_finite, 0U);
}

TEST(EpiKVAttention, ReadsDecodedRowsOfAllLayers) {
  static_assert(EpiKVAttention::kRequiredInputs == (Inputs::kAttention | Inputs::kHiddenStates));
  static_assert(is_flash_attention_compatible<EpiKVAttention>);
  EpiKVAttention policy(options_of(16), kShape);
  policy.begin(4);
  EXPECT_EQ(policy.wanted_attention_rows(0), 0U);
  policy.append(3);
  EXPECT_EQ(policy.wanted_attention_rows(0), 0U);
  policy.append(1);
  EXPECT_EQ(policy.wanted_attention_rows(0), 0U);
  policy.append(2);
  EXPECT_EQ(policy.wanted_attention_rows(0), 2U);
  EXPECT_EQ(policy.wanted_attention_rows(1), 2U);
  EXPECT_TRUE(policy.wants_hidden(0));
  EXPECT_FALSE(policy.wants_hidden(1));
}

// Only z of band A, at the paper's depth.
TEST(EpiKVAttention, LayerFollowsTheDepth) {
  CacheShape shape = kShape;
  shape.num_layers = 32;
  const EpiKVAttention policy({.budget = 64}, shape);
  for (std::size_t l = 0; l < 32; ++l)
    EXPECT_EQ(policy.wants_hidden(l), l == 10) << l;
}

// Recent tokens are no candidates but count in the range.
TEST(EpiKVAttention, ProtectsFirstTokensAndTheNewest) {
  Session run({.budget = 4, .recent_window = 1, .num_sink_tokens = 2, .layers = {0}});
  for (std::size_t t = 0; t < 5; ++t) {
    run.append(1);
    run.hidden({static_cast<float>(t)});
  }
  run.attention({0, 0, .1F, .9F, 0}, 1, 1.0F);
  ASSERT_TRUE(run.policy.should_evict());
  const KeepMask& mask = run.policy.select(run.cache.view());
  EXPECT_EQ(run.cache.evict(mask), (std::vector<std::size_t>{2}));
  run.policy.apply(mask);
  EXPECT_THROW(EpiKVAttention({.budget = 4}, kShape),
               InvalidArgument);  // four sinks and one recent
}

TEST(EpiKVAttention, NonFiniteAttentionAddsNothing) {
  Session run(options_of(16));
  run.append(2);
  run.hidden({0, 0});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  run.attention({.5F, nan, .25F, .5F}, 2, 1.0F);
  EXPECT_EQ(run.scores(), (std::vector<float>{1, 0}));
  run.append(1);
  run.hidden({0});
  run.attention({nan, 0, 0}, 1, 1.0F);
  EXPECT_EQ(run.scores(), (std::vector<float>{1, 0.5F / 0.75F, 0}));
  EXPECT_EQ(run.policy.counters().non_finite, 4U);  // two layers, two heads
}

/// A view whose first layers hold no token in slot 0.
struct WithoutTheFirst {
  views::ContiguousView view;
  std::size_t num_layers;
  std::vector<std::uint8_t> valid = {0, 1, 1};

  [[nodiscard]] CacheShape shape() const { return kShape; }
  [[nodiscard]] Lane lane(std::size_t layer, std::size_t head) const {
    Lane lane = view.lane(layer, head);
    if (layer < num_layers)
      lane.valid = valid;
    return lane;
  }
};

// Sums 1.7, .7, .6: the range is that of the slots that any layer holds.
TEST(EpiKVAttention, ATokenOfAnyLayerCounts) {
  Session run(options_of(16));
  run.append(3);
  run.hidden({0, 0, 0});
  run.attention({1, 0, 0, .5F, .5F, 0, .2F, .2F, .6F}, 3, 1.0F);
  EXPECT_NEAR(run.scores(WithoutTheFirst{run.cache.view(), 1})[1], .1 / 1.1, 1e-6);
  EXPECT_NEAR(run.scores(WithoutTheFirst{run.cache.view(), 2})[1], 1.0, 1e-6);
}

TEST(EpiKVAttention, SumsFollowTheCache) {
  Session run(options_of(2));
  run.append(3);
  run.hidden({0, 0, 0});
  run.attention({1, 0, 0, .5F, .5F, 0, .2F, .2F, .6F}, 3, 1.0F);  // sums 1.7, .7, .6
  const KeepMask& mask = run.policy.select(run.cache.view());
  EXPECT_EQ(run.cache.evict(mask), (std::vector<std::size_t>{2}));
  run.policy.apply(mask);
  run.append(1);
  run.hidden({0});
  run.attention({0, .5F, .5F}, 1, 1.0F);  // 1.7, 1.2, .5
  EXPECT_NEAR(run.scores()[1], 0.7 / 1.2, 1e-6);
}

}  // namespace
}  // namespace kvevict
