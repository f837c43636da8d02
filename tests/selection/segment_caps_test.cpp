#include "kvevict/selection/segment_caps.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace kvevict {
namespace {

/// Runs with the slots of `candidates`; importance of a segment is looked up by its first slot.
std::vector<std::size_t> left(const SegmentCapOptions& options, std::size_t room,
                              std::vector<float> scores, const std::vector<std::size_t>& candidates,
                              const std::vector<std::pair<std::size_t, float>>& importance) {
  std::vector<std::uint64_t> bits((scores.size() + 63) / 64, 0);
  for (const std::size_t slot : candidates)
    bits[slot / 64] |= std::uint64_t{1} << (slot % 64);
  std::vector<std::uint64_t> keep(bits.size(), 0);
  ScoredLane lane{0, scores, bits, keep};
  SegmentCaps().run(options, room, lane, [&](std::span<const std::uint32_t> slots) {
    for (const auto& [first, value] : importance) {
      if (first == slots.front())
        return value;
    }
    ADD_FAILURE() << "a segment starts at " << slots.front();
    return 0.0F;
  });
  std::vector<std::size_t> result;
  detail::for_each_bit(bits, [&](std::size_t slot) { result.push_back(slot); });
  return result;
}

std::vector<std::size_t> range(std::size_t first, std::size_t last) {
  std::vector<std::size_t> slots;
  for (; first < last; ++first)
    slots.push_back(first);
  return slots;
}

// Three segments of three; the middle one matters most and the last one least.
TEST(SegmentCaps, GiveEachThirdItsShare) {
  const SegmentCapOptions options{3, {3, 2, 1}};
  const std::vector<float> scores = {1, 3, 2, 5, 4, 6, 9, 7, 8};
  EXPECT_EQ(left(options, 9, scores, range(0, 9), {{0, 0.5F}, {3, 0.9F}, {6, 0.1F}}),
            (std::vector<std::size_t>{1, 2, 3, 4, 5, 6}));
}

// Four slots of room: two of segment 0, two of segment 1, nothing for the newest.
TEST(SegmentCaps, ServeTheOldestFirst) {
  const SegmentCapOptions options{3, {3, 2, 1}};
  const std::vector<float> scores = {1, 3, 2, 5, 4, 6, 9, 7, 8};
  EXPECT_EQ(left(options, 4, scores, range(0, 9), {{0, 0.5F}, {3, 0.9F}, {6, 0.1F}}),
            (std::vector<std::size_t>{1, 2, 3, 5}));
}

// Slots 2 and 5 are protected: segments are of candidates, the last one short.
TEST(SegmentCaps, CountCandidatesOnly) {
  const SegmentCapOptions options{2, {1, 1, 1}};
  const std::vector<float> scores = {1, 2, 99, 4, 3, 99, 5};
  EXPECT_EQ(left(options, 9, scores, {0, 1, 3, 4, 6}, {{0, 1.0F}, {3, 1.0F}, {6, 1.0F}}),
            (std::vector<std::size_t>{1, 3, 6}));
}

// floor(3 rank / m): one segment is in the first third, two are in the first and second.
TEST(SegmentCaps, ThirdsOfFewSegments) {
  const SegmentCapOptions options{2, {2, 1, 0}};
  EXPECT_EQ(left(options, 9, {1, 2}, range(0, 2), {{0, 0.0F}}), range(0, 2));
  EXPECT_EQ(left(options, 9, {1, 2, 3, 4}, range(0, 4), {{0, 0.0F}, {2, 1.0F}}),
            (std::vector<std::size_t>{1, 2, 3}));
  // Four segments by importance 3, 2, 1, 0: thirds 0, 0, 1, 2.
  EXPECT_EQ(left(options, 9, {1, 2, 3, 4, 5, 6, 7, 8}, range(0, 8),
                 {{0, 3.0F}, {2, 2.0F}, {4, 1.0F}, {6, 0.0F}}),
            (std::vector<std::size_t>{0, 1, 2, 3, 5}));
}

TEST(SegmentCaps, TiesGoToTheOlder) {
  const SegmentCapOptions options{2, {2, 1, 0}};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Equal importance: older segments rank first. Equal scores: the lower slot stays.
  EXPECT_EQ(left(options, 9, {1, 1, 1, 1, 1, 1}, range(0, 6), {{0, 1.0F}, {2, 1.0F}, {4, 1.0F}}),
            (std::vector<std::size_t>{0, 1, 2}));
  // NaN is the least of both.
  EXPECT_EQ(
      left(options, 9, {nan, -1, nan, -1, nan, -1}, range(0, 6), {{0, nan}, {2, -1.0F}, {4, 0.0F}}),
      (std::vector<std::size_t>{3, 4, 5}));
}

TEST(SegmentCaps, OfNoCandidatesAreNothing) {
  EXPECT_TRUE(left({4, {3, 2, 1}}, 9, {1, 2}, {}, {}).empty());
  EXPECT_TRUE(left({4, {3, 2, 1}}, 0, {1, 2}, range(0, 2), {{0, 0.0F}}).empty());
}

}  // namespace
}  // namespace kvevict
