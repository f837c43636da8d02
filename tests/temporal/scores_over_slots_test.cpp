// The small states over slots: frozen_scores, late_scores, step_sum, and decoded_tokens.
#include "kvevict/temporal/decoded_tokens.hpp"
#include "kvevict/temporal/frozen_scores.hpp"
#include "kvevict/temporal/late_scores.hpp"
#include "kvevict/temporal/step_sum.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};
constexpr float kNone = -std::numeric_limits<float>::infinity();

/// Keeps the slots that `kept` marks.
KeepMask mask_of(const std::vector<bool>& kept) {
  KeepMask mask;
  mask.reset(MaskScope::kModel, kShape.num_layers, kShape.num_kv_heads);
  const std::span<std::uint64_t> bits = mask.add_lane(kept.size());
  for (std::size_t s = 0; s < kept.size(); ++s) {
    if (kept[s])
      bits[s / 64] |= std::uint64_t{1} << (s % 64);
  }
  return mask;
}

std::vector<float> copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

TEST(FrozenScores, FollowTheCacheAndShowWhatIsMissing) {
  FrozenScores scores(kShape);
  scores.append(2);
  scores.append(3);
  const std::vector<float> newest = {1, 2, 3};
  scores.set_newest(newest);
  EXPECT_EQ(copy(scores.values()), (std::vector<float>{kNone, kNone, 1, 2, 3}));
  scores.apply(mask_of({true, false, true, false, true}));
  EXPECT_EQ(copy(scores.values()), (std::vector<float>{kNone, 1, 3}));
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(2);
  scores.truncate(sequence);
  EXPECT_EQ(copy(scores.values()), (std::vector<float>{kNone, 1}));
  scores.reset();
  EXPECT_TRUE(scores.values().empty());
}

TEST(LateScores, BecomeFinalWithTheMaskOnly) {
  LateScores scores(kShape);
  scores.append(3);
  scores.clear_proposals();
  scores.propose(1, 5.0F);
  EXPECT_FALSE(scores.is_frozen(1));
  scores.append(1);  // that selection was not applied
  scores.apply(mask_of({true, true, true, true}));
  EXPECT_FALSE(scores.is_frozen(1));
  scores.clear_proposals();
  scores.propose(1, 6.0F);
  scores.apply(mask_of({false, true, true, true}));
  EXPECT_TRUE(scores.is_frozen(0));
  EXPECT_EQ(scores.values()[0], 6.0F);
  EXPECT_FALSE(scores.is_frozen(1));
}

// Whichever slots it keeps: it is the eviction that makes the newest proposals final, once.
TEST(LateScores, BecomeFinalUnderAMaskOfTheEnginesOwn) {
  LateScores scores(kShape);
  scores.append(3);
  scores.apply(mask_of({true, true, true}));  // no selection before it
  EXPECT_FALSE(scores.is_frozen(0));
  scores.clear_proposals();
  scores.propose(0, 5.0F);
  scores.propose(2, 7.0F);
  scores.apply(mask_of({false, true, true}));  // the selection would have evicted another one
  EXPECT_FALSE(scores.is_frozen(0));           // slot 1 until then, which was no candidate
  EXPECT_EQ(scores.values()[1], 7.0F);
  scores.apply(mask_of({true, true}));  // a second mask after the same selection
  EXPECT_FALSE(scores.is_frozen(0));
}

TEST(LateScores, NeverChangeOnceFinal) {
  LateScores scores(kShape);
  scores.append(2);
  for (const float value : {1.0F, 2.0F}) {
    scores.clear_proposals();
    scores.propose(0, value);
    scores.apply(mask_of({true, true}));
    EXPECT_EQ(scores.values()[0], 1.0F);
  }
}

TEST(StepSum, StartsOverWithEveryAppend) {
  StepSum sum(kShape);
  sum.append(2);
  sum.values()[1] = 4.0F;
  sum.apply(mask_of({false, true}));
  EXPECT_EQ(copy(sum.values()), (std::vector<float>{4}));
  sum.append(1);
  EXPECT_EQ(copy(sum.values()), (std::vector<float>{0, 0}));
}

TEST(DecodedTokens, OfAStepAreThoseBehindThePrompt) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  EXPECT_EQ(decoded_in_step(sequence), 0U);
  sequence.begin(5, {});
  EXPECT_EQ(decoded_in_step(sequence), 0U);
  sequence.append(3);
  EXPECT_EQ(decoded_in_step(sequence), 0U);
  sequence.append(2);
  EXPECT_EQ(decoded_in_step(sequence), 0U);
  sequence.append(4);
  EXPECT_EQ(decoded_in_step(sequence), 4U);
  sequence.append(2);
  EXPECT_EQ(decoded_in_step(sequence), 2U);
  sequence.truncate(8);
  EXPECT_EQ(decoded_in_step(sequence), 0U);
}

TEST(DecodedTokens, LieBetweenPromptsWhateverWasEvicted) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(1);  // position 0, before any prompt
  sequence.begin(2, {});
  sequence.append(2);
  sequence.append(3);  // positions 3, 4, 5
  sequence.begin(1, {});
  sequence.append(1);
  sequence.append(1);  // position 7
  const auto decoded = [&] {
    std::vector<Position> positions;
    for_each_decoded_slot(
        sequence, 0, [&](std::size_t slot) { positions.push_back(sequence.position(0, slot)); });
    return positions;
  };
  EXPECT_EQ(decoded(), (std::vector<Position>{0, 3, 4, 5, 7}));
  sequence.apply(mask_of({true, true, true, true, false, true, true, true}));
  EXPECT_EQ(decoded(), (std::vector<Position>{0, 3, 5, 7}));
}

}  // namespace
}  // namespace kvevict
