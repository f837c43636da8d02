#include "kvevict/policies/expected_attention.hpp"

#include "kvevict/kernels/kernels.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numbers>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

namespace {

using namespace kvevict;
using namespace kvevict_test;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kScalar{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr CacheShape kModel{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};

std::shared_ptr<const QueryStatistics> statistics(const CacheShape& shape,
                                                  const std::vector<float>& mean,
                                                  const std::vector<float>& covariance) {
  auto made = std::make_shared<QueryStatistics>(shape, !covariance.empty());
  for (std::size_t head = 0; head < shape.num_q_heads; ++head)
    made->set(0, head, mean, covariance);
  return made;
}
void write(WindowCache& cache, const std::vector<std::vector<float>>& keys, float value = 1) {
  for (std::size_t slot = 0; slot < keys.size(); ++slot) {
    std::copy(keys[slot].begin(), keys[slot].end(), cache.key(0, 0, slot));
    *cache.value(0, 0, slot) = value;
  }
}
Lane lane_of(std::size_t seq_len, std::span<const std::uint8_t> valid = {}) {
  Lane lane;
  lane.seq_len = seq_len;
  lane.valid = valid;
  return lane;
}
template <class P>
void append(P& policy, WindowCache& cache, std::size_t count) {
  policy.append(count);
  cache.append(count);
}
void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-5F) << "slot " << i;
}

// policies.md 5.1: m = (1, 0), S = diag(0, 4), keys (1, 0), (0, 1), (-1, 0): z = (.7071, 1,
// -.7071), softmax (.38708, .51881, .09411). The variance of the second beats the mean of the
// first.
TEST(ExpectedAttention, VarianceMayBeatTheMean) {
  ExpectedAttentionOptions options;
  options.budget = 1;
  options.num_sink_tokens = 0;
  options.query_statistics = statistics(kOneHead, {1, 0}, {0, 0, 0, 4});
  WindowCache cache(kOneHead, 3);
  write(cache, {{1, 0}, {0, 1}, {-1, 0}});
  ExpectedAttentionStats policy(options, kOneHead);
  append(policy, cache, 3);
  expect_near(scores_of(policy, cache), {.38708F, .51881F, .09411F});
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{1}));

  // The mean alone: exp(+-.7071) and 1 over their sum, 3.52115.
  options.use_covariance = false;
  ExpectedAttentionStats mean_only(options, kOneHead);
  mean_only.append(3);
  expect_near(scores_of(mean_only, cache), {.57597F, .28400F, .14003F});

  // Times |v| after epsilon.
  *cache.value(0, 0, 2) = 10;
  options.epsilon = .5F;
  ExpectedAttentionStats scaled(options, kOneHead);
  scaled.append(3);
  expect_near(scores_of(scaled, cache), {1.07597F, .78400F, 6.4003F});
  options.use_value_norm = false;
  ExpectedAttentionStats without_values(options, kOneHead);
  without_values.append(3);
  expect_near(scores_of(without_values, cache), {1.07597F, .78400F, .64003F});
}

// A pair that turns by 90 degrees a position: over two positions behind the text, 4 and 5, the
// average is that of angles 0 and 90 degrees, (1 + i) / 2, so (1, 0) becomes (.5, .5).
TEST(ExpectedAttention, QueriesAreTurnedToPositionsToCome) {
  FutureQueries future("test", kOneHead,
                       {.rotary = {.inv_freq = {std::numbers::pi / 2}},
                        .num_future = 2,
                        .statistics = statistics(kOneHead, {1, 0}, {1, 0, 0, 0})});
  Sequence sequence("test", kOneHead, MaskScope::kHead);
  sequence.append(4);
  Scratch scratch;
  std::vector<float> mean(2);
  future.mean(sequence, 0, 0, scratch, mean);
  expect_near(mean, {.5F, .5F});
  const auto covariance = future.turned_covariance(sequence, 0, 0, scratch);
  for (const double entry : covariance)
    EXPECT_NEAR(entry, .25, 1e-12);
}

/// A prompt of random keys, values and queries.
struct Prompt {
  explicit Prompt(std::size_t prompt_len) : cache(kModel, prompt_len), len(prompt_len) {
    Random random(11);
    cache.fill(random);
    queries.emplace(kModel, len, random);
  }
  template <class P>
  KeepMask mask(P policy, std::size_t chunk) {
    WindowCache copy = cache;
    feed_prompt(policy, copy, len, *queries, chunk);
    EXPECT_EQ(policy.counters().missing_signals, 0U);
    return policy.select(copy.view());
  }
  WindowCache cache;
  std::size_t len;
  std::optional<WindowQueries> queries;
};
ExpectedAttentionOptions online() {
  ExpectedAttentionOptions options;
  options.budget = 10;
  options.rotary.inv_freq = {1.0, 0.01};
  return options;
}

