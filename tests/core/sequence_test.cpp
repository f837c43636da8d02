#include "kvevict/core/sequence.hpp"

#include "support/errors.hpp"
#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::mask_of;
using kvevict_test::refuses;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4};

std::vector<Position> positions(const Sequence& sequence, std::size_t lane = 0) {
  std::vector<Position> result;
  for (std::size_t slot = 0; slot < sequence.seq_len(lane); ++slot) {
    result.push_back(sequence.position(lane, slot));
  }
  return result;
}

TEST(Sequence, SlotsArePositionsUntilSomethingGoes) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.append(3);
  sequence.append(1);
  EXPECT_EQ(sequence.length(), 4U);
  EXPECT_EQ(sequence.step_len(), 1U);
  EXPECT_EQ(positions(sequence), (std::vector<Position>{0, 1, 2, 3}));
}

// O-24: two compactions, and positions go on where the text is, not where the cache is.
TEST(Sequence, PositionsSurviveEvictions) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.append(6);
  sequence.apply(mask_of(MaskScope::kModel, 1, 2, {"101101"}));
  sequence.apply(mask_of(MaskScope::kModel, 1, 2, {"1011"}));
  EXPECT_EQ(positions(sequence), (std::vector<Position>{0, 3, 5}));
  sequence.append(2);
  EXPECT_EQ(positions(sequence), (std::vector<Position>{0, 3, 5, 6, 7}));
  EXPECT_EQ(sequence.length(), 8U);
  EXPECT_EQ(sequence.seq_len(0), 5U);
}

TEST(Sequence, LanesGoTheirOwnWays) {
  Sequence sequence("Test", kShape, MaskScope::kHead);
  sequence.append(4);
  sequence.apply(mask_of(MaskScope::kHead, 1, 2, {"1001", "0111"}));
  sequence.append(1);
  EXPECT_EQ(positions(sequence, 0), (std::vector<Position>{0, 3, 4}));
  EXPECT_EQ(positions(sequence, 1), (std::vector<Position>{1, 2, 3, 4}));
  EXPECT_EQ(sequence.seq_len(0, 1), 4U);
}

TEST(Sequence, TakesACoarserMask) {
  Sequence sequence("Test", kShape, MaskScope::kHead);
  sequence.append(4);
  sequence.apply(mask_of(MaskScope::kModel, 1, 2, {"0101"}));
  EXPECT_EQ(positions(sequence, 0), (std::vector<Position>{1, 3}));
  EXPECT_EQ(positions(sequence, 1), (std::vector<Position>{1, 3}));
}

TEST(Sequence, CountsSlotsBeforeAPosition) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.append(6);
  EXPECT_EQ(sequence.slots_before(0, 4), 4U);
  EXPECT_EQ(sequence.slots_before(0, 99), 6U);
  sequence.apply(mask_of(MaskScope::kModel, 1, 2, {"101001"}));
  EXPECT_EQ(sequence.slots_before(0, 0), 0U);
  EXPECT_EQ(sequence.slots_before(0, 1), 1U);
  EXPECT_EQ(sequence.slots_before(0, 2), 1U);
  EXPECT_EQ(sequence.slots_before(0, 5), 2U);
  EXPECT_EQ(sequence.slots_before(0, 6), 3U);
}

// O-26: n = 5, four drafts, one accepted; twice; and then an attempt to grow.
TEST(Sequence, TruncateForgetsByPosition) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.append(5);
  sequence.append(4);
  sequence.truncate(6);
  EXPECT_EQ(positions(sequence), (std::vector<Position>{0, 1, 2, 3, 4, 5}));
  sequence.truncate(6);
  EXPECT_EQ(sequence.length(), 6U);
  EXPECT_TRUE(refuses([&] { sequence.truncate(9); }, {"Test", "truncate", "9"}));
  EXPECT_EQ(sequence.length(), 6U);
}

