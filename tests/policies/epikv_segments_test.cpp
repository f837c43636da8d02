#include "kvevict/policies/epikv_segments.hpp"

#include "support/epikv_cache.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::EpiKVCache;

constexpr CacheShape kShape{.num_layers = 6, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};

EpiKVSegmentOptions options_of(std::size_t budget) {
  return {.budget = budget,
          .recent_window = 1,
          .segment_len = 3,
          .cap_high = 3,
          .cap_middle = 2,
          .cap_low = 1,
          .layers_a = {0},
          .layers_b = {1}};
}

template <class P>
struct Session {
  P policy;
  EpiKVCache cache{kShape, 64};

  explicit Session(const EpiKVSegmentOptions& options, std::size_t prompt = 2)
      : policy(options, kShape) {
    policy.begin(prompt);
    policy.append(prompt);
    cache.append(prompt);
    hidden({0});
  }
  void append(std::size_t count) {
    policy.append(count);
    cache.append(count);
  }
  /// Vectors of layer A; those of layer B never change.
  void hidden(const std::vector<float>& rows) {
    const std::vector<float> zeros(rows.size());
    policy.observe_hidden(0, {rows.data(), rows.size(), 1, sizeof(float), ElementType::kF32});
    policy.observe_hidden(1, {zeros.data(), rows.size(), 1, sizeof(float), ElementType::kF32});
  }
  std::vector<std::size_t> cut() {
    const KeepMask& mask = policy.select(cache.view());
    std::vector<std::size_t> gone = cache.evict(mask);
    policy.apply(mask);
    return gone;
  }
};

/// Ten decoded tokens, positions 2 to 11: the window of z holds one value more each time, so with
/// growing differences z grows as well, and within a segment the newest rank first.
const std::vector<float> kGrowing = {1, 3, 6, 10, 15, 21, 28, 36, 45, 55};

// Slots 2-4, 5-7, 8-10 are segments, slot 11 is recent, 0 and 1 are prompt.
TEST(EpiKVSeg, KeepsMoreWhereKeysVary) {
  Session<EpiKVSeg> run(options_of(11));
  run.append(10);
  run.hidden(kGrowing);
  for (std::size_t slot = 2; slot < 11; ++slot) {
    // The middle segment varies most, the last one least.
    const float variance = slot < 5 ? 2.0F : slot < 8 ? 3.0F : 1.0F;
    for (std::size_t layer = 0; layer < 6; ++layer)
      run.cache.key(layer, 0, slot)[0] = variance;
  }
  ASSERT_TRUE(run.policy.should_evict());
  // 2 of the first, 3 of the second, 1 of the third; fewer than the budget stay.
  EXPECT_EQ(run.cut(), (std::vector<std::size_t>{2, 8, 9}));
  EXPECT_EQ(run.cache.seq_len(), 9U);
  EXPECT_FALSE(run.policy.should_evict());
}

TEST(EpiKVSeg, ServesTheOldestUntilTheBudgetIsUsedUp) {
  EpiKVSegmentOptions options = options_of(7);  // four of the nine candidates
  Session<EpiKVSeg> run(options);
  run.append(10);
  run.hidden(kGrowing);
  for (std::size_t slot = 2; slot < 11; ++slot) {
    run.cache.key(0, 0, slot)[0] = slot < 5 ? 3.0F : 1.0F;
  }
  // The first segment is the most important and takes three, the second, by age, one.
  EXPECT_EQ(run.cut(), (std::vector<std::size_t>{5, 6, 8, 9, 10}));
  EXPECT_EQ(run.cache.seq_len(), 7U);
}

TEST(EpiKVSeg, NeedsNoAttention) {
  static_assert(EpiKVSeg::kRequiredInputs == (Inputs::kHiddenStates | Inputs::kKeys));
  static_assert(EpiKVSeg::kAttentionUse == AttentionUse::kNone);
  static_assert(EpiKVSegmentHS::kRequiredInputs == (Inputs::kHiddenStates | Inputs::kAttention));
  static_assert(EpiKVSegmentHS::kAttentionUse == AttentionUse::kLastRow);
}

