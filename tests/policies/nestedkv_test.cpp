#include "kvevict/policies/nestedkv.hpp"

#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::NestedKV;
using kvevict::NestedKVOptions;

constexpr CacheShape kTwoHeads{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 6};

using Row = std::vector<double>;

/// The definition in double, over the slots of `tokens`.
std::vector<double> by_definition(WindowCache& cache, std::size_t head,
                                  const std::vector<std::size_t>& tokens) {
  const std::size_t n = tokens.size();
  const std::size_t dim = cache.shape().head_dim;
  std::vector<Row> unit;
  for (const std::size_t slot : tokens) {
    Row row(cache.key(0, head, slot), cache.key(0, head, slot) + dim);
    double square = 0;
    for (const double x : row)
      square += x * x;
    for (double& x : row)
      x /= square > 0 ? std::sqrt(square) : 1;
    unit.push_back(row);
  }
  // -k^ mean(k^ of [first, last))
  const auto anomaly = [&](std::size_t i, std::size_t first, std::size_t last) {
    double sum = 0;
    for (std::size_t j = first; j < last; ++j) {
      for (std::size_t c = 0; c < dim; ++c)
        sum -= unit[i][c] * unit[j][c] / static_cast<double>(last - first);
    }
    return sum;
  };
  const std::size_t block = std::clamp<std::size_t>(n / 32, 128, 256);
  std::array<std::vector<double>, 3> a;
  for (std::size_t i = 0; i < n; ++i) {
    a[0].push_back(anomaly(i, 0, n));
    a[1].push_back(anomaly(i, i / block * block, std::min(n, (i / block + 1) * block)));
    a[2].push_back(anomaly(i, i < 63 ? 0 : i - 63, i + 1));
  }
  const auto to_range = [](std::vector<double>& x) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const double least = *low;
    const double range = *high - least;
    for (double& value : x)
      value = range > 0 ? (value - least) / range : 0;
  };
  std::array<double, 3> weights = {.4, .4, .2};
  double total = 0;
  for (std::size_t s = 0; s < 3; ++s) {
    to_range(a[s]);
    std::vector<double> sorted = a[s];
    std::sort(sorted.begin(), sorted.end());
    const std::size_t tenth = std::max<std::size_t>(1, n / 10);
    double gap = 0;
    for (std::size_t i = 0; i < tenth; ++i)
      gap += (sorted[n - 1 - i] - sorted[i]) / static_cast<double>(tenth);
    weights[s] *= std::exp(3 * gap);
    total += weights[s];
  }
  std::vector<double> deviations;
  for (std::size_t i = 0; i < n; ++i) {
    const double mean = (a[0][i] + a[1][i] + a[2][i]) / 3;
    double square = 0;
    for (std::size_t s = 0; s < 3; ++s)
      square += (a[s][i] - mean) * (a[s][i] - mean) / 3;
    deviations.push_back(std::sqrt(square));
  }
  to_range(deviations);
  double mean = 0;
  for (const double x : deviations)
    mean += x / static_cast<double>(n);
  std::vector<double> scores;
  for (std::size_t i = 0; i < n; ++i) {
    const double alpha = 1 / (1 + std::exp(-10 * (deviations[i] - mean - .6)));
    double blended = 0;
    for (std::size_t s = 0; s < 3; ++s)
      blended += weights[s] / total * a[s][i];
    scores.push_back((1 - alpha) * blended + alpha * std::max({a[0][i], a[1][i], a[2][i]}));
  }
  return scores;
}

NestedKV fed(const NestedKVOptions& options, WindowCache& cache) {
  NestedKV policy(options, cache.shape());
  policy.begin(cache.seq_len());
  policy.end_prefill(cache.view());
  return policy;
}
WindowCache random_cache(std::size_t len, std::uint64_t seed) {
  Random random(seed);
  WindowCache cache(kTwoHeads, len);
  cache.fill(random);
  cache.append(len);
  return cache;
}

// Three blocks, the last of them short, and a trailing window shorter than the text.
TEST(NestedKV, ScoresAreThoseOfTheDefinition) {
  WindowCache cache = random_cache(300, 6);
  const NestedKV policy = fed({.budget = 100}, cache);
  for (std::size_t head = 0; head < 2; ++head) {
    const std::vector<float> scores = scores_of(policy, cache, head);
    const std::vector<double> expected = by_definition(cache, head, range(0, 300));
    for (std::size_t i = 0; i < 300; ++i)
      EXPECT_NEAR(scores[i], expected[i], 2e-5) << i;
  }
}

