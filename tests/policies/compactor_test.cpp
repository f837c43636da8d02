#include "kvevict/policies/compactor.hpp"

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
#include <vector>

namespace {

using namespace kvevict;
using namespace kvevict_test;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr CacheShape kScalar{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kModel{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};

/// Leverage with the identity as sketch.
LeverageOptions plain(std::size_t budget) {
  return {.budget = budget,
          .sketch_dim = 2,
          .key_sketch = std::make_shared<const KeySketch>(KeySketch{1, 0, 0, 1})};
}
void write(WindowCache& cache, const std::vector<std::vector<float>>& keys) {
  for (std::size_t slot = 0; slot < keys.size(); ++slot)
    std::copy(keys[slot].begin(), keys[slot].end(), cache.key(0, 0, slot));
  cache.append(keys.size());
}

// Keys (3, 0), (0, 0), (0, 0), (1, 4), (1, -4) have mean (1, 0) and scatter diag(6, 32): leverages
// 4/6.01, 1/6.01, 1/6.01 and twice 16/32.01 with the ridge of .01.
TEST(Leverage, KeysThatOthersDoNotSpanScoreHigh) {
  WindowCache cache(kOneHead, 5);
  write(cache, {{3, 0}, {0, 0}, {0, 0}, {1, 4}, {1, -4}});
  Leverage policy(plain(3), kOneHead);
  policy.append(5);
  const std::vector<float> scores = scores_of(policy, cache);
  const std::vector<float> expected = {4 / 6.01F, 1 / 6.01F, 1 / 6.01F, 16 / 32.01F, 16 / 32.01F};
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(scores[i], expected[i], 1e-5F) << i;
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 3, 4}));
}

// Keys are read as they were before rotary embedding, wherever their tokens stand.
TEST(Leverage, RotaryEmbeddingIsUndone) {
  Random random(4);
  WindowCache cache(kOneHead, 20);
  cache.fill(random);
  cache.append(20);
  WindowCache turned = cache;
  LeverageOptions options = plain(8);
  Leverage policy(options, kOneHead);
  policy.append(20);
  options.rotary.inv_freq = {0.7};
  for (std::size_t slot = 0; slot < 20; ++slot)
    options.rotary.turn(static_cast<double>(slot), turned.key(0, 0, slot));
  Leverage with_rotary(options, kOneHead);
  with_rotary.append(20);
  const auto expect_same = [&] {
    const std::vector<float> expected = scores_of(policy, cache);
    const std::vector<float> scores = scores_of(with_rotary, turned);
    ASSERT_EQ(scores.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(scores[i], expected[i], 1e-5F) << i;
  };
  expect_same();
  const KeepMask mask = policy.select(cache.view());
  cache.evict(mask);
  turned.evict(mask);
  policy.apply(mask);
  with_rotary.apply(mask);
  expect_same();
}

// Keys a power of two times as large have the same leverage where the ridge has no weight, up to
// the largest that a float holds: keys, their products and the inverse fit none.
TEST(Leverage, KeysMayBeOfAnySize) {
  constexpr CacheShape kWide{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 20};
  Random random(6);
  WindowCache cache(kWide, 300);
  cache.fill(random);
  cache.append(300);
  Leverage policy({.budget = 1, .sketch_dim = 7}, kWide);
  policy.append(300);
  std::vector<float> expected;
  for (const int exponent : {10, 30, 60, 100, 123, 126}) {
    WindowCache large = cache;
    for (std::size_t i = 0; i < 300 * 20; ++i)
      large.key(0, 0, 0)[i] = std::ldexp(large.key(0, 0, 0)[i], exponent);
    const std::vector<float> scores = scores_of(policy, large);
    if (expected.empty())
      expected = scores;
    double sum = 0;
    for (std::size_t i = 0; i < 300; ++i) {
      ASSERT_NEAR(scores[i], expected[i], 1e-5F * expected[i]) << exponent << ' ' << i;
      sum += static_cast<double>(scores[i]);
    }
    EXPECT_NEAR(sum, 7, 1e-3) << exponent;  // leverages add up to the rank
  }
}

// Fewer keys than the sketch has columns: what is left of X^T X is rounding. Two keys have a
// leverage of 1/2 each, whatever their size; the factor, in float, leaves two digits of it.
TEST(Leverage, LargeKeysThatAreFew) {
  for (const float size : {1e3F, 1e10F, 1e20F, 1e37F, 3e38F}) {
    WindowCache cache(kModel, 2);
    for (std::size_t c = 0; c < 4; ++c) {
      cache.key(0, 0, 0)[c] = size;
      cache.key(0, 0, 1)[c] = c % 2 == 0 ? -size : size;
    }
    cache.append(2);
    Leverage policy({.budget = 1}, kModel);
    policy.append(2);
    for (const float score : scores_of(policy, cache))
      EXPECT_NEAR(score, .5F, 1e-2F) << size;
  }
}

TEST(Leverage, PaddingAndNaNAreInNoSum) {
  WindowCache cache(kOneHead, 6);
  write(cache, {{9, 9}, {2, 0}, {-1, 0}, {kNaN, 0}, {-1, 0}, {0, 0}});
  cache.valid() = {0, 1, 1, 1, 1, 1};
  Leverage policy(plain(2), kOneHead);
  policy.append(6);
  const std::vector<float> scores = scores_of(policy, cache);
  EXPECT_EQ(scores[0], 0.0F);
  EXPECT_NEAR(scores[1], 4 / 6.01F, 1e-5F);
  EXPECT_TRUE(std::isnan(scores[3]));
  EXPECT_NEAR(scores[5], 0.0F, 1e-6F);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{1, 2}));
}

