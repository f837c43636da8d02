// Policies that have to agree where one contains the other, and what a policy must not depend on
// (rotations, scales, the order of heads, other heads, a larger budget).
#include "kvevict/policies/curdkv.hpp"
#include "kvevict/policies/external_scores.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/lagkv.hpp"
#include "kvevict/policies/rkv.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/policies/tova.hpp"
#include "support/layouts.hpp"
#include "support/random.hpp"
#include "support/test_engine.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::KeepMask;

constexpr CacheShape kShape{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 6, .value_dim = 6};

/// Positions of every lane after a prompt and some steps.
template <class P>
auto run(const typename P::Options& options, const CacheShape& shape = kShape) {
  TestEngine<P> engine(P(options, shape), layouts::nhd(shape, 100, kvevict::ElementType::kF32));
  engine.prompt(40, 7);
  engine.evict_if_due();
  engine.decode(20);
  return engine.all_positions();
}

// ----------------------------------------------------------------------------------- reductions

TEST(Identities, H2OOfSinksAndRecentTokensAloneIsStreamingLLM) {
  EXPECT_EQ(run<kvevict::H2O>({.heavy = 3, .recent = 9, .num_sink_tokens = 3}),
            run<kvevict::StreamingLLM>({.num_sink_tokens = 3, .recent_window = 9}));
}

struct ImportanceRecipe : kvevict::RKVRecipe {
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return kvevict::PeakLogitAttention(kName, shape, options.observation_window) |
           kvevict::Pool{options.pooling};
  }
};

TEST(Identities, RKVWithoutRedundancyIsTheImportanceOfItsWindow) {
  kvevict::RKVOptions options{.budget = 16, .buffer = 4, .observation_window = 4, .lambda = 1.0};
  const auto importance = run<kvevict::Policy<kvevict::Composed<ImportanceRecipe>>>(options);
  EXPECT_EQ(run<kvevict::RKV>(options), importance);
  options.lambda = 0.1;
  EXPECT_NE(run<kvevict::RKV>(options), importance);
}

// One layer and one head compete with nobody: uniform, by layer and over the model are the same.
TEST(Identities, ScoresOfOneLaneAreTakenAlikeHoweverLanesCompete) {
  constexpr CacheShape kOne{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  Random random(3);
  std::vector<float> scores(50);
  for (float& x : scores)
    x = random.eighths();
  std::vector<std::vector<std::size_t>> kept;
  for (const auto competition :
       {kvevict::Competition::kLane, kvevict::Competition::kLayer, kvevict::Competition::kModel}) {
    kvevict::ExternalScores policy({.budget = 20, .competition = competition}, kOne);
    WindowCache cache(kOne, 50);
    cache.append(50);
    policy.begin(50);
    policy.append(50);
    policy.observe_scores(0, 0, scores);
    policy.end_prefill(cache.view());
    const KeepMask& mask = policy.select(cache.view());
    kept.emplace_back();
    for (std::size_t slot = 0; slot < 50; ++slot) {
      if (mask.keeps(0, 0, slot))
        kept.back().push_back(slot);
    }
  }
  // By hand: the best twenty, of equal ones the first.
  std::vector<std::size_t> order(50);
  for (std::size_t i = 0; i < 50; ++i)
    order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(20);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(kept[0], order);
  EXPECT_EQ(kept[1], order);
  EXPECT_EQ(kept[2], order);
}

// ---------------------------------------------------------------------------------- invariances

/// A cache whose keys and values may be changed, and what a policy of it alone keeps.
template <class P>
KeepMask keep(const typename P::Options& options, WindowCache& cache) {
  const std::size_t len = cache.seq_len();
  P policy(options, kShape);
  policy.begin(len);
  policy.append(len);
  policy.end_prefill(cache.view());
  return policy.select(cache.view());
}
WindowCache random_cache(std::uint64_t seed) {
  Random random(seed);
  WindowCache cache(kShape, 64);
  cache.fill(random);
  cache.append(64);
  return cache;
}
using Change = std::function<void(float* row, std::size_t slot)>;
void change_keys(WindowCache& cache, const Change& change) {
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t head = 0; head < 2; ++head) {
      for (std::size_t slot = 0; slot < 64; ++slot)
        change(cache.key(layer, head, slot), slot);
    }
  }
}
// Orthogonal and exact: channels change places, one its sign.
void turn(float* row, std::size_t /*slot*/) {
  std::rotate(row, row + 2, row + 6);
  row[3] = -row[3];
}