// Two keys: unit keys (1, 0), (0, 1). Over all -1/2 each, so is the block: constant scales are 0.
// The trailing means give -1 and -1/2: scaled 0 and 1, a gap of 1. Weights .4, .4, .2 e^3, so that
// w_c = .2 e^3 / (.8 + .2 e^3) = .833924. Deviations 0 and sqrt(2)/3 scale to 0 and 1, their mean
// is 1/2: alpha = sigmoid(10 (1 - .5 - .6)) = sigmoid(-1) = .268941 for the second.
TEST(NestedKV, TwoKeysByHand) {
  WindowCache cache(kTwoHeads, 2);
  cache.append(2);
  for (std::size_t head = 0; head < 2; ++head) {
    cache.key(0, head, 0)[0] = 3;
    cache.key(0, head, 1)[1] = .5F;
  }
  const std::vector<float> scores = scores_of(fed({.budget = 1}, cache), cache);
  EXPECT_NEAR(scores[0], 0, 1e-6);
  EXPECT_NEAR(scores[1], (1 - .268941) * .833924 + .268941, 1e-5);
}

// Slots without a token change nothing for the others, whatever lies there; and the length of a key
// does not count.
TEST(NestedKV, PaddingAndLengthsDoNotCount) {
  WindowCache cache = random_cache(200, 7);
  cache.valid().assign(200, 1);
  std::fill_n(cache.valid().begin(), 30, std::uint8_t{0});
  for (std::size_t slot = 0; slot < 30; ++slot)
    cache.key(0, 0, slot)[0] = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t slot = 30; slot < 200; slot += 3) {
    for (std::size_t c = 0; c < 6; ++c)
      cache.key(0, 0, slot)[c] *= 8;
  }
  const std::vector<float> scores = scores_of(fed({.budget = 50}, cache), cache);
  const std::vector<double> expected = by_definition(cache, 0, range(30, 200));
  for (std::size_t i = 0; i < 170; ++i)
    EXPECT_NEAR(scores[30 + i], expected[i], 2e-5) << i;
}

// A key that is not finite goes first and takes nothing from the others.
TEST(NestedKV, AKeyOfNaNGoesFirst) {
  WindowCache cache = random_cache(40, 9);
  cache.key(0, 0, 7)[2] = std::numeric_limits<float>::quiet_NaN();
  const NestedKV policy = fed({.budget = 39}, cache);
  const std::vector<float> scores = scores_of(policy, cache);
  for (std::size_t i = 0; i < 40; ++i)
    EXPECT_EQ(std::isfinite(scores[i]), i != 7) << i;
  EXPECT_FALSE(policy.select(cache.view()).keeps(0, 0, 7));
}

// Heads compete for 2 * 50 places; by the floor each keeps its 10 best at least.
TEST(NestedKV, HeadsOfALayerCompete) {
  WindowCache cache = random_cache(200, 10);
  for (std::size_t slot = 0; slot < 200; ++slot) {  // head 1: one direction, and one key apart
    std::fill_n(cache.key(0, 1, slot), 6, 0.0F);
    cache.key(0, 1, slot)[slot == 50 ? 1 : 0] = 1;
  }
  const NestedKV policy = fed({.budget = 50}, cache);
  const kvevict::KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(mask.total_count(), 100U);
  EXPECT_EQ(mask.count(0, 1), 10U);
  EXPECT_TRUE(mask.keeps(0, 1, 50));
}

TEST(NestedKV, CutsPromptsOnce) {
  WindowCache cache = random_cache(60, 2);
  NestedKV policy = fed({.budget = 20}, cache);
  EXPECT_TRUE(policy.should_evict());
  cut(policy, cache);
  EXPECT_FALSE(policy.should_evict());
  EXPECT_TRUE(refuses([] { NestedKV bad({.trailing_window = 0}, kTwoHeads); },
                      {"NestedKV", "trailing_window", "0"}));
  EXPECT_TRUE(refuses([] { NestedKV bad({.floor = 2}, kTwoHeads); }, {"NestedKV", "floor", "2"}));
}

}  // namespace
}  // namespace kvevict_test
