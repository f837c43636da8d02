#include "kvevict/policies/epikv_lag.hpp"

#include "kvevict/scoring/stages.hpp"
#include "support/epikv_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::EpiKVCache;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 3};

/// K and V of the token at `position`, the same whenever it is asked.
void fill(EpiKVCache& cache, std::size_t slot, std::size_t position) {
  std::mt19937 random(static_cast<unsigned>(position) + 17);
  std::normal_distribution<float> value;
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
      for (std::size_t c = 0; c < kShape.head_dim; ++c) {
        cache.key(layer, head, slot)[c] = value(random);
        cache.value(layer, head, slot)[c] = value(random);
      }
    }
  }
}

template <class P>
struct Session {
  P policy;
  EpiKVCache cache{kShape, 256};

  Session(const typename P::Options& options, std::size_t prompt) : policy(options, kShape) {
    policy.begin(prompt);
    append(prompt);
  }
  void append(std::size_t count) {
    policy.append(count);
    cache.append(count);
    for (std::size_t s = cache.seq_len() - count; s < cache.seq_len(); ++s) {
      fill(cache, s, cache.positions()[s]);
    }
  }
  std::vector<float> scores() {
    const auto view = cache.view();
    const ViewRef ref(view);
    Scratch scratch;
    std::vector<float> out(cache.seq_len());
    policy.method().score({ref, policy.sequence(), kernels::best(), scratch}, 0, out);
    return out;
  }
  std::vector<std::size_t> cut() {
    if (!policy.should_evict())
      return {};
    const KeepMask& mask = policy.select(cache.view());
    std::vector<std::size_t> gone = cache.evict(mask);
    policy.apply(mask);
    return gone;
  }
};

TEST(EpiKVLag, DeclaresWhatItReads) {
  static_assert(EpiKVLag::kRequiredInputs == (Inputs::kKeys | Inputs::kValues));
  static_assert(EpiKVLagKey::kRequiredInputs == Inputs::kKeys);
  static_assert(EpiKVLag::kAttentionUse == AttentionUse::kNone);
}

TEST(EpiKVLag, AddsKeysAndValues) {
  Session<EpiKVLag> both({.budget = 16, .chunk_len = 4}, 10);
  Session<EpiKVLagKey> keys({.budget = 16, .chunk_len = 4}, 10);
  const auto view = both.cache.view();
  const ViewRef ref(view);
  Scratch scratch;
  std::vector<float> expected(10, 0.0F);
  LagDeviation(ref, 4, kernels::best(), scratch).add(KvPart::kKeys, 0, expected);
  EXPECT_EQ(keys.scores(), expected);
  LagDeviation(ref, 4, kernels::best(), scratch).add(KvPart::kValues, 0, expected);
  EXPECT_EQ(both.scores(), expected);
}

TEST(EpiKVLag, DropsTheLeastDeviatingCandidate) {
  Session<EpiKVLag> run({.budget = 12, .recent_window = 3, .chunk_len = 4}, 4);
  run.append(9);
  const std::vector<float> scores = run.scores();
  // Slots 4 to 9 compete: four prompt tokens and three recent ones are safe.
  const auto worst = std::min_element(scores.begin() + 4, scores.begin() + 10);
  EXPECT_EQ(run.cut(),
            (std::vector<std::size_t>{static_cast<std::size_t>(worst - scores.begin())}));
}

// Chunk borders move when tokens go: that is the published method.
TEST(EpiKVLag, RecomputedScoresFollowTheCompactedCache) {
  Session<EpiKVLag> run({.budget = 12, .recent_window = 3, .chunk_len = 4}, 4);
  for (std::size_t t = 0; t < 40; ++t) {
    run.append(1);
    run.cut();
  }
  // A policy that never saw the evicted tokens scores the same cache the same.
  const auto view = run.cache.view();
  const ViewRef ref(view);
  Scratch scratch;
  std::vector<float> expected(run.cache.seq_len(), 0.0F);
  LagDeviation deviation(ref, 4, kernels::best(), scratch);
  deviation.add(KvPart::kKeys, 0, expected);
  deviation.add(KvPart::kValues, 0, expected);
  EXPECT_EQ(run.scores(), expected);
}