TEST(Sequence, TruncateAfterAnEviction) {
  Sequence sequence("Test", kShape, MaskScope::kHead);
  sequence.append(6);
  sequence.apply(mask_of(MaskScope::kHead, 1, 2, {"100110", "010101"}));
  sequence.truncate(5);
  EXPECT_EQ(positions(sequence, 0), (std::vector<Position>{0, 3, 4}));
  EXPECT_EQ(positions(sequence, 1), (std::vector<Position>{1, 3}));
  sequence.append(1);
  EXPECT_EQ(positions(sequence, 1), (std::vector<Position>{1, 3, 5}));
}

TEST(Sequence, APromptIsPendingUntilItsLastPiece) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.begin(5, {});
  EXPECT_EQ(sequence.implied_append(), 5U);
  sequence.append(3);
  EXPECT_TRUE(sequence.in_prompt());
  EXPECT_EQ(sequence.pending_prompt(), 2U);
  EXPECT_EQ(sequence.implied_append(), 0U);  // it comes in pieces: nothing is implied any more
  sequence.append(2);
  EXPECT_FALSE(sequence.in_prompt());
}

TEST(Sequence, KnowsWhereItsPromptsAre) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  EXPECT_EQ(sequence.prompt().last, 0);
  sequence.begin(4, {});
  sequence.append(4);
  sequence.append(2);
  sequence.begin(3, {});
  sequence.append(3);
  ASSERT_EQ(sequence.prompts().size(), 2U);
  EXPECT_EQ(sequence.prompts()[0].first, 0);
  EXPECT_EQ(sequence.prompts()[0].last, 4);
  EXPECT_EQ(sequence.prompt().first, 6);
  EXPECT_EQ(sequence.prompt().last, 9);
}

TEST(Sequence, TruncateTakesBackPromptsAndPins) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  const PositionSpan early[] = {{1, 3}};
  sequence.begin(4, early);
  sequence.append(4);
  sequence.append(2);
  const PositionSpan late[] = {{6, 8}, {9, 11}};
  sequence.begin(5, late);
  sequence.append(5);
  sequence.end_prompt();
  sequence.truncate(7);  // inside the second prompt
  EXPECT_EQ(sequence.prompt().first, 6);
  EXPECT_EQ(sequence.prompt().last, 7);
  ASSERT_EQ(sequence.pinned().size(), 2U);
  EXPECT_EQ(sequence.pinned()[1].last, 7);
  sequence.truncate(6);  // to its start: the first prompt is the newest again
  ASSERT_EQ(sequence.prompts().size(), 1U);
  EXPECT_EQ(sequence.prompt().last, 4);
  EXPECT_EQ(sequence.pinned().size(), 1U);
}

// A chunk that is taken back is to be appended again; taking all of a prompt back cancels it.
TEST(Sequence, TruncateInsideAPromptLeavesItOpen) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.append(3);
  sequence.begin(5, {});
  sequence.append(2);
  sequence.truncate(4);
  EXPECT_EQ(sequence.pending_prompt(), 4U);
  EXPECT_EQ(sequence.prompt().last, 8);
  EXPECT_TRUE(refuses([&] { sequence.begin(3, {}); }, {"pending prompt"}));
  sequence.truncate(4);
  EXPECT_EQ(sequence.pending_prompt(), 4U);
  sequence.truncate(3);
  EXPECT_FALSE(sequence.in_prompt());
  EXPECT_TRUE(sequence.prompts().empty());
  EXPECT_NO_THROW(sequence.begin(3, {}));
}

TEST(Sequence, TruncateInsideACompletePromptShortensIt) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.begin(5, {});
  sequence.append(5);
  sequence.end_prompt();
  sequence.truncate(2);
  EXPECT_FALSE(sequence.in_prompt());
  EXPECT_EQ(sequence.prompt().last, 2);
}

