#include "kvevict/policies/key_geometry.hpp"

#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::scores_of;
using kvevict_test::text_of;
using kvevict_test::WindowCache;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};

WindowCache cache_of(const std::vector<std::vector<float>>& keys) {
  WindowCache cache(kShape, keys.size() + 1);
  cache.append(keys.size());
  for (std::size_t slot = 0; slot < keys.size(); ++slot)
    std::copy(keys[slot].begin(), keys[slot].end(), cache.key(0, 0, slot));
  return cache;
}

/// The mask of a cache that was filled at once.
template <class P>
std::string kept(const typename P::Options& options, WindowCache& cache) {
  P policy(options, kShape);
  policy.append(cache.seq_len());
  return text_of(policy.select(cache.view()));
}

// Norms 1, 3, 2.
TEST(Knorm, SmallKeysStay) {
  WindowCache cache = cache_of({{1, 0}, {0, -3}, {2, 0}});
  EXPECT_EQ(kept<Knorm>({.budget = 2}, cache), "101");
  EXPECT_EQ(kept<Knorm>({.budget = 1, .recent_window = 1}, cache), "001");
}

// Three equal norms: the lower slots stay (rule R3). A key of NaN goes first (rule R4).
TEST(Knorm, TiesAndNaN) {
  WindowCache cache = cache_of({{0, 1}, {1, 0}, {-1, 0}});
  EXPECT_EQ(kept<Knorm>({.budget = 2}, cache), "110");
  cache.key(0, 0, 0)[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(kept<Knorm>({.budget = 2}, cache), "011");
}

/// Three layers of two heads, whose keys have norms 1, 2, .. from the oldest on.
struct Layers {
  static constexpr CacheShape kShape{
      .num_layers = 3, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};
  Knorm policy;
  WindowCache cache;

  explicit Layers(const KnormOptions& options) : policy(options, kShape), cache(kShape, 16) {}
  void append(std::size_t count) {
    for (std::size_t lane = 0; lane < 6; ++lane) {
      const std::size_t len = cache.seq_len(lane);
      for (std::size_t i = 0; i < count; ++i) {
        cache.key(lane / 2, lane % 2, len + i)[0] =
            static_cast<float>(policy.sequence().length() + i + 1);
      }
    }
    policy.append(count);
    cache.append(count);
  }
  void prompt(std::size_t count) {
    policy.begin(count);
    append(count);
    policy.end_prefill(cache.view());
  }
  /// Tokens that each head holds after a cut, if it is time for one.
  std::vector<std::size_t> cut() {
    if (policy.should_evict())
      kvevict_test::cut(policy, cache);
    std::vector<std::size_t> lengths;
    for (std::size_t lane = 0; lane < 6; ++lane)
      lengths.push_back(cache.seq_len(lane));
    return lengths;
  }
};
using Lengths = std::vector<std::size_t>;

// Layers 0 and 2 keep all of five tokens; layer 1 keeps its two smallest keys, and drops one for
// each token that comes.
TEST(Knorm, LayersMayBeSkipped) {
  Layers layers({.budget = 2, .skip_layers = {0, 2}});
  layers.prompt(5);
  EXPECT_EQ(layers.cut(), (Lengths{5, 5, 2, 2, 5, 5}));
  EXPECT_EQ(*layers.cache.key(1, 0, 1), 2.0F);
  layers.append(1);
  EXPECT_EQ(layers.cut(), (Lengths{6, 6, 2, 2, 6, 6}));
  EXPECT_EQ(*layers.cache.key(1, 1, 0), 1.0F);
  EXPECT_FALSE(layers.policy.should_evict());
}

// 40 % of five tokens are two, and of ten four, in each head that is cut. 9 entries for the four
// heads of layers 1 and 2 are 2 each, and the odd one is the first's.
TEST(Knorm, SharesAndTotalsAreThoseOfTheLayersThatAreCut) {
  Layers share({.budget = Budget::keep_ratio(.4), .skip_layers = {0}});
  share.policy.begin(5);
  share.append(3);
  EXPECT_FALSE(share.policy.should_evict());  // a share of a prompt that is not there yet
  share.append(2);
  share.policy.end_prefill(share.cache.view());
  EXPECT_EQ(share.cut(), (Lengths{5, 5, 2, 2, 2, 2}));
  share.append(5);
  EXPECT_EQ(share.cut(), (Lengths{10, 10, 4, 4, 4, 4}));
  Layers total({.budget = Budget::total(9), .skip_layers = {0}});
  total.prompt(5);
  EXPECT_EQ(total.cut(), (Lengths{5, 5, 3, 2, 2, 2}));
}

// The same as without the option where decoded tokens stay.
TEST(Knorm, SkippedLayersOfPromptsAlone) {
  Layers layers(
      {.budget = Budget::keep_ratio(.4), .only_at_prefill_end = true, .skip_layers = {1}});
  layers.prompt(5);
  EXPECT_EQ(layers.cut(), (Lengths{2, 2, 5, 5, 2, 2}));
  layers.append(5);
  EXPECT_EQ(layers.cut(), (Lengths{7, 7, 10, 10, 7, 7}));
}

TEST(Knorm, RefusesLayersThatAreNotThere) {
  using kvevict_test::refuses;
  EXPECT_TRUE(refuses([] { Layers({.skip_layers = {3}}); }, {"Knorm", "skip_layers", "3"}));
  EXPECT_TRUE(refuses([] { Layers({.skip_layers = {0, 1, 2}}); }, {"Knorm", "skip_layers"}));
  EXPECT_TRUE(refuses([] { Layers({.budget = 3, .recent_window = 4, .skip_layers = {0}}); },
                      {"Knorm", "budget", "3"}));
}

// The mean of the unit keys is (.676777, .426777); cosines .845862, .533402, .845862, .975287.
TEST(KeyDiff, KeysThatPointAwayStay) {
  WindowCache cache = cache_of({{1, 0}, {0, 1}, {2, 0}, {1, 1}});
  KeyDiff policy({.budget = 2}, kShape);
  policy.append(4);
  const std::vector<float> scores = scores_of(policy, cache);
  const std::vector<float> expected = {-.845862F, -.533402F, -.845862F, -.975287F};
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(scores[i], expected[i], 2e-6) << i;
  EXPECT_EQ(text_of(policy.select(cache.view())), "1100");  // slots 0 and 2 are equal
}

// A key without a direction scores 0, above every key that points with the others; so do all keys
// of a cache whose unit keys cancel, and the lower slots stay.
TEST(KeyDiff, KeysWithoutDirection) {
  WindowCache zero = cache_of({{1, 0}, {0, 0}, {1, 0}});
  EXPECT_EQ(kept<KeyDiff>({.budget = 1}, zero), "010");
  WindowCache opposite = cache_of({{1, 0}, {-3, 0}, {0, 2}, {0, -1}});
  EXPECT_EQ(kept<KeyDiff>({.budget = 2}, opposite), "1100");
}

// A key that is not finite goes first and leaves the mean alone (rule R4).
TEST(KeyDiff, KeysThatAreNotFiniteGoFirst) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    WindowCache cache = cache_of({{bad, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1}});
    EXPECT_EQ(kept<KeyDiff>({.budget = 2}, cache), "01100");
  }
}