TEST(Leverage, ASeedIsASketch) {
  const KeySketch sketch = make_key_sketch(kModel, 400, 7);
  EXPECT_EQ(sketch, make_key_sketch(kModel, 400, 7));
  EXPECT_NE(sketch, make_key_sketch(kModel, 400, 8));
  double sum = 0;
  double squares = 0;
  for (const float entry : sketch) {
    sum += static_cast<double>(entry);
    squares += static_cast<double>(entry) * static_cast<double>(entry);
  }
  const auto size = static_cast<double>(sketch.size());  // 2 * 4 * 400
  EXPECT_NEAR(sum / size, 0, 4 * std::sqrt(1 / 400. / size));
  EXPECT_NEAR(squares / size * 400, 1, .1);
}

TEST(Leverage, SmallCaches) {
  Leverage policy({.budget = 2}, kOneHead);
  WindowCache cache(kOneHead, 3);
  EXPECT_EQ(policy.select(cache.view()).total_count(), 0U);
  for (std::size_t n = 1; n <= 3; ++n) {
    policy.append(1);
    cache.append(1);
    EXPECT_EQ(policy.should_evict(), n > 2);
    EXPECT_EQ(scores_of(policy, cache), std::vector<float>(n, 0.0F));  // all keys are equal
  }
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 1}));
}

TEST(Leverage, RefusesOptionsAndNamesThem) {
  EXPECT_TRUE(
      refuses([] { Leverage({.sketch_dim = 0}, kOneHead); }, {"Leverage", "sketch_dim", "0"}));
  LeverageOptions options = plain(1);
  options.sketch_dim = 3;
  EXPECT_TRUE(refuses([&] { Leverage(options, kOneHead); }, {"Leverage", "sketch.size()", "4"}));
  EXPECT_TRUE(refuses(
      [] {
        Leverage({.rotary = {.inv_freq = {1, 2}}}, kOneHead);
      },
      {"Leverage", "inv_freq", "2"}));
}

/// A prompt of scalar keys, queries and values.
struct Scalars {
  std::vector<float> keys;
  std::vector<float> queries;
  std::vector<float> values;
  std::vector<std::uint8_t> valid = {};

  [[nodiscard]] std::vector<float> scores(const NonCausalOptions& options,
                                          std::size_t chunk = 0) const {
    WindowCache cache(kScalar, keys.size());
    for (std::size_t slot = 0; slot < keys.size(); ++slot) {
      *cache.key(0, 0, slot) = keys[slot];
      *cache.value(0, 0, slot) = values[slot];
    }
    cache.valid() = valid;
    NonCausal policy(options, kScalar);
    policy.begin(keys.size());
    chunk = chunk == 0 ? keys.size() : chunk;
    for (std::size_t done = 0; done < keys.size();) {
      const std::size_t count = std::min(chunk, keys.size() - done);
      policy.append(count);
      cache.append(count);
      EXPECT_EQ(policy.wanted_attention_rows(0), count);
      policy.observe_queries(
          0, {.data = queries.data() + done, .num_q_heads = 1, .num_rows = count, .row_stride = 1},
          cache.view());
      done += count;
    }
    policy.end_prefill(cache.view());
    return scores_of(policy, cache);
  }
};
void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-6F) << "slot " << i;
}

