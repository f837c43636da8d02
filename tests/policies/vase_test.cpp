#include "kvevict/policies/vase.hpp"

#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/test_engine.hpp"
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

using kvevict::Budget;
using kvevict::CacheShape;
using kvevict::VaSE;
using kvevict::VaSEOptions;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};

/// Two channels of a value: its range is their distance.
void set_value(WindowCache& cache, std::size_t slot, float a, float b) {
  cache.value(0, 0, slot)[0] = a;
  cache.value(0, 0, slot)[1] = b;
}

// Slots 3, 6 and 7 have values of range 1, 2 and 7, and nobody votes. Where nothing is drawn, equal
// votes keep the lower slots; the reserve of 3, the sink among them, keeps 6 and 7.
TEST(VaSE, ReservesPlacesForValuesOfLargeRange) {
  WindowCache cache(kOneHead, 16);
  cache.append(10);
  set_value(cache, 3, 1, 2);
  set_value(cache, 6, -1, 1);
  set_value(cache, 7, -3, 4);
  VaSEOptions options{.budget = 6,
                      .interval = 1,
                      .num_sink_tokens = 1,
                      .recent_window = 2,
                      .reserve = Budget::keep_ratio(.5),  // 3 of 6, one of them the sink
                      .pooling = {.kernel_size = 1},
                      .sample = false};
  VaSE policy(options, kOneHead);
  policy.append(10);
  // Sink 0; 6 and 7 of the largest ranges; 1, the first of equal votes; 8 and 9.
  EXPECT_EQ(text_of(policy.select(cache.view())), "1100001111");
  options.reserve = 0;
  VaSE without(options, kOneHead);
  without.append(10);
  EXPECT_EQ(text_of(without.select(cache.view())), "1111000011");
}

// A value that is not finite has no large range.
TEST(VaSE, AValueThatIsNotFiniteIsNotReserved) {
  WindowCache cache(kOneHead, 16);
  cache.append(6);
  set_value(cache, 1, std::numeric_limits<float>::quiet_NaN(), 1);
  set_value(cache, 2, std::numeric_limits<float>::infinity(), 1);
  set_value(cache, 3, 0, 1);
  VaSE policy({.budget = 2,
               .interval = 1,
               .num_sink_tokens = 0,
               .recent_window = 1,
               .reserve = Budget::keep_ratio(.5),
               .sample = false},
              kOneHead);
  policy.append(6);
  EXPECT_EQ(text_of(policy.select(cache.view())), "000101");
}

constexpr CacheShape kGroup{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 5};

/// In double: the mean over heads of pooled means over queries of softmaxes over the past.
double vote(WindowCache& cache, const WindowQueries& queries, std::size_t layer, std::size_t head,
            std::size_t past, std::size_t pool, std::size_t token) {
  const kvevict::QueryRows rows = queries.rows(layer, 0, queries.num_rows());
  double sum = 0;
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::size_t r = 0; r < queries.num_rows(); ++r) {
      const float* query = rows.data +
                           static_cast<std::ptrdiff_t>(head * 2 + g) * rows.head_stride +
                           static_cast<std::ptrdiff_t>(r) * rows.row_stride;
      std::vector<double> weights;
      double mass = 0;
      for (std::size_t slot = 0; slot < past; ++slot) {
        double logit = 0;
        for (std::size_t c = 0; c < 5; ++c) {
          logit +=
              static_cast<double>(query[c]) * static_cast<double>(cache.key(layer, head, slot)[c]);
        }
        weights.push_back(std::exp(logit / std::sqrt(5.0)));
        mass += weights.back();
      }
      for (std::size_t slot = 0; slot < past; ++slot) {
        if ((slot > token ? slot - token : token - slot) <= pool / 2)
          sum += weights[slot] / mass / static_cast<double>(pool);
      }
    }
  }
  return sum / 2 / static_cast<double>(queries.num_rows());
}

// Queries of the prompt's last 20 tokens are kept and asked again, whatever the pieces in which it
// came.
TEST(VaSE, TheNewestQueriesVoteOverThePast) {
  for (const std::size_t chunk : {std::size_t{50}, std::size_t{7}}) {
    Random random(4);
    WindowCache cache(kGroup, 60);
    cache.fill(random);
    const WindowQueries queries(kGroup, 20, random);
    VaSE policy({.budget = 30,
                 .interval = 1,
                 .num_sink_tokens = 2,
                 .recent_window = 20,
                 .observation_window = 20,
                 .sample = false},
                kGroup);
    feed_prompt(policy, cache, 50, queries, chunk);
    for (std::size_t lane = 0; lane < 4; ++lane) {
      const std::vector<float> scores = scores_of(policy, cache, lane);
      for (std::size_t slot = 0; slot < 30; ++slot) {
        EXPECT_NEAR(scores[slot], vote(cache, queries, lane / 2, lane % 2, 30, 5, slot), 1e-6);
      }
      EXPECT_EQ(scores[30], 0.0F);
    }
  }
}

