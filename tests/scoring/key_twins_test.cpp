#include "kvevict/scoring/key_twins.hpp"

#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};

/// Keys (1 0), (0 1), (1 1), (2 0), (0 0), (NaN 0), of which 0, 1 and 4 are the set.
struct Twins {
  Sequence sequence{"test", kShape, MaskScope::kHead};
  kvevict_test::WindowCache cache{kShape, 6};
  KeyTwins twins;

  explicit Twins(std::size_t local_window) : twins(local_window) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> keys = {1, 0, 0, 1, 1, 1, 2, 0, 0, 0, nan, 0};
    sequence.append(6);
    cache.append(6);
    std::copy(keys.begin(), keys.end(), cache.key(0, 0, 0));
    const std::vector<std::uint64_t> kept = {0b010011};
    ask([&](const ScoreInput& input) { twins.gather(input, 0, kept); });
  }
  template <class Question>
  void ask(Question&& question) {
    const auto view = cache.view();
    const ViewRef ref(view);
    Scratch scratch;
    question(ScoreInput{ref, sequence, kernels::best(), scratch});
  }
  float cosine(std::size_t slot, bool& usable) {
    float found = 0;
    ask([&](const ScoreInput& input) { found = twins.largest_cosine(input, slot, usable); });
    return found;
  }
  float cosine(std::size_t slot) {
    bool usable = false;
    const float found = cosine(slot, usable);
    EXPECT_TRUE(usable);
    return found;
  }
};

TEST(KeyTwins, AreTheNearestOfTheSet) {
  Twins t(0);
  EXPECT_NEAR(t.cosine(2), .707107F, 1e-6F);
  EXPECT_NEAR(t.cosine(3), 1.0F, 1e-6F);
}

TEST(KeyTwins, NeighboursAreLeftOut) {
  // Of slot 3: 0 is three away, 1 two.
  EXPECT_NEAR(Twins(2).cosine(3), 1.0F, 1e-6F);
  EXPECT_EQ(Twins(3).cosine(3), -1.0F);
}

TEST(KeyTwins, AKeyWithoutADirectionHasNone) {
  Twins t(0);
  for (const std::size_t slot : {4U, 5U}) {
    bool usable = true;
    static_cast<void>(t.cosine(slot, usable));
    EXPECT_FALSE(usable) << slot;
  }
}

// (1 1) takes the place of (1 0), which was the twin of (2 0).
TEST(KeyTwins, TheSetMayChange) {
  Twins t(0);
  t.ask([&](const ScoreInput& input) { t.twins.replace(input, 0, 2); });
  EXPECT_NEAR(t.cosine(3), .707107F, 1e-6F);
  EXPECT_NEAR(t.cosine(0), .707107F, 1e-6F);
}

}  // namespace
}  // namespace kvevict
