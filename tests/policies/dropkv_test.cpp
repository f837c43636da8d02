#include "kvevict/policies/dropkv.hpp"

#include "kvevict/policies/caote.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::DropKV;
using kvevict::DropKVOptions;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr CacheShape kGroup{.num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 5};

DropKVOptions without_pooling(std::size_t budget, std::size_t window) {
  return {.budget = budget, .observation_window = window, .pooling = {.kernel_size = 1}};
}

/// A prompt of one head whose last query, 1, gives its tokens attention in proportion to `weights`.
struct OneRow {
  WindowCache cache{kOneHead, 16};
  std::vector<float> query = {1};

  OneRow(const std::vector<double>& weights, const std::vector<float>& values) {
    cache.append(weights.size());
    for (std::size_t slot = 0; slot < weights.size(); ++slot) {
      *cache.key(0, 0, slot) = static_cast<float>(std::log(weights[slot]));
      *cache.value(0, 0, slot) = values[slot];
    }
  }
  template <class P>
  void feed(P& policy) {
    policy.begin(cache.seq_len());
    policy.observe_queries(
        0,
        {.data = query.data(), .num_q_heads = 1, .num_rows = 1, .head_stride = 1, .row_stride = 1},
        cache.view());
    policy.end_prefill(cache.view());
  }
};

// p = (.5, .3, .2), v = (1, 2, 4): o = 1.9 and s = (1 * .81, (3/7)^2 * .01, (1/4)^2 * 4.41), the
// last of which is the window's own.
TEST(DropKV, ScoresTheSquaredChange) {
  OneRow row({.5, .3, .2}, {1, 2, 4});
  DropKV policy(without_pooling(2, 1), kOneHead);
  row.feed(policy);
  const std::vector<float> scores = scores_of(policy, row.cache);
  EXPECT_NEAR(scores[0], .81, 1e-6);
  EXPECT_NEAR(scores[1], .00183673, 1e-7);
  EXPECT_EQ(scores[2], 0.0F);
  EXPECT_EQ(text_of(policy.select(row.cache.view())), "101");
}

// CAOTE's c of the same row, squared.
TEST(DropKV, OfOneRowIsCAOTESquared) {
  OneRow row({.1, .4, .15, .05, .3}, {3, -1, 0, 2, 1});
  DropKV policy(without_pooling(2, 1), kOneHead);
  row.feed(policy);
  kvevict::TOVACAOTE caote({.budget = 2}, kOneHead);
  row.feed(caote);
  const std::vector<float> squares = scores_of(policy, row.cache);
  const std::vector<float> changes = scores_of(caote, row.cache);
  for (std::size_t slot = 0; slot < 4; ++slot)
    EXPECT_NEAR(squares[slot], changes[slot] * changes[slot], 1e-6) << slot;
}

/// In double, from the definition of leaving a token out: the softmax over all others.
double by_removal(WindowCache& cache, const WindowQueries& queries, std::size_t window,
                  std::size_t kv_head, std::size_t token) {
  const std::size_t dim = kGroup.head_dim;
  const std::size_t len = cache.seq_len();
  const kvevict::QueryRows rows = queries.rows(0, 0, window);
  double sum = 0;
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::size_t r = 0; r < window; ++r) {
      const float* query = rows.data +
                           static_cast<std::ptrdiff_t>(kv_head * 2 + g) * rows.head_stride +
                           static_cast<std::ptrdiff_t>(r) * rows.row_stride;
      const auto output_without = [&](std::size_t missing) {
        std::vector<double> output(dim);
        double mass = 0;
        for (std::size_t slot = 0; slot + window <= len + r; ++slot) {
          if (slot == missing)
            continue;
          double logit = 0;
          for (std::size_t c = 0; c < dim; ++c) {
            logit +=
                static_cast<double>(query[c]) * static_cast<double>(cache.key(0, kv_head, slot)[c]);
          }
          const double weight = std::exp(logit / std::sqrt(5.0));
          mass += weight;
          for (std::size_t c = 0; c < dim; ++c)
            output[c] += weight * static_cast<double>(cache.value(0, kv_head, slot)[c]);
        }
        for (double& x : output)
          x /= mass;
        return output;
      };
      const std::vector<double> whole = output_without(len);
      const std::vector<double> without = output_without(token);
      for (std::size_t c = 0; c < dim; ++c)
        sum += (whole[c] - without[c]) * (whole[c] - without[c]) / 2;
    }
  }
  return sum;
}