// A token's score is the one of the first eviction at which it is a candidate, and stays.
TEST(EpiKVLag, FrozenScoreIsTheFirstOneAsACandidate) {
  const EpiKVLag::Options options{.budget = 14, .recent_window = 3, .chunk_len = 4, .frozen = true};
  Session<EpiKVLag> run(options, 4);
  std::vector<float> first(200, -1.0F);  // by position
  for (std::size_t t = 0; t < 60; ++t) {
    run.append(1);
    if (!run.policy.should_evict())
      continue;
    // What a recomputation over this cache would give.
    std::vector<float> now(run.cache.seq_len(), 0.0F);
    const auto view = run.cache.view();
    const ViewRef ref(view);
    Scratch scratch;
    LagDeviation deviation(ref, 4, kernels::best(), scratch);
    deviation.add(KvPart::kKeys, 0, now);
    deviation.add(KvPart::kValues, 0, now);
    std::vector<std::size_t> order;
    for (std::size_t s = 4; s + 3 < run.cache.seq_len(); ++s) {
      float& score = first[run.cache.positions()[s]];
      if (score < 0)
        score = now[s];
      order.push_back(s);
    }
    const std::size_t worst =
        *std::min_element(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          const float score_a = first[run.cache.positions()[a]];
          const float score_b = first[run.cache.positions()[b]];
          return score_a != score_b ? score_a < score_b : a > b;
        });
    const std::size_t victim = run.cache.positions()[worst];
    // Selecting without applying leaves no trace.
    EXPECT_EQ(run.policy.select(run.cache.view()), run.policy.select(run.cache.view()));
    EXPECT_EQ(run.cut(), (std::vector<std::size_t>{victim})) << t;
    for (std::size_t s = 4; s + 4 < run.cache.seq_len(); ++s) {
      EXPECT_EQ(run.scores()[s], first[run.cache.positions()[s]]) << t << " " << s;
    }
  }
}

TEST(EpiKVLag, FrozenAndRecomputedDiffer) {
  Session<EpiKVLag> frozen({.budget = 14, .recent_window = 3, .chunk_len = 4, .frozen = true}, 4);
  Session<EpiKVLag> recomputed({.budget = 14, .recent_window = 3, .chunk_len = 4}, 4);
  for (std::size_t t = 0; t < 60; ++t) {
    frozen.append(1);
    recomputed.append(1);
    frozen.cut();
    recomputed.cut();
  }
  EXPECT_NE(frozen.cache.positions(), recomputed.cache.positions());
}

// What is frozen is the score itself, not what a stage behind it makes of it, which would then be
// made of it twice.
struct DoubledLagRecipe : EpiKVLagRecipe<true> {
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return EpiKVLagRecipe<true>::pipeline(options, shape) | Scale{2.0F};
  }
};
TEST(EpiKVLag, FreezesWhatNoStageHasChanged) {
  const EpiKVLag::Options options{.budget = 14, .recent_window = 3, .chunk_len = 4, .frozen = true};
  Session<EpiKVLag> plain(options, 4);
  Session<Policy<Composed<DoubledLagRecipe>>> doubled(options, 4);
  for (std::size_t t = 0; t < 30; ++t) {
    plain.append(1);
    doubled.append(1);
    EXPECT_EQ(plain.cut(), doubled.cut());
    std::vector<float> expected = plain.scores();
    for (float& score : expected)
      score *= 2;
    EXPECT_EQ(doubled.scores(), expected) << t;
  }
}

TEST(EpiKVLag, FrozenScoresSurviveARollback) {
  Session<EpiKVLag> run({.budget = 14, .recent_window = 3, .chunk_len = 4, .frozen = true}, 4);
  for (std::size_t t = 0; t < 20; ++t) {
    run.append(1);
    run.cut();
  }
  const std::vector<float> before = run.scores();
  Session<EpiKVLag> drafted = run;
  drafted.append(3);
  drafted.policy.truncate(24);
  drafted.cache.truncate(24);
  EXPECT_EQ(drafted.scores(), before);
}

TEST(EpiKVLag, RefusesChunksOfNothing) {
  EXPECT_THROW(EpiKVLag({.budget = 8, .chunk_len = 0}, kShape), InvalidArgument);
  EXPECT_THROW(EpiKVLag({.budget = Budget::keep_ratio(0.1)}, kShape), InvalidArgument);
}

}  // namespace
}  // namespace kvevict