// Chunks (0, 1), (2, 3), (4). In the first, query 1 sees keys ln 3, 0 as 3/4, 1/4, and query 0 as
// 1/2, 1/2: columns 1.25, .75. In the second all is 1, times |v|. The last token has itself.
const Scalars kTokens = {.keys = {std::log(3.0F), 0, 0, 0, std::log(3.0F)},
                         .queries = {1, 0, 5, 5, 1},
                         .values = {1, 1, -2, 3, 1}};

TEST(NonCausal, TokensOfAChunkAttendToEachOther) {
  const NonCausalOptions options{.chunk_len = 2, .pool_kernel_size = 1};
  expect_near(kTokens.scores(options), {1.25F, .75F, 2, 3, 1});
  for (const std::size_t chunk : {1U, 2U, 3U, 4U})
    expect_near(kTokens.scores(options, chunk), {1.25F, .75F, 2, 3, 1});
  // Averages of three: zeros count at the ends.
  expect_near(kTokens.scores({.chunk_len = 2}), {2 / 3.F, 4 / 3.F, 5.75F / 3, 2, 4 / 3.F});
}

// kvpress: the last chunk has a key of 0 (3/4 are left) and a query of 0 (1/2 more).
TEST(NonCausal, ALastChunkMayBeFilledWithZeros) {
  expect_near(kTokens.scores({.chunk_len = 2, .pool_kernel_size = 1, .padded_last_chunk = true}),
              {1.25F, .75F, 2, 3, 1.25F});
}

TEST(NonCausal, PaddingIsInNoChunk) {
  Scalars padded = kTokens;
  for (auto* rows : {&padded.keys, &padded.queries, &padded.values})
    rows->insert(rows->begin(), 1, kNaN);
  padded.valid = {0, 1, 1, 1, 1, 1};
  expect_near(padded.scores({.chunk_len = 2, .pool_kernel_size = 1}), {0, 1.25F, .75F, 2, 3, 1});
}

TEST(NonCausal, ALogitThatIsNotFiniteIsNoAttention) {
  Scalars tokens = kTokens;
  tokens.keys[0] = kNaN;
  expect_near(tokens.scores({.chunk_len = 2, .pool_kernel_size = 1}), {0, 2, 2, 3, 1});
}

TEST(NonCausal, KeepsTheBestAtTheEndOfThePrompt) {
  Random random(6);
  WindowCache cache(kModel, 33);
  cache.fill(random);
  const WindowQueries queries(kModel, 30, random);
  const auto mask = [&](std::size_t chunk) {
    WindowCache copy = cache;
    NonCausal policy({.budget = 12, .chunk_len = 8}, kModel);
    feed_prompt(policy, copy, 30, queries, chunk);
    EXPECT_TRUE(policy.should_evict());
    return KeepMask(policy.select(copy.view()));
  };
  const KeepMask expected = mask(30);
  EXPECT_EQ(expected.total_count(), 4U * 12);
  for (const std::size_t chunk : {1U, 8U, 13U})
    EXPECT_EQ(mask(chunk), expected) << chunk;
}