TEST(Invariances, ARotationOfAllKeysChangesNoLengthAndNoAngle) {
  WindowCache cache = random_cache(1);
  const KeepMask by_norm = keep<kvevict::Knorm>({.budget = 20}, cache);
  const KeepMask by_angle = keep<kvevict::KeyDiff>({.budget = 20}, cache);
  change_keys(cache, turn);
  EXPECT_EQ(keep<kvevict::Knorm>({.budget = 20}, cache), by_norm);
  EXPECT_EQ(keep<kvevict::KeyDiff>({.budget = 20}, cache), by_angle);
  change_keys(cache, [](float* row, std::size_t slot) { row[slot % 6] += 3.0F; });
  EXPECT_NE(keep<kvevict::Knorm>({.budget = 20}, cache), by_norm);
  EXPECT_NE(keep<kvevict::KeyDiff>({.budget = 20}, cache), by_angle);
}

// By powers of two, which are exact: an angle does not know how long its sides are.
TEST(Invariances, KeyDiffDoesNotSeeTheLengthOfAKey) {
  WindowCache cache = random_cache(2);
  const KeepMask before = keep<kvevict::KeyDiff>({.budget = 20}, cache);
  change_keys(cache, [](float* row, std::size_t slot) {
    for (std::size_t c = 0; c < 6; ++c)
      row[c] = std::ldexp(row[c], static_cast<int>(slot % 5) - 2);
  });
  EXPECT_EQ(keep<kvevict::KeyDiff>({.budget = 20}, cache), before);
}

// Each channel has a scale and an origin of its own; numbers are such that all of it is exact.
TEST(Invariances, LagKVDoesNotSeeTheUnitsOfAChannel) {
  const kvevict::LagKVBudgetOptions options{.budget = 30, .num_sink_tokens = 2, .lag_len = 8};
  WindowCache cache = random_cache(3);
  const KeepMask before = keep<kvevict::LagKVBudget>(options, cache);
  change_keys(cache, [](float* row, std::size_t /*slot*/) {
    for (std::size_t c = 0; c < 6; ++c)
      row[c] = std::ldexp(row[c], static_cast<int>(c)) + static_cast<float>(c);
  });
  EXPECT_EQ(keep<kvevict::LagKVBudget>(options, cache), before);
}

/// Window queries [heads, rows, head_dim] handed to a policy of attention.
template <class P>
KeepMask keep_by_attention(const typename P::Options& options, WindowCache& cache,
                           const std::vector<float>& queries, std::size_t rows) {
  const std::size_t len = cache.seq_len();
  P policy(options, kShape);
  policy.begin(len);
  policy.append(len - rows);
  policy.append(rows);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    policy.observe_queries(layer,
                           {.data = queries.data(),
                            .num_q_heads = 4,
                            .num_rows = rows,
                            .head_stride = static_cast<std::ptrdiff_t>(rows * 6),
                            .row_stride = 6},
                           cache.view());
  }
  policy.end_prefill(cache.view());
  return policy.select(cache.view());
}
std::vector<float> random_queries(std::size_t rows) {
  Random random(9);
  std::vector<float> queries(4 * rows * 6);
  for (float& x : queries)
    x = random.eighths();
  return queries;
}
/// The other order of KV heads, with their query heads.
void swap_heads(WindowCache& cache, std::vector<float>& queries) {
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t slot = 0; slot < 64; ++slot) {
      std::swap_ranges(cache.key(layer, 0, slot), cache.key(layer, 0, slot) + 6,
                       cache.key(layer, 1, slot));
      std::swap_ranges(cache.value(layer, 0, slot), cache.value(layer, 0, slot) + 6,
                       cache.value(layer, 1, slot));
    }
  }
  const auto half = static_cast<std::ptrdiff_t>(queries.size() / 2);
  std::swap_ranges(queries.begin(), queries.begin() + half, queries.begin() + half);
}
bool same_lane(const KeepMask& a, std::size_t head_of_a, const KeepMask& b, std::size_t head_of_b) {
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t slot = 0; slot < 64; ++slot) {
      if (a.keeps(layer, head_of_a, slot) != b.keeps(layer, head_of_b, slot))
        return false;
    }
  }
  return true;
}