TEST(ExpectedAttention, ChunksMakeNoDifference) {
  Prompt prompt(30);
  const KeepMask whole = prompt.mask(ExpectedAttention(online(), kModel), 30);
  EXPECT_EQ(whole.total_count(), 4U * 10);
  EXPECT_EQ(kept_slots(whole)[3], 3U);  // sinks
  for (const std::size_t chunk : {1U, 7U, 29U})
    EXPECT_EQ(prompt.mask(ExpectedAttention(online(), kModel), chunk), whole) << chunk;
  CapKVOptions options;
  options.budget = 10;
  EXPECT_EQ(prompt.mask(CapKV(options, kModel), 30), prompt.mask(CapKV(options, kModel), 4));
}

// Every query is wanted, but no row of attention: such a policy takes none.
template <class P>
concept TakesRows = requires(P& policy, const AttentionRows& rows) {
  policy.observe_attention(0, rows);
};
TEST(ExpectedAttention, WantsQueriesAndNoRows) {
  static_assert(ExpectedAttention::kAttentionUse == AttentionUse::kQueries);
  static_assert(ExpectedAttentionStats::kAttentionUse == AttentionUse::kNone);
  static_assert(is_flash_attention_compatible<ExpectedAttention>);
  static_assert(!TakesRows<ExpectedAttention>);
  ExpectedAttention policy(online(), kModel);
  policy.begin(9);
  policy.append(5);
  EXPECT_EQ(policy.wanted_attention_rows(1), 5U);
}

// Queries that are not finite are left out and counted; a reset forgets all.
TEST(ExpectedAttention, LifeOfTheStatistics) {
  FutureQueries future("test", kOneHead, {.num_sink_tokens = 1, .with_covariance = false});
  Sequence sequence("test", kOneHead, MaskScope::kHead);
  sequence.append(4);
  const std::vector<float> rows = {9, 9, 1, 2, kNaN, 0, 3, 4};
  EXPECT_EQ(
      future.observe(0, {.data = rows.data(), .num_q_heads = 1, .num_rows = 4, .row_stride = 2},
                     sequence, lane_of(4), kernels::best()),
      1U);
  EXPECT_EQ(future.statistics().count(0, 0), 2U);
  EXPECT_EQ(future.statistics().mean(0, 0)[0], 2.0);
  EXPECT_EQ(future.statistics().mean(0, 0)[1], 3.0);
  std::get<0>(future.state()).reset();
  EXPECT_EQ(future.statistics().count(0, 0), 0U);
  EXPECT_EQ(future.statistics().mean(0, 0)[0], 0.0);
}

// Left padding has no queries, and its tokens no position: the sink is the first token.
TEST(ExpectedAttention, PaddingIsNoQuery) {
  const std::vector<float> rows = {kNaN, 0, 9, 9, 1, 0, 0, 1};
  const std::vector<std::uint8_t> valid = {0, 1, 1, 1};
  FutureQueries padded("test", kOneHead, {.rotary = {.inv_freq = {.5}}, .num_sink_tokens = 1});
  FutureQueries plain("test", kOneHead, {.rotary = {.inv_freq = {.5}}, .num_sink_tokens = 1});
  Sequence four("test", kOneHead, MaskScope::kHead);
  four.append(4);
  Sequence three("test", kOneHead, MaskScope::kHead);
  three.append(3);
  QueryRows queries{.data = rows.data(), .num_q_heads = 1, .num_rows = 4, .row_stride = 2};
  EXPECT_EQ(padded.observe(0, queries, four, lane_of(4, valid), kernels::best()), 0U);
  queries.data += 2;
  queries.num_rows = 3;
  EXPECT_EQ(plain.observe(0, queries, three, lane_of(3), kernels::best()), 0U);
  EXPECT_EQ(padded.statistics().count(0, 0), 2U);
  for (std::size_t c = 0; c < 2; ++c)
    EXPECT_EQ(padded.statistics().mean(0, 0)[c], plain.statistics().mean(0, 0)[c]);
}

TEST(ExpectedAttention, SmallCachesAndNaN) {
  ExpectedAttentionOptions options;
  options.budget = 5;
  options.num_sink_tokens = 4;
  options.query_statistics = statistics(kOneHead, {1, 0}, {1, 0, 0, 1});
  ExpectedAttentionStats policy(options, kOneHead);
  WindowCache cache(kOneHead, 8);
  write(cache, {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {kNaN, 0}, {1, 0}, {0, 1}, {2, 0}});
  *cache.value(0, 0, 4) = kNaN;
  append(policy, cache, 1);
  EXPECT_FALSE(policy.should_evict());
  EXPECT_EQ(scores_of(policy, cache), (std::vector<float>{0}));
  append(policy, cache, 7);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 1, 2, 3, 7}));
  cut(policy, cache);
  EXPECT_EQ(policy.counters().non_finite, 1U);
}

