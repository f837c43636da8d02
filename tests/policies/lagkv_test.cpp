#include "kvevict/policies/lagkv.hpp"

#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace {

using namespace kvevict;
using namespace kvevict_test;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};

using Row = std::array<float, 2>;
void write_keys(WindowCache& cache, std::size_t first, const std::vector<Row>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::copy(rows[i].begin(), rows[i].end(), cache.key(0, 0, first + i));
}
template <class P>
void feed(P& policy, WindowCache& cache, std::size_t count, bool whole_prompt = true) {
  if (whole_prompt)
    policy.begin(count);
  policy.append(count);
  cache.append(count);
  if (whole_prompt)
    policy.end_prefill(cache.view());
}

// policies.md 4.4: (0, 0) and (4, 0) against (1, 1) and (3, 2), whose channels have range 2 and 1:
// (-.5, -1) deviates by .353553, (1.5, -1) by 1.767767, and softmax of them is .19557, .80443.
// Values are all 0, so each token has half of that and 1/4 of the values' side.
TEST(LagKV, ScoresAPartitionByTheNext) {
  WindowCache cache(kOneHead, 5);
  write_keys(cache, 0, {{9, 9}, {0, 0}, {4, 0}, {1, 1}, {3, 2}});
  LagKV policy({.num_sink_tokens = 1, .lag_len = 2}, kOneHead);
  feed(policy, cache, 5);
  const std::vector<float> scores = scores_of(policy, cache);
  EXPECT_NEAR(scores[1], .19557F / 2 + .25F, 1e-5F);
  EXPECT_NEAR(scores[2], .80443F / 2 + .25F, 1e-5F);
  EXPECT_TRUE(policy.should_evict());
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 2, 3, 4}));
}

// Case O-13: a channel of range 0 is 0. (0, .5) and (0, .7) deviate by .353553 and .494975, whose
// softmax is .464696, .535304.
TEST(LagKV, AChannelWithoutRangeIsNoDeviation) {
  WindowCache cache(kOneHead, 4);
  write_keys(cache, 0, {{1, 5}, {1, 7}, {1, 0}, {1, 10}});
  LagKV policy({.num_sink_tokens = 0, .lag_len = 2, .value_weight = 0}, kOneHead);
  feed(policy, cache, 4);
  const std::vector<float> scores = scores_of(policy, cache);
  EXPECT_NEAR(scores[0], .464696F, 1e-5F);
  EXPECT_NEAR(scores[1], .535304F, 1e-5F);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{1, 2, 3}));
}

// Values count as keys do; value_weight is their share.
TEST(LagKV, ValuesCountByTheirWeight) {
  WindowCache cache(kOneHead, 4);
  write_keys(cache, 0, {{4, 0}, {0, 0}, {1, 1}, {3, 2}});
  for (std::size_t slot = 0; slot < 4; ++slot)
    std::copy_n(cache.key(0, 0, slot < 2 ? 1 - slot : slot), 2, cache.value(0, 0, slot));
  const auto first_two = [&](float weight) {
    WindowCache copy = cache;
    LagKV policy({.num_sink_tokens = 0, .lag_len = 2, .value_weight = weight}, kOneHead);
    feed(policy, copy, 4);
    const std::vector<float> scores = scores_of(policy, copy);
    return std::vector<float>(scores.begin(), scores.begin() + 2);
  };
  EXPECT_NEAR(first_two(0)[0], .80443F, 1e-5F);
  EXPECT_NEAR(first_two(1)[0], .5F, 1e-6F);
  EXPECT_NEAR(first_two(3)[0], (.80443F + 3 * .19557F) / 4, 1e-5F);
}

// A partition is cut when the next one is complete, and never again: whether the cache is asked at
// every token, every third one or once makes no difference.
TEST(LagKV, TheResultDoesNotDependOnHowOftenItIsCut) {
  constexpr CacheShape shape{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};
  Random random(7);
  WindowCache full(shape, 43);
  full.fill(random);
  const auto run = [&](std::size_t step) {
    WindowCache cache = full;
    LagKV policy({.num_sink_tokens = 3, .lag_len = 8, .per_partition = 3}, shape);
    std::size_t fed = 0;
    while (fed < 43) {
      const std::size_t count = std::min(step, 43 - fed);
      for (std::size_t lane = 0; lane < 4; ++lane) {
        const std::size_t len = cache.seq_len(lane);
        std::copy_n(full.key(lane / 2, lane % 2, fed), count * 4,
                    cache.key(lane / 2, lane % 2, len));
        std::copy_n(full.value(lane / 2, lane % 2, fed), count * 4,
                    cache.value(lane / 2, lane % 2, len));
      }
      feed(policy, cache, count, false);
      fed += count;
      if (policy.should_evict())
        cut(policy, cache);
      EXPECT_FALSE(policy.should_evict());
    }
    std::vector<Slots> positions;
    for (std::size_t lane = 0; lane < 4; ++lane) {
      positions.emplace_back();
      for (std::size_t slot = 0; slot < cache.seq_len(lane); ++slot)
        positions.back().push_back(
            static_cast<std::size_t>(policy.sequence().position(lane, slot)));
    }
    return positions;
  };
  const auto expected = run(1);
  // 5 partitions of 8 behind 3 sinks, no tail: 4 of them were cut to 3.
  EXPECT_EQ(expected[0].size(), 3U + 4 * 3 + 8);
  EXPECT_NE(expected[0], expected[1]);
  for (const std::size_t step : {3U, 10U, 43U})
    EXPECT_EQ(run(step), expected) << step;
}

