#include "kvevict/selection/head_floors.hpp"

#include "support/top_k.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::FloorRule;
using kvevict::HeadFloors;
using Slots = std::vector<std::size_t>;

HeadFloors interpolate(double floor) {
  return {FloorRule::kInterpolate, floor, false, false};
}
HeadFloors guarantee(double floor, bool of_whole = false) {
  return {FloorRule::kGuarantee, floor, false, of_whole};
}

TEST(HeadFloors, EachLaneKeepsItsOwnBest) {
  // c = (4, 0), floor .5: 4 * .5 + 1 and 1.
  EXPECT_EQ(chosen(interpolate(0.5), 4, {Lane({9, 8, 7, 6, 5}), Lane({1, 2, 3, 4})}, 0),
            (std::vector<Slots>{{0, 1, 2}, {3}}));
}

// R2: what a short lane cannot take goes to the others. 4 each, but the first lane has two.
TEST(HeadFloors, ShortLanesLeaveTheirShare) {
  EXPECT_EQ(chosen(interpolate(1), 8, {Lane({1, 2}), Lane({1, 2, 3, 4, 5, 6, 7})}, 0),
            (std::vector<Slots>{{0, 1}, {1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(chosen(guarantee(1), 8, {Lane({1, 2}), Lane({1, 2, 3, 4, 5, 6, 7})}, 0),
            (std::vector<Slots>{{0, 1}, {1, 2, 3, 4, 5, 6}}));
}

// R15: a lane without protected slots keeps one entry, whatever it wins; one that has them may get
// nothing.
TEST(HeadFloors, NoLaneIsEmptied) {
  std::vector<Lane> lanes = {Lane({9, 8, 7}), Lane({1, 2, 3})};
  for (const HeadFloors& floors : {interpolate(0), guarantee(0)}) {
    EXPECT_EQ(chosen(floors, 3, lanes, 0), (std::vector<Slots>{{0, 1}, {2}}));
  }
  lanes[1].protect(0);
  for (const HeadFloors& floors : {interpolate(0), guarantee(0)}) {
    EXPECT_EQ(chosen(floors, 3, lanes, 0), (std::vector<Slots>{{0, 1, 2}, {0}}));
  }
}

// Of 6 entries, 2 of them protected, the lanes have 3 each: .7 of that is 2.
TEST(HeadFloors, ProtectedSlotsMayCountInAFloor) {
  std::vector<Lane> lanes = {Lane({9, 8, 7, 6, 5}), Lane({1, 2, 3, 4, 0})};
  lanes[0].protect(4);
  lanes[1].protect(4);
  EXPECT_EQ(chosen(guarantee(0.7, true), 4, lanes, 0), (std::vector<Slots>{{0, 1, 2, 4}, {3, 4}}));
  EXPECT_EQ(chosen(guarantee(0.7), 4, lanes, 0), (std::vector<Slots>{{0, 1, 2, 4}, {3, 4}}));
  EXPECT_EQ(chosen(guarantee(0.3, true), 4, lanes, 0), (std::vector<Slots>{{0, 1, 2, 3, 4}, {4}}));
}

// R3, R4: ties stay with the earlier lane and the lower slot, NaN goes first, the count is exact.
TEST(HeadFloors, TiesAndNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const double floor : {0.0, 0.25, 0.5, 1.0}) {
    for (const HeadFloors& floors : {interpolate(floor), guarantee(floor)}) {
      const auto kept = chosen(floors, 4, {Lane({nan, 1, 1, nan}), Lane({1, nan, 1, 1})}, 0);
      EXPECT_EQ(kept[0], (Slots{1, 2})) << floor;
      EXPECT_EQ(kept[1], (Slots{0, 2})) << floor;
    }
  }
}

}  // namespace
}  // namespace kvevict_test
