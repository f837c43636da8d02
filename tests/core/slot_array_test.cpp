#include "kvevict/core/slot_array.hpp"

#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::mask_of;
using Floats = std::vector<float>;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4};

Floats copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

void number(SlotArray& array, std::size_t lane, float first) {
  for (float& value : array.at(lane))
    value = first++;
}

TEST(SlotArray, NewSlotsHoldTheGivenValue) {
  SlotArray array(kShape, MaskScope::kModel);
  array.append(2);
  array.append(1, 0.5F);
  EXPECT_EQ(copy(array.at(0)), (Floats{0, 0, .5F}));
}

TEST(SlotArray, FollowsTheMaskOfItsOwnLane) {
  SlotArray array(kShape, MaskScope::kHead);
  array.append(3);
  for (std::size_t lane = 0; lane < 4; ++lane)
    number(array, lane, static_cast<float>(10 * lane));
  array.apply(mask_of(MaskScope::kHead, 2, 2, {"111", "101", "010", "000"}));
  EXPECT_EQ(copy(array.of(0, 0)), (Floats{0, 1, 2}));
  EXPECT_EQ(copy(array.of(0, 1)), (Floats{10, 12}));
  EXPECT_EQ(copy(array.of(1, 0)), (Floats{21}));
  EXPECT_EQ(copy(array.of(1, 1)), (Floats{}));
}

TEST(SlotArray, FollowsACoarserMask) {
  SlotArray array(kShape, MaskScope::kHead);
  array.append(3);
  for (std::size_t lane = 0; lane < 4; ++lane)
    number(array, lane, static_cast<float>(10 * lane));
  array.apply(mask_of(MaskScope::kLayer, 2, 2, {"101", "011"}));
  EXPECT_EQ(copy(array.of(0, 1)), (Floats{10, 12}));
  EXPECT_EQ(copy(array.of(1, 1)), (Floats{31, 32}));
}

TEST(SlotArray, AllArraysOfALaneMoveTogether) {
  SlotArray array(kShape, MaskScope::kLayer, 2);
  EXPECT_EQ(array.arrays_per_lane(), 2U);
  array.append(2);
  array.at(1, 0)[1] = 7;
  array.at(1, 1)[1] = 8;
  array.apply(mask_of(MaskScope::kLayer, 2, 2, {"11", "01"}));
  EXPECT_EQ(copy(array.of(1, 0, 0)), (Floats{7}));
  EXPECT_EQ(copy(array.of(1, 1, 1)), (Floats{8}));
  EXPECT_EQ(array.at(0, 1).size(), 2U);
}

// O-26: the accepted entries are untouched.
TEST(SlotArray, TruncatesWithTheSequence) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  SlotArray array(kShape, MaskScope::kModel);
  sequence.append(9);
  array.append(9);
  number(array, 0, 1);
  sequence.truncate(6);
  array.truncate(sequence);
  EXPECT_EQ(copy(array.at(0)), (Floats{1, 2, 3, 4, 5, 6}));
}

TEST(SlotArray, ResetLeavesNoSlots) {
  SlotArray array(kShape, MaskScope::kModel);
  array.append(3, 1.0F);
  array.fill(2.0F);
  EXPECT_EQ(copy(array.at(0)), (Floats{2, 2, 2}));
  array.reset();
  EXPECT_TRUE(array.at(0).empty());
}

}  // namespace
}  // namespace kvevict