// The formula is what leaving a token out and renormalising does, over rows and heads; the same in
// one piece and in chunks, and pooled over the prefix alone.
TEST(DropKV, IsTheErrorOfLeavingATokenOut) {
  constexpr std::size_t kLen = 30;
  constexpr std::size_t kWindow = 20;  // more rows than are made at once
  for (const std::size_t chunk : {kLen, std::size_t{7}}) {
    Random random(3);
    WindowCache cache(kGroup, 40);
    cache.fill(random);
    const WindowQueries queries(kGroup, kWindow, random);
    DropKV policy(without_pooling(25, kWindow), kGroup);
    DropKV pooled({.budget = 25, .observation_window = kWindow}, kGroup);
    WindowCache other = cache;
    feed_prompt(policy, cache, kLen, queries, chunk);
    feed_prompt(pooled, other, kLen, queries, chunk);
    for (std::size_t head = 0; head < 2; ++head) {
      const std::vector<float> scores = scores_of(policy, cache, head);
      const std::vector<float> averages = scores_of(pooled, other, head);
      std::vector<double> expected(kLen);
      for (std::size_t slot = 0; slot < kLen - kWindow; ++slot)
        expected[slot] = by_removal(cache, queries, kWindow, head, slot);
      for (std::size_t slot = 0; slot < kLen - kWindow; ++slot) {
        EXPECT_NEAR(scores[slot], expected[slot], 1e-4 * (1 + expected[slot])) << slot;
        double average = 0;
        for (std::size_t at = slot < 3 ? 0 : slot - 3; at <= std::min(slot + 3, kLen - 1); ++at)
          average += expected[at] / 7;
        EXPECT_NEAR(averages[slot], average, 1e-4 * (1 + average)) << slot;
      }
    }
  }
}

// A common shift of all values moves all outputs by the same.
TEST(DropKV, DoesNotSeeACommonShiftOfValues) {
  OneRow here({.1, .4, .2, .3}, {3, -1, 0, 2});
  OneRow there({.1, .4, .2, .3}, {11, 7, 8, 10});
  DropKV a(without_pooling(2, 1), kOneHead);
  DropKV b(without_pooling(2, 1), kOneHead);
  here.feed(a);
  there.feed(b);
  for (std::size_t slot = 0; slot < 3; ++slot)
    EXPECT_NEAR(scores_of(a, here.cache)[slot], scores_of(b, there.cache)[slot], 1e-5);
}

// p of slot 1 is 1 in float. Without it the others share the row, (3 + 0 + 2) / 3 = 5/3, so that
// the output moves by 1 + 5/3; where the others have no mass at all, to 0.
TEST(DropKV, ATokenWithAllTheMassStays) {
  OneRow row({1e-20, 1.0, 1e-20, 1e-20}, {3, -1, 0, 2});
  DropKV policy(without_pooling(2, 1), kOneHead);
  row.feed(policy);
  EXPECT_EQ(policy.counters().non_finite, 0U);
  EXPECT_NEAR(scores_of(policy, row.cache)[1], 64 / 9., 1e-4);
  EXPECT_EQ(text_of(policy.select(row.cache.view())), "0101");
  OneRow alone({1e-200, 1.0, 1e-200, 1e-200}, {3, -2, 0, 2});
  DropKV other(without_pooling(2, 1), kOneHead);
  alone.feed(other);
  EXPECT_EQ(scores_of(other, alone.cache)[1], 4.0F);
}

TEST(DropKV, WantsValuesWithTheQueries) {
  OneRow row({.5, .5}, {1, 2});
  DropKV policy(without_pooling(1, 1), kOneHead);
  policy.begin(2);
  std::vector<float> keys = {1, 2};
  const kvevict::views::ContiguousView no_values(
      kOneHead, kvevict::views::Tensor::hnd(keys.data(), kvevict::ElementType::kF32, 2, 1, 1), {},
      2);
  EXPECT_TRUE(refuses(
      [&] {
        policy.observe_queries(0,
                               {.data = row.query.data(),
                                .num_q_heads = 1,
                                .num_rows = 1,
                                .head_stride = 1,
                                .row_stride = 1},
                               no_values);
      },
      {"DropKV", "Lane.values.present()", "0"}));
  EXPECT_TRUE(refuses([] { DropKV bad({.observation_window = 0}, kOneHead); },
                      {"DropKV", "observation_window", "0"}));
}

// Heads of a layer compete: what one gains the other loses.
TEST(AdaKVDropKV, SharesTheLayersBudget) {
  Random random(8);
  WindowCache cache(kGroup, 40);
  cache.fill(random);
  for (std::size_t slot = 0; slot < 30; ++slot) {  // head 1 has values of no weight
    for (std::size_t c = 0; c < 5; ++c)
      cache.value(0, 1, slot)[c] *= .01F;
  }
  const WindowQueries queries(kGroup, 4, random);
  kvevict::AdaKVDropKV::Options options;
  options.budget = 12;
  options.observation_window = 4;
  kvevict::AdaKVDropKV policy(options, kGroup);
  feed_prompt(policy, cache, 30, queries, 30);
  const kvevict::KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(mask.total_count(), 24U);
  EXPECT_GT(mask.count(0, 0), 15U);
}

}  // namespace
}  // namespace kvevict_test