TEST(LagKV, WaitsForTwoPartitions) {
  LagKV policy({.num_sink_tokens = 2, .lag_len = 4}, kOneHead);
  WindowCache cache(kOneHead, 10);
  for (std::size_t n = 1; n < 10; ++n) {
    feed(policy, cache, 1, false);
    EXPECT_FALSE(policy.should_evict()) << n;
    EXPECT_EQ(policy.select(cache.view()).total_evicted(), 0U);
  }
  feed(policy, cache, 1, false);
  EXPECT_TRUE(policy.should_evict());
  EXPECT_EQ(policy.select(cache.view()).total_evicted(), 2U);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 1, 2, 3, 6, 7, 8, 9}));  // all tie
}

// Pins come out of the partition's own share.
TEST(LagKV, PinsCountInTheirPartition) {
  LagKV policy({.num_sink_tokens = 0, .lag_len = 4}, kOneHead);
  WindowCache cache(kOneHead, 8);
  const std::vector<PositionSpan> pinned{{3, 4}};
  policy.begin(8, pinned);
  cache.append(8);
  policy.end_prefill(cache.view());
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 3, 4, 5, 6, 7}));
}

// Left padding is in no partition and goes with the first cut (rule R9).
TEST(LagKV, PaddingIsInNoPartition) {
  WindowCache cache(kOneHead, 10);
  cache.valid() = {0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  Random random(2);
  cache.fill(random);
  *cache.key(0, 0, 0) = std::numeric_limits<float>::infinity();
  WindowCache plain(kOneHead, 8);
  for (std::size_t slot = 0; slot < 8; ++slot) {
    std::copy_n(cache.key(0, 0, slot + 2), 2, plain.key(0, 0, slot));
    std::copy_n(cache.value(0, 0, slot + 2), 2, plain.value(0, 0, slot));
  }
  const LagKVOptions options{.num_sink_tokens = 1, .lag_len = 3, .per_partition = 1};
  LagKV padded(options, kOneHead);
  feed(padded, cache, 10);
  LagKV straight(options, kOneHead);
  feed(straight, plain, 8);
  Slots expected = kept_slots(straight.select(plain.view()));
  EXPECT_EQ(expected.size(), 6U);
  for (std::size_t& slot : expected)
    slot += 2;
  EXPECT_EQ(kept_slots(padded.select(cache.view())), expected);
  cut(padded, cache);
  cache.valid().clear();
  EXPECT_FALSE(padded.should_evict());
}

TEST(LagKV, NaNIsNoDeviation) {
  WindowCache cache(kOneHead, 4);
  write_keys(cache, 0, {{std::numeric_limits<float>::quiet_NaN(), 7}, {5, 1}, {0, 0}, {1, 1}});
  LagKV policy({.num_sink_tokens = 0, .lag_len = 2, .value_weight = 0}, kOneHead);
  feed(policy, cache, 4);
  for (const float score : scores_of(policy, cache))
    EXPECT_TRUE(std::isfinite(score));
  EXPECT_EQ(policy.select(cache.view()).total_count(), 3U);
}

TEST(LagKV, RefusesOptionsAndNamesThem) {
  EXPECT_TRUE(refuses([] { LagKV({.lag_len = 0}, kOneHead); }, {"LagKV", "lag_len", "0"}));
  EXPECT_TRUE(refuses([] { LagKV({.value_weight = -1}, kOneHead); }, {"LagKV", "value_weight"}));
  EXPECT_TRUE(refuses([] { LagKV({.per_partition = Budget::total(9)}, kOneHead); },
                      {"LagKV", "per_partition", "9"}));
  EXPECT_TRUE(
      refuses([] { LagKVBudget({.lag_len = 0}, kOneHead); }, {"LagKVBudget", "lag_len", "0"}));
  EXPECT_TRUE(refuses([] { LagKVBudget({.budget = 3}, kOneHead); }, {"LagKVBudget", "budget"}));
}

// Too short for two partitions: sinks and the newest.
TEST(LagKVBudget, AShortCacheKeepsItsNewestTokens) {
  LagKVBudget policy({.budget = 4, .num_sink_tokens = 1, .lag_len = 5}, kOneHead);
  WindowCache cache(kOneHead, 10);
  feed(policy, cache, 10);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 7, 8, 9}));
}

// Sinks come before the newest partition, which comes before all others.
TEST(LagKVBudget, ASmallBudgetKeepsSinksAndTheNewest) {
  LagKVBudget policy({.budget = 4, .num_sink_tokens = 2, .lag_len = 3}, kOneHead);
  WindowCache cache(kOneHead, 12);
  feed(policy, cache, 12);
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 1, 10, 11}));
}

// Ranks of ties: the lower slot ranks higher; two partitions of 3 keep 2 each.
TEST(LagKVBudget, PartitionsKeepAlike) {
  LagKVBudget policy({.budget = 8, .num_sink_tokens = 1, .lag_len = 3}, kOneHead);
  WindowCache cache(kOneHead, 10);
  feed(policy, cache, 10);
  EXPECT_EQ(scores_of(policy, cache),
            (std::vector<float>{0, 2 / 3.F, 1 / 3.F, 0, 2 / 3.F, 1 / 3.F, 0, 0, 0, 0}));
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 1, 2, 4, 5, 7, 8, 9}));
}

}  // namespace
