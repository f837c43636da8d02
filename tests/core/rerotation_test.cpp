#include "kvevict/core/rerotation.hpp"

#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::mask_of;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4};

struct Map {
  std::vector<std::size_t> slots;
  std::vector<Position> positions;
  std::vector<Position> new_positions;
  std::vector<Position> shifts;
};

Map rerotation_map(const Sequence& sequence, const KeepMask& mask, std::size_t lane = 0) {
  Map map;
  for_each_rerotation(sequence, mask, lane, [&](const Rerotation& r) {
    map.slots.push_back(r.slot);
    map.positions.push_back(r.position);
    map.new_positions.push_back(r.new_position);
    map.shifts.push_back(r.shift);
  });
  return map;
}

// O-36: one sink and a window of three over ten tokens at once, then one more token. The map
// speaks of positions in the text, also where slots have moved before.
TEST(Rerotation, NamesOldPlaceNewPlaceAndShift) {
  Sequence sequence("Test", kShape, MaskScope::kModel);
  sequence.append(10);
  const KeepMask mask = mask_of(MaskScope::kModel, 1, 2, {"1000000111"});
  const Map map = rerotation_map(sequence, mask);
  EXPECT_EQ(map.slots, (std::vector<std::size_t>{0, 7, 8, 9}));
  EXPECT_EQ(map.positions, (std::vector<Position>{0, 7, 8, 9}));
  EXPECT_EQ(map.new_positions, (std::vector<Position>{0, 1, 2, 3}));
  EXPECT_EQ(map.shifts, (std::vector<Position>{0, -6, -6, -6}));
  sequence.apply(mask);
  sequence.append(1);
  const Map next = rerotation_map(sequence, mask_of(MaskScope::kModel, 1, 2, {"10111"}));
  EXPECT_EQ(next.slots, (std::vector<std::size_t>{0, 2, 3, 4}));
  EXPECT_EQ(next.positions, (std::vector<Position>{0, 8, 9, 10}));
  EXPECT_EQ(next.new_positions, (std::vector<Position>{0, 1, 2, 3}));
  EXPECT_EQ(next.shifts, (std::vector<Position>{0, -7, -7, -7}));
}

TEST(Rerotation, FollowsEachLaneOfAFinerSequence) {
  Sequence sequence("Test", kShape, MaskScope::kHead);
  sequence.append(4);
  sequence.apply(mask_of(MaskScope::kHead, 1, 2, {"1011", "0111"}));
  const KeepMask mask = mask_of(MaskScope::kModel, 1, 2, {"011"});
  EXPECT_EQ(rerotation_map(sequence, mask, 0).positions, (std::vector<Position>{2, 3}));
  EXPECT_EQ(rerotation_map(sequence, mask, 1).shifts, (std::vector<Position>{-2, -2}));
}

}  // namespace
}  // namespace kvevict