TEST(Invariances, HeadsInAnotherOrderKeepWhatTheyKept) {
  const kvevict::SnapKVOptions options{.budget = 20, .observation_window = 4};
  WindowCache cache = random_cache(4);
  std::vector<float> queries = random_queries(4);
  const KeepMask before = keep_by_attention<kvevict::SnapKV>(options, cache, queries, 4);
  const kvevict::TOVAOptions tova{.budget = 20, .scope = kvevict::MaskScope::kHead};
  const KeepMask tova_before = keep_by_attention<kvevict::TOVA>(tova, cache, queries, 4);
  swap_heads(cache, queries);
  const KeepMask after = keep_by_attention<kvevict::SnapKV>(options, cache, queries, 4);
  const KeepMask tova_after = keep_by_attention<kvevict::TOVA>(tova, cache, queries, 4);
  for (const std::size_t head : {0U, 1U}) {
    EXPECT_TRUE(same_lane(before, head, after, 1 - head));
    EXPECT_TRUE(same_lane(tova_before, head, tova_after, 1 - head));
  }
  EXPECT_FALSE(same_lane(before, 0, after, 0));
}

// A head that shares no budget with another does not see what the other holds.
TEST(Invariances, AHeadDoesNotSeeAnother) {
  WindowCache cache = random_cache(5);
  const std::vector<float> queries = random_queries(4);
  const kvevict::SnapKVOptions snapkv{.budget = 20, .observation_window = 4};
  const kvevict::LagKVBudgetOptions lag{.budget = 30, .num_sink_tokens = 2, .lag_len = 8};
  const auto masks = [&] {
    std::vector<KeepMask> all;
    all.push_back(keep<kvevict::Knorm>({.budget = 20}, cache));
    all.push_back(keep<kvevict::KeyDiff>({.budget = 20}, cache));
    all.push_back(keep<kvevict::CurDKV>({.budget = 20}, cache));
    all.push_back(keep<kvevict::LagKVBudget>(lag, cache));
    all.push_back(keep_by_attention<kvevict::SnapKV>(snapkv, cache, queries, 4));
    return all;
  };
  const std::vector<KeepMask> before = masks();
  Random random(77);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t slot = 0; slot < 64; ++slot) {
      for (std::size_t c = 0; c < 6; ++c) {
        cache.key(layer, 1, slot)[c] = random.eighths();
        cache.value(layer, 1, slot)[c] = random.eighths();
      }
    }
  }
  const std::vector<KeepMask> after = masks();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(same_lane(before[i], 0, after[i], 0)) << i;
    EXPECT_FALSE(same_lane(before[i], 1, after[i], 1)) << i;
  }
}

// What a small budget keeps, a larger one keeps too, where the best scores stay.
TEST(Invariances, ALargerBudgetKeepsWhatASmallerOneKept) {
  WindowCache cache = random_cache(6);
  const std::vector<float> queries = random_queries(4);
  using Make = std::function<KeepMask(std::size_t)>;
  const std::vector<Make> policies = {
      [&](std::size_t b) { return keep<kvevict::Knorm>({.budget = b}, cache); },
      [&](std::size_t b) { return keep<kvevict::KeyDiff>({.budget = b}, cache); },
      [&](std::size_t b) { return keep<kvevict::CurDKV>({.budget = b}, cache); },
      [&](std::size_t b) {
        return keep_by_attention<kvevict::SnapKV>({.budget = b, .observation_window = 4}, cache,
                                                  queries, 4);
      },
      [&](std::size_t b) {
        return keep_by_attention<kvevict::TOVA>({.budget = b}, cache, queries, 4);
      },
      [&](std::size_t b) {
        return keep_by_attention<kvevict::H2O>({.heavy = b - 4, .recent = 4}, cache, queries, 4);
      }};
  for (std::size_t i = 0; i < policies.size(); ++i) {
    KeepMask smaller = policies[i](8);
    for (std::size_t budget = 9; budget < 64; budget += 5) {
      KeepMask larger = policies[i](budget);
      for (std::size_t layer = 0; layer < 2; ++layer) {
        for (std::size_t head = 0; head < 2; ++head) {
          EXPECT_EQ(larger.count(layer, head), budget);
          for (std::size_t slot = 0; slot < 64; ++slot) {
            EXPECT_LE(smaller.keeps(layer, head, slot), larger.keeps(layer, head, slot))
                << i << ' ' << budget;
          }
        }
      }
      smaller = std::move(larger);
    }
  }
}

}  // namespace
}  // namespace kvevict_test