// What an observation window needs of each chunk: the newest rows that lie inside it.
TEST(Sequence, RowsOfTheObservationWindowInEachStep) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.begin(10, {});
  EXPECT_EQ(sequence.step_rows_in_window(4), 4U);  // the prompt in one piece, not appended yet
  EXPECT_EQ(sequence.step_rows_in_window(99), 10U);
  sequence.append(5);
  EXPECT_EQ(sequence.step_rows_in_window(4), 0U);
  sequence.append(2);  // positions 5 and 6, window 6..9
  EXPECT_EQ(sequence.step_rows_in_window(4), 1U);
  sequence.append(3);
  EXPECT_EQ(sequence.step_rows_in_window(4), 3U);
  EXPECT_EQ(sequence.step_rows_in_window(2), 2U);
  sequence.append(1);  // decoding
  EXPECT_EQ(sequence.step_rows_in_window(4), 0U);
}

TEST(Sequence, RefusesAPromptInsideAPrompt) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.begin(5, {});
  sequence.append(2);
  EXPECT_TRUE(refuses([&] { sequence.begin(4, {}); }, {"Test", "pending prompt tokens", "3"}));
}

// A chunk that goes on behind the prompt has no rows of its own in the observation window.
TEST(Sequence, RefusesMoreTokensThanThePromptHas) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.begin(5, {});
  sequence.append(2);
  EXPECT_TRUE(refuses([&] { sequence.append(4); }, {"Test", "append", "4"}));
  EXPECT_EQ(sequence.length(), 2U);
  EXPECT_NO_THROW(sequence.append(3));
}

TEST(Sequence, RefusesToRunOutOfPositions) {
  constexpr std::size_t kLargest = std::numeric_limits<Position>::max();
  Sequence sequence("Test", kShape, MaskScope::kModel);
  EXPECT_TRUE(refuses([&] { sequence.append(kLargest + 1); }, {"Test", "append", "2147483648"}));
  sequence.append(kLargest);
  EXPECT_EQ(sequence.position(0, kLargest - 1), std::numeric_limits<Position>::max() - 1);
  EXPECT_TRUE(refuses([&] { sequence.append(1); }, {"Test", "append", "1"}));
  EXPECT_TRUE(refuses([&] { sequence.begin(1, {}); }, {"Test", "prompt_len", "1"}));
}

// Signals of a step come before its mask is applied; the newest slots are others then.
TEST(Sequence, AnAppliedMaskEndsTheStep) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.begin(4, {});
  sequence.append(4);
  EXPECT_EQ(sequence.step_rows_in_window(2), 2U);
  sequence.apply(mask_of(MaskScope::kModel, 1, 2, {"1001"}));
  EXPECT_EQ(sequence.step_len(), 0U);
  EXPECT_EQ(sequence.step_rows_in_window(2), 0U);
}

TEST(Sequence, RefusesSpansThatAreNone) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  const PositionSpan negative[] = {{-1, 2}};
  EXPECT_TRUE(refuses([&] { sequence.begin(4, negative); }, {"Test", "PositionSpan.first", "-1"}));
  const PositionSpan backwards[] = {{3, 2}};
  EXPECT_TRUE(refuses([&] { sequence.begin(4, backwards); }, {"Test", "PositionSpan.last", "2"}));
  EXPECT_FALSE(sequence.in_prompt());  // and nothing happened
}

TEST(Sequence, ResetIsAsNew) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  const PositionSpan pinned[] = {{0, 1}};
  sequence.begin(4, pinned);
  sequence.append(3);
  sequence.apply(mask_of(MaskScope::kModel, 1, 2, {"011"}));
  sequence.reset();
  EXPECT_EQ(sequence.length(), 0U);
  EXPECT_EQ(sequence.seq_len(0), 0U);
  EXPECT_FALSE(sequence.in_prompt());
  EXPECT_TRUE(sequence.pinned().empty());
  EXPECT_TRUE(sequence.prompts().empty());
  sequence.append(2);
  EXPECT_EQ(positions(sequence), (std::vector<Position>{0, 1}));
}

}  // namespace
}  // namespace kvevict