// Chunks of more queries than are multiplied at once, 0 .. 69 and 70 .. 99, against the definition
// in double.
TEST(NonCausal, LongChunksFollowTheDefinition) {
  Random random(8);
  WindowCache cache(kModel, 100);
  cache.fill(random);
  const WindowQueries queries(kModel, 100, random);
  NonCausal policy({.chunk_len = 70, .pool_kernel_size = 1}, kModel);
  feed_prompt(policy, cache, 100, queries, 33);
  const auto dot = [](const float* a, const float* b) {
    double sum = 0;
    for (std::size_t c = 0; c < 4; ++c)
      sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    return sum;
  };
  for (std::size_t lane = 0; lane < 4; ++lane) {
    const std::size_t layer = lane / 2;
    std::vector<double> expected(100, 0.0);
    for (std::size_t t = 0; t < 100; ++t) {
      const std::size_t first = t < 70 ? 0 : 70;
      const std::size_t last = t < 70 ? 70 : 100;
      for (const std::size_t head : {2 * (lane % 2), 2 * (lane % 2) + 1}) {
        const float* query = queries.rows(layer, 0, 100).row(head, t);
        std::vector<double> row;
        double sum = 0;
        for (std::size_t i = first; i < last; ++i) {
          row.push_back(std::exp(dot(query, cache.key(layer, lane % 2, i))));
          sum += row.back();
        }
        for (std::size_t i = first; i < last; ++i)
          expected[i] += row[i - first] / sum / 2;
      }
    }
    const std::vector<float> scores = scores_of(policy, cache, lane);
    for (std::size_t i = 0; i < 100; ++i) {
      const float* value = cache.value(layer, lane % 2, i);
      expected[i] *= std::sqrt(dot(value, value));
      EXPECT_NEAR(static_cast<double>(scores[i]), expected[i], 1e-5 * (1e-3 + expected[i])) << i;
    }
  }
}

TEST(NonCausal, RefusesOptionsAndNamesThem) {
  EXPECT_TRUE(
      refuses([] { NonCausal({.chunk_len = 0}, kScalar); }, {"NonCausal", "chunk_len", "0"}));
  EXPECT_TRUE(refuses([] { NonCausal({.pool_kernel_size = 2}, kScalar); },
                      {"NonCausal", "kernel_size", "2"}));
}

/// Mask of a prompt of random numbers.
template <class P>
KeepMask mask_of_prompt(const typename P::Options& options) {
  Random random(6);
  WindowCache cache(kModel, 30);
  cache.fill(random);
  const WindowQueries queries(kModel, 30, random);
  P policy(options, kModel);
  feed_prompt(policy, cache, 30, queries, 30);
  return policy.select(cache.view());
}

// policies.md 12: without leverage it is NonCausal; with leverage alone in view, Leverage.
TEST(Compactor, ItsEndsAreItsParts) {
  CompactorOptions options;
  options.budget = 12;
  options.num_sink_tokens = 0;
  options.recent_window = 0;
  options.chunk_len = 8;
  options.blending = 0;
  EXPECT_EQ(mask_of_prompt<Compactor>(options),
            mask_of_prompt<NonCausal>({.budget = 12, .chunk_len = 8}));
  options.blending = 1e6;
  const KeepMask blended = mask_of_prompt<Compactor>(options);
  const KeepMask leverage = mask_of_prompt<Leverage>({.budget = 12, .only_at_prefill_end = true});
  for (std::size_t lane = 0; lane < 4; ++lane)
    EXPECT_EQ(kept_slots(blended, lane / 2, lane % 2), kept_slots(leverage, lane / 2, lane % 2));
}

TEST(Compactor, EndsStayAndEveryHeadHasItsBudget) {
  CompactorOptions options;
  options.budget = 12;
  options.num_sink_tokens = 3;
  options.recent_window = 2;
  const KeepMask mask = mask_of_prompt<Compactor>(options);
  for (std::size_t lane = 0; lane < 4; ++lane) {
    const Slots kept = kept_slots(mask, lane / 2, lane % 2);
    ASSERT_EQ(kept.size(), 12U);
    EXPECT_EQ(kept[2], 2U);
    EXPECT_EQ(kept[10], 28U);
  }
  // kvpress fails where nothing lies between the ends.
  options.num_sink_tokens = 20;
  options.recent_window = 10;
  options.budget = 30;
  EXPECT_EQ(mask_of_prompt<Compactor>(options).total_evicted(), 0U);
}

// Without a weight of its own, leverage counts by the share that goes: 1 - 12 / 30.
TEST(Compactor, LeverageCountsByTheShareThatGoes) {
  CompactorOptions options;
  options.budget = 12;
  const KeepMask by_share = mask_of_prompt<Compactor>(options);
  options.blending = .6;
  EXPECT_EQ(mask_of_prompt<Compactor>(options), by_share);
}

TEST(Compactor, RefusesOptionsAndNamesThem) {
  CompactorOptions options;
  options.blending = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(refuses([&] { Compactor(options, kModel); }, {"Compactor", "blending", "nan"}));
  EXPECT_TRUE(refuses([] { Compactor({.budget = 11}, kModel); }, {"Compactor", "budget", "11"}));
}

}  // namespace