// A query sees no token behind its own: of 4 tokens the first query sees 1, the last all but the
// newest, which is recent.
TEST(VaSE, AQuerySeesNoLaterToken) {
  WindowCache cache(kOneHead, 8);
  VaSE policy({.budget = 2,
               .interval = 1,
               .num_sink_tokens = 0,
               .recent_window = 1,
               .observation_window = 4,
               .pooling = {.kernel_size = 1},
               .sample = false},
              kOneHead);
  Random random(1);
  const WindowQueries queries(kOneHead, 4, random);
  feed_prompt(policy, cache, 4, queries, 4);  // keys are 0: attention is even
  const std::vector<float> scores = scores_of(policy, cache);
  EXPECT_NEAR(scores[0], (1 + 1 / 2. + 1 / 3. + 1 / 3.) / 4, 1e-6);
  EXPECT_NEAR(scores[1], (1 / 2. + 1 / 3. + 1 / 3.) / 4, 1e-6);
  EXPECT_NEAR(scores[2], (1 / 3. + 1 / 3.) / 4, 1e-6);
}

// Three tokens with votes 4 : 2 : 1 compete for one place. Over 3,000 sequences each is drawn in
// proportion: 1714, 857 and 429, with standard deviations of at most 27.
TEST(VaSE, DrawsInProportionToTheVote) {
  WindowCache cache(kOneHead, 8);
  cache.append(4);
  for (std::size_t slot = 0; slot < 3; ++slot)
    cache.key(0, 0, slot)[0] = static_cast<float>(std::log(4.0 / (1U << slot)) * std::sqrt(2.0));
  const std::vector<float> query = {1, 0};
  std::array<std::size_t, 3> drawn{};
  for (std::uint64_t id = 0; id < 3000; ++id) {
    VaSE policy({.budget = 2,
                 .interval = 1,
                 .num_sink_tokens = 0,
                 .recent_window = 1,
                 .observation_window = 1,
                 .reserve = 0,
                 .pooling = {.kernel_size = 1},
                 .sequence_id = id},
                kOneHead);
    policy.append(4);
    policy.observe_queries(
        0,
        {.data = query.data(), .num_q_heads = 1, .num_rows = 1, .head_stride = 2, .row_stride = 2},
        cache.view());
    ++drawn[kept_slots(policy.select(cache.view())).front()];
  }
  EXPECT_NEAR(static_cast<double>(drawn[0]), 1714.3, 81);
  EXPECT_NEAR(static_cast<double>(drawn[1]), 857.1, 74);
  EXPECT_NEAR(static_cast<double>(drawn[2]), 428.6, 58);
}

TEST(VaSE, CutsAtIntervalsAndDrawsAnew) {
  VaSEOptions options{.budget = 20,
                      .interval = 10,
                      .num_sink_tokens = 2,
                      .recent_window = 4,
                      .observation_window = 4};
  TestEngine<VaSE> engine(VaSE(options, kGroup),
                          layouts::nhd(kGroup, 200, kvevict::ElementType::kF32));
  engine.prompt(50);
  EXPECT_TRUE(engine.evict_if_due());
  EXPECT_EQ(engine.positions(1, 1).size(), 20U);
  engine.decode(9);
  EXPECT_EQ(engine.positions(1, 1).size(), 29U);
  auto fork = engine;
  engine.decode(1);
  EXPECT_EQ(engine.positions(1, 1).size(), 20U);
  fork.decode(1);
  EXPECT_EQ(engine.all_positions(), fork.all_positions());
  EXPECT_EQ(engine.policy.counters().missing_signals, 0U);
}

// Drafted tokens that are taken back leave no vote.
TEST(VaSE, QueriesTakenBackDoNotVote) {
  VaSEOptions options{.budget = 20,
                      .interval = 1,
                      .num_sink_tokens = 2,
                      .recent_window = 4,
                      .observation_window = 3,
                      .sample = false};
  TestEngine<VaSE> engine(VaSE(options, kGroup),
                          layouts::nhd(kGroup, 200, kvevict::ElementType::kF32));
  engine.prompt(40);
  auto other = engine;
  engine.feed(2);
  engine.truncate(40);
  engine.feed(3);
  other.feed(3);
  EXPECT_EQ(engine.select(), other.select());
}

// Whatever its vote: where keys or values are NaN the token goes first, and is counted.
TEST(VaSE, ATokenOfNaNGoesFirst) {
  TestEngine<VaSE> engine(
      VaSE({.budget = 39, .interval = 1, .num_sink_tokens = 1, .recent_window = 4}, kGroup),
      layouts::nhd(kGroup, 200, kvevict::ElementType::kF32), {.nan_position = 7});
  engine.prompt(40);
  EXPECT_TRUE(engine.evict_if_due());
  for (std::size_t lane = 0; lane < 4; ++lane) {
    const std::vector<std::size_t>& kept = engine.positions(lane / 2, lane % 2);
    EXPECT_EQ(kept.size(), 39U);
    EXPECT_FALSE(std::binary_search(kept.begin(), kept.end(), 7U));
  }
  EXPECT_GT(engine.policy.counters().non_finite, 0U);
}

TEST(VaSE, RefusesABadWindow) {
  EXPECT_TRUE(refuses([] { VaSE policy({.observation_window = 0}, kOneHead); },
                      {"VaSE", "observation_window", "0"}));
  EXPECT_TRUE(refuses([] { VaSE policy({.interval = 0}, kOneHead); }, {"VaSE", "interval", "0"}));
}

}  // namespace
}  // namespace kvevict_test