// Entropies of the row inside the segments: (1, 0, 0): 0; even: ln 3; (2, 1, 0) / 3: .6365.
TEST(EpiKVSegmentHS, KeepsMoreWhereAttentionIsSharp) {
  Session<EpiKVSegmentHS> run(options_of(11));
  run.append(10);
  run.hidden(kGrowing);
  const std::vector<float> row = {.2F, .1F, .01F, .01F, .01F, .2F, .1F, 0, 0, .3F, 0, .07F};
  std::vector<float> heads = row;
  heads.insert(heads.end(), row.begin(), row.end());
  for (std::size_t layer = 0; layer < 6; ++layer) {
    // The last four of the six layers, and only the newest row.
    EXPECT_EQ(run.policy.wanted_attention_rows(layer), layer < 2 ? 0U : 1U) << layer;
    run.policy.observe_attention(layer, {heads.data(), 2, 1, 12, 12});
  }
  // Segment 2-4 is even: one stays; 5-7 is in between: two; 8-10 is sharp: all.
  EXPECT_EQ(run.cut(), (std::vector<std::size_t>{2, 3, 5}));
}

// Rows of one step say nothing in the next one.
TEST(EpiKVSegmentHS, UsesTheNewestRowOnly) {
  Session<EpiKVSegmentHS> run(options_of(11));
  run.append(10);
  run.hidden(kGrowing);
  std::vector<float> heads(24, 0.0F);
  heads[2] = heads[14] = 1.0F;  // the first segment is sharp
  for (std::size_t layer = 2; layer < 6; ++layer) {
    run.policy.observe_attention(layer, {heads.data(), 2, 1, 12, 12});
  }
  run.append(1);
  run.hidden({66});
  std::vector<float> next(26, 0.0F);
  next[8] = next[21] = 1.0F;  // now the third one is
  next[5] = next[18] = next[6] = next[19] = 0.5F;
  for (std::size_t layer = 2; layer < 6; ++layer) {
    run.policy.observe_attention(layer, {next.data(), 2, 1, 13, 13});
  }
  // Segments 2-4 (no attention: counts as even), 5-7 (ln 2), 8-10 (0), 11 (0, later than 8-10):
  // ranks 8-10, 11, 5-7, 2-4, so thirds 0, 0, 1, 2.
  EXPECT_EQ(run.cut(), (std::vector<std::size_t>{2, 3, 5}));
}

TEST(EpiKVSegmentHS, WantsRowsOnlyInAStepThatCuts) {
  EpiKVSegmentHS policy(options_of(8), kShape);
  policy.begin(6);
  policy.append(6);
  EXPECT_FALSE(policy.wants_attention(5));
  policy.append(2);
  EXPECT_FALSE(policy.wants_attention(5));
  policy.append(1);
  EXPECT_TRUE(policy.wants_attention(5));
  EXPECT_TRUE(policy.wants_attention(2));
  EXPECT_FALSE(policy.wants_attention(1));
}

// A model of fewer than four layers gives all of them.
TEST(EpiKVSegmentHS, TakesAllLayersOfAShallowModel) {
  CacheShape shape = kShape;
  shape.num_layers = 2;
  EpiKVSegmentHS policy(options_of(2), shape);
  policy.append(3);
  EXPECT_TRUE(policy.wants_attention(0));
  EXPECT_TRUE(policy.wants_attention(1));
}

TEST(EpiKVSegments, RefuseSegmentsOfNothing) {
  EpiKVSegmentOptions options = options_of(8);
  options.segment_len = 0;
  EXPECT_THROW(EpiKVSeg(options, kShape), InvalidArgument);
  options = options_of(8);
  options.layers_b = {6};
  EXPECT_THROW(EpiKVSegmentHS(options, kShape), InvalidArgument);
}

TEST(EpiKVSegments, SelectionIsPure) {
  Session<EpiKVSeg> run(options_of(6));
  run.append(10);
  run.hidden(kGrowing);
  EXPECT_EQ(run.policy.select(run.cache.view()), run.policy.select(run.cache.view()));
  EXPECT_EQ(run.policy.select(run.cache.view()).count(0, 0), 6U);
}

}  // namespace
}  // namespace kvevict