// What lies in padding takes no part in the mean (rule R9).
TEST(KeyDiff, PaddingHasNoPartInTheMean) {
  WindowCache padded = cache_of({{-9, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1}});
  padded.valid() = {0, 1, 1, 1, 1};
  EXPECT_EQ(kept<KeyDiff>({.budget = 2}, padded), "01100");
}

TEST(KeyDiff, EmptyAndSmallCachesStay) {
  WindowCache none = cache_of({});
  EXPECT_EQ(kept<KeyDiff>({.budget = 2}, none), "");
  WindowCache two = cache_of({{1, 0}, {0, 1}});
  EXPECT_EQ(kept<KeyDiff>({.budget = 2}, two), "11");
  EXPECT_EQ(kept<KeyDiff>({.budget = 1}, two), "10");
}

TEST(CacheScores, CutOnceAtTheEndOfAPromptWhereTold) {
  WindowCache cache = cache_of({{3, 0}, {1, 0}, {2, 0}});
  Knorm policy({.budget = 2, .only_at_prefill_end = true}, kShape);
  policy.begin(3);
  policy.append(3);
  EXPECT_FALSE(policy.should_evict());
  policy.end_prefill(cache.view());
  EXPECT_TRUE(policy.should_evict());
  EXPECT_EQ(text_of(policy.select(cache.view())), "011");
  policy.apply(policy.select(cache.view()));
  policy.append(1);
  EXPECT_FALSE(policy.should_evict());
}

// Keys of two heads: (1, 0) and (3, 0), mean (2, 0), both 1 away; (1, 1) twice; (0, 5) and (0, -1),
// mean (0, 2), both 3 away. A key of NaN makes the token's score NaN, and it goes first.
TEST(MeanCentredNorm, TokensOnWhichHeadsDifferStay) {
  constexpr CacheShape kTwo{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};
  WindowCache cache(kTwo, 3);
  cache.append(3);
  const std::vector<std::vector<float>> keys = {{1, 0, 1, 1, 0, 5}, {3, 0, 1, 1, 0, -1}};
  for (std::size_t head = 0; head < 2; ++head)
    std::copy(keys[head].begin(), keys[head].end(), cache.key(0, head, 0));
  MeanCentredNorm policy({.budget = 2}, kTwo);
  policy.append(3);
  EXPECT_EQ(scores_of(policy, cache), (std::vector<float>{1, 0, 3}));
  EXPECT_EQ(text_of(policy.select(cache.view()), 0, 0), "101");
  EXPECT_EQ(text_of(policy.select(cache.view()), 0, 1), "101");
  cache.key(0, 1, 2)[0] = std::numeric_limits<float>::quiet_NaN();
  MeanCentredNorm anew({.budget = 2}, kTwo);
  anew.append(3);
  EXPECT_EQ(text_of(anew.select(cache.view())), "110");
}

// More than one block of slots, against the definition: the keys of head h are h times the slot's
// number, so of three heads the mean is that of head 1 and heads 0 and 2 are slot away, mean 2/3.
TEST(MeanCentredNorm, LongLanes) {
  constexpr CacheShape kThree{.num_layers = 2, .num_q_heads = 3, .num_kv_heads = 3, .head_dim = 1};
  WindowCache cache(kThree, 150);
  cache.append(150);
  for (std::size_t slot = 0; slot < 150; ++slot) {
    for (std::size_t head = 0; head < 3; ++head) {
      *cache.key(0, head, slot) = static_cast<float>(head * slot);
      *cache.key(1, head, slot) = 7;
    }
  }
  MeanCentredNorm policy({.budget = 2}, kThree);
  policy.append(150);
  const std::vector<float> scores = scores_of(policy, cache, 0);
  for (std::size_t slot = 0; slot < 150; ++slot)
    EXPECT_NEAR(scores[slot], static_cast<double>(slot) * 2 / 3, 1e-4);
  EXPECT_NEAR(scores_of(policy, cache, 1)[100], 0, 1e-5);
}

}  // namespace
}  // namespace kvevict
