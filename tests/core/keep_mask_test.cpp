#include "kvevict/core/keep_mask.hpp"

#include "support/masks.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::mask_of;
using kvevict_test::Slots;
using Runs = std::vector<std::pair<std::size_t, std::size_t>>;

Runs kept_runs(const KeepMask& mask, std::size_t layer, std::size_t head) {
  Runs runs;
  mask.for_each_kept_run(layer, head, [&](std::size_t first, std::size_t last) {
    runs.push_back({first, last});
  });
  return runs;
}
Runs evicted_runs(const KeepMask& mask, std::size_t layer, std::size_t head) {
  Runs runs;
  mask.for_each_evicted_run(layer, head, [&](std::size_t first, std::size_t last) {
    runs.push_back({first, last});
  });
  return runs;
}

// O-23, R1: scores [.1, .9, .5, .7] and a budget of 3 leave 1, 2, 3 in this order.
TEST(KeepMask, GivesKeptSlotsAscending) {
  const KeepMask mask = mask_of("0111");
  std::vector<std::uint32_t> slots(3);
  EXPECT_EQ(mask.kept_slots(0, 0, slots), 3U);
  EXPECT_EQ(slots, (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST(KeepMask, MapsOldSlotsToNewOnes) {
  const KeepMask mask = mask_of("101101");
  std::vector<std::int32_t> map(6, 99);
  mask.slot_map(0, 0, map);
  EXPECT_EQ(map, (std::vector<std::int32_t>{0, -1, 1, 2, -1, 3}));
}

TEST(KeepMask, GivesRunsOfBothKinds) {
  const KeepMask mask = mask_of("0110001");
  EXPECT_EQ(kept_runs(mask, 0, 0), (Runs{{1, 3}, {6, 7}}));
  EXPECT_EQ(evicted_runs(mask, 0, 0), (Runs{{0, 1}, {3, 6}}));
}

TEST(KeepMask, RunsReachOverWordsAndEndWithTheLane) {
  const std::string text = std::string(3, '0') + std::string(130, '1') + std::string(59, '0');
  const KeepMask mask = mask_of(text);  // 192 slots: three full words
  EXPECT_EQ(kept_runs(mask, 0, 0), (Runs{{3, 133}}));
  EXPECT_EQ(evicted_runs(mask, 0, 0), (Runs{{0, 3}, {133, 192}}));
  EXPECT_EQ(mask.count(0, 0), 130U);
}

TEST(KeepMask, WholeLanesAndEmptyOnes) {
  const KeepMask all = mask_of(std::string(64, '1'));
  EXPECT_EQ(kept_runs(all, 0, 0), (Runs{{0, 64}}));
  EXPECT_EQ(evicted_runs(all, 0, 0), Runs{});
  const KeepMask none = mask_of(std::string(65, '0'));
  EXPECT_EQ(kept_runs(none, 0, 0), Runs{});
  EXPECT_EQ(evicted_runs(none, 0, 0), (Runs{{0, 65}}));
  const KeepMask empty = mask_of("");
  EXPECT_EQ(kept_runs(empty, 0, 0), Runs{});
  EXPECT_EQ(evicted_runs(empty, 0, 0), Runs{});
  EXPECT_EQ(empty.count(0, 0), 0U);
}

TEST(KeepMask, EveryConversionAgreesWithTheBits) {
  kvevict_test::Random random(1);
  for (std::size_t len = 0; len < 200; ++len) {
    std::string text;
    // Runs of some length, so that words are sometimes all ones or all zeros.
    while (text.size() < len)
      text.append(random.below(90), random.below(2) == 0 ? '0' : '1');
    text.resize(len);
    const KeepMask mask = mask_of(text);
    Slots expected;
    for (std::size_t slot = 0; slot < len; ++slot) {
      EXPECT_EQ(mask.keeps(0, 0, slot), text[slot] == '1');
      if (text[slot] == '1')
        expected.push_back(slot);
    }
    EXPECT_EQ(mask.count(0, 0), expected.size());
    std::vector<std::uint32_t> slots(expected.size());
    EXPECT_EQ(mask.kept_slots(0, 0, slots), expected.size());
    EXPECT_EQ(Slots(slots.begin(), slots.end()), expected);
    std::vector<std::int32_t> map(len);
    mask.slot_map(0, 0, map);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(map[expected[i]], static_cast<std::int32_t>(i));
    }
    std::string from_runs(len, '?');
    for (const auto& [first, last] : kept_runs(mask, 0, 0)) {
      from_runs.replace(first, last - first, last - first, '1');
    }
    for (const auto& [first, last] : evicted_runs(mask, 0, 0)) {
      from_runs.replace(first, last - first, last - first, '0');
    }
    EXPECT_EQ(from_runs, text);
  }
}

TEST(KeepMask, HeadsOfALayerReadTheSharedLane) {
  const KeepMask mask = mask_of(MaskScope::kLayer, 2, 3, {"101", "0110"});
  EXPECT_EQ(mask.num_lanes(), 2U);
  for (std::size_t head = 0; head < 3; ++head) {
    EXPECT_EQ(kvevict_test::text_of(mask, 0, head), "101");
    EXPECT_EQ(kvevict_test::text_of(mask, 1, head), "0110");
  }
  EXPECT_EQ(mask.total_count(), 12U);
  EXPECT_EQ(mask.total_evicted(), 9U);
}

TEST(KeepMask, TotalsCountEveryLayerAndHead) {
  const KeepMask model = mask_of(MaskScope::kModel, 4, 2, {"1001"});
  EXPECT_EQ(model.total_count(), 16U);
  EXPECT_EQ(model.total_evicted(), 16U);
  const KeepMask heads = mask_of(MaskScope::kHead, 1, 2, {"1001", "01"});
  EXPECT_EQ(heads.total_count(), 3U);
  EXPECT_EQ(heads.total_evicted(), 3U);
  EXPECT_EQ(heads.lane_of(0, 1), 1U);
}

TEST(KeepMask, AFreshOneHoldsNothing) {
  const KeepMask mask;
  EXPECT_EQ(mask.num_lanes(), 0U);
  EXPECT_EQ(mask.total_count(), 0U);
  EXPECT_EQ(mask.total_evicted(), 0U);
}

TEST(KeepMask, EqualityLooksAtScopeLengthsAndBits) {
  const KeepMask mask = mask_of("1011");
  EXPECT_EQ(mask, mask_of("1011"));
  EXPECT_FALSE(mask == mask_of("1010"));
  EXPECT_FALSE(mask == mask_of("10110"));
  EXPECT_FALSE(mask == mask_of(MaskScope::kLayer, 1, 1, {"1011"}));
}

// The same object serves every step: what a longer mask left behind must not show.
TEST(KeepMask, ResetForgetsTheBitsBefore) {
  KeepMask mask = mask_of(MaskScope::kHead, 1, 2, {std::string(100, '1'), std::string(70, '1')});
  mask.reset(MaskScope::kModel, 1, 1);
  mask.add_lane(130);
  EXPECT_EQ(mask.count(0, 0), 0U);
  EXPECT_EQ(mask.seq_len(0, 0), 130U);
}

// O-24: m and the positions follow two masks in a row.
TEST(CompactSlots, TwoMasksAddUp) {
  std::vector<float> m = {.6F, .5F, .4F, .3F, .2F, .1F};
  std::vector<int> positions = {0, 1, 2, 3, 4, 5};
  const KeepMask first = mask_of("101101");
  compact_slots(first, 0, m);
  compact_slots(first, 0, positions);
  EXPECT_EQ(positions, (std::vector<int>{0, 2, 3, 5}));
  const KeepMask second = mask_of("1011");
  compact_slots(second, 0, m);
  compact_slots(second, 0, positions);
  EXPECT_EQ(m, (std::vector<float>{.6F, .3F, .1F}));
  EXPECT_EQ(positions, (std::vector<int>{0, 3, 5}));
}

}  // namespace
}  // namespace kvevict