// Keys 1, 1, -1 to a mean of 1 and tau = ln 2: w = (1, 1, 1/4). Values 1, 2, 2: A = 1 + 1 + 4 + 1 =
// 7, scores (1, 4, 1) / 7.
TEST(CapKV, GainOfTheVolume) {
  CapKVOptions options;
  options.budget = 2;
  options.num_sink_tokens = 0;
  options.tau = std::numbers::ln2_v<float>;
  options.epsilon = 0;
  options.query_statistics = statistics(kScalar, {3}, {});
  CapKVStats policy(options, kScalar);
  WindowCache cache(kScalar, 3);
  const std::vector<float> keys = {5, 1, -1};
  const std::vector<float> values = {1, 2, 2};
  for (std::size_t slot = 0; slot < 3; ++slot) {
    *cache.key(0, 0, slot) = keys[slot];
    *cache.value(0, 0, slot) = values[slot];
  }
  append(policy, cache, 3);
  expect_near(scores_of(policy, cache), {1 / 7.F, 4 / 7.F, 1 / 7.F});
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 1}));

  // A value that is not finite takes nothing from the others: A = 1 + 1 + 1.
  *cache.value(0, 0, 1) = kNaN;
  const std::vector<float> scores = scores_of(policy, cache);
  EXPECT_NEAR(scores[0], 1 / 3.F, 1e-6F);
  EXPECT_TRUE(std::isnan(scores[1]));
  EXPECT_NEAR(scores[2], 1 / 3.F, 1e-6F);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 2}));
}

TEST(CapKV, AKeyOfZeroHasNoDirection) {
  CapKVOptions options;
  options.num_sink_tokens = 0;
  options.tau = std::numbers::ln2_v<float>;
  options.epsilon = 0;
  options.query_statistics = statistics(kScalar, {1}, {});
  CapKVStats policy(options, kScalar);
  WindowCache cache(kScalar, 2);
  *cache.key(0, 0, 0) = 2;
  *cache.value(0, 0, 0) = 1;
  *cache.value(0, 0, 1) = 2;  // cos 0: w = 1/2, A = 1 + 1 + 2
  append(policy, cache, 2);
  expect_near(scores_of(policy, cache), {.25F, .5F});
}

TEST(ExpectedAttention, RefusesOptionsAndNamesThem) {
  const auto given = [](auto change) {
    return [change] {
      ExpectedAttentionOptions options;
      options.query_statistics = statistics(kOneHead, {1, 0}, {1, 0, 0, 1});
      change(options);
      ExpectedAttentionStats(options, kOneHead);
    };
  };
  using O = ExpectedAttentionOptions;
  EXPECT_NO_THROW(given([](O&) {})());
  EXPECT_TRUE(
      refuses(given([](O& o) { o.num_future = 0; }), {"ExpectedAttentionStats", "num_future"}));
  EXPECT_TRUE(
      refuses(given([](O& o) { o.epsilon = -1; }), {"ExpectedAttentionStats", "epsilon", "-1"}));
  EXPECT_TRUE(refuses(given([](O& o) {
                        o.rotary.inv_freq = {1, 2};
                      }),
                      {"ExpectedAttentionStats", "inv_freq", "2"}));
  EXPECT_TRUE(refuses(given([](O& o) { o.query_statistics = nullptr; }),
                      {"ExpectedAttentionStats", "query_statistics"}));
  EXPECT_TRUE(refuses(given([](O& o) {
                        o.query_statistics = statistics(kOneHead, {1, 0}, {});
                      }),
                      {"ExpectedAttentionStats", "covariance"}));
  EXPECT_TRUE(refuses(given([](O& o) { o.query_statistics = statistics(kScalar, {1}, {1}); }),
                      {"ExpectedAttentionStats", "head_dim"}));
  ExpectedAttentionOptions options;
  options.query_statistics = statistics(kOneHead, {1, 0}, {1, 0, 0, 1});
  EXPECT_TRUE(refuses([&] { ExpectedAttention(options, kOneHead); },
                      {"ExpectedAttention", "query_statistics"}));
  CapKVOptions cap;
  cap.tau = kNaN;
  EXPECT_TRUE(refuses([&] { CapKV(cap, kOneHead); }, {"CapKV", "tau", "nan"}));
}

}  // namespace
