#include "kvevict/selection/top_k.hpp"

#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/top_k.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::Lane;
using kvevict_test::Slots;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Slots kept(std::vector<float> scores, std::size_t quota) {
  std::vector<Lane> lanes = {Lane(std::move(scores))};
  select(lanes, quota);
  return lanes[0].kept();
}

// O-04, R2, R3: a threshold would keep four and eight.
TEST(TopK, TieGoesToTheLowerSlotAndTheCountIsExact) {
  EXPECT_EQ(kept({1, 2, 2, 2, 3}, 3), (Slots{1, 2, 4}));
  EXPECT_EQ(kept(std::vector<float>(8, 0.0F), 3), (Slots{0, 1, 2}));
}

// O-03: only what is above the quota goes, and then the least.
TEST(TopK, KeepsAllUpToTheQuota) {
  for (const std::size_t n : {50U, 63U, 64U}) {
    std::vector<float> scores(n);
    for (std::size_t i = 0; i < n; ++i)
      scores[i] = static_cast<float>((i * 37 + 5) % n);
    EXPECT_EQ(kept(scores, 64), kvevict_test::range(0, n));
  }
  std::vector<float> scores(65);
  for (std::size_t i = 0; i < 65; ++i)
    scores[i] = static_cast<float>((i * 37 + 5) % 65);
  Slots expected;
  for (std::size_t i = 0; i < 65; ++i) {
    if (scores[i] != 0.0F)
      expected.push_back(i);
  }
  EXPECT_EQ(kept(scores, 64), expected);
}

TEST(TopK, NothingToChooseFrom) {
  EXPECT_EQ(kept({}, 3), Slots{});
  EXPECT_EQ(kept({1, 2}, 0), Slots{});
  std::vector<Lane> none;
  select(none, 2);
}

TEST(TopK, ZerosOfBothSignsAreEqual) {
  EXPECT_EQ(kept({-0.0F, 0.0F, -0.0F}, 2), (Slots{0, 1}));
  EXPECT_EQ(kept({-1.0F, -0.0F, 0.0F}, 1), (Slots{1}));
}

// R4: NaN below -infinity, +infinity on top, negative scores the right way round.
TEST(TopK, NonFiniteScoresHaveTheirPlaces) {
  EXPECT_EQ(kept({kNaN, -kInf, kNaN, -kInf, 1}, 3), (Slots{1, 3, 4}));
  EXPECT_EQ(kept({kNaN, -kNaN, kNaN}, 2), (Slots{0, 1}));
  EXPECT_EQ(kept({1, kInf, 2, kInf}, 2), (Slots{1, 3}));
  EXPECT_EQ(kept({-3, -1, -2}, 2), (Slots{1, 2}));
}

// O-08: 1..20 rotated by r, one of them NaN: 400 inputs, of which a sort by "<" gets a third wrong.
TEST(TopK, NaNNeverBreaksTheOrder) {
  for (std::size_t r = 0; r < 20; ++r) {
    for (std::size_t i = 0; i < 20; ++i) {
      std::vector<float> scores(20);
      for (std::size_t s = 0; s < 20; ++s)
        scores[s] = static_cast<float>((s + r) % 20 + 1);
      scores[i] = kNaN;
      // Values are 1..20: the NaN in place of one of the five largest lets 15 in.
      const bool took_a_large_one = (i + r) % 20 + 1 > 15;
      Slots expected;
      for (std::size_t s = 0; s < 20; ++s) {
        if (scores[s] >= (took_a_large_one ? 15.0F : 16.0F))
          expected.push_back(s);
      }
      EXPECT_EQ(kept(scores, 5), expected) << "rotated by " << r << ", NaN at " << i;
      EXPECT_EQ(kept(scores, 20).size(), 20U);
    }
  }
}

// R3 over several lanes: equal scores go by lane, then by slot.
TEST(TopK, LanesShareAQuota) {
  std::vector<Lane> lanes = {Lane({1, 1, 1}), Lane({1, 1, 1})};
  select(lanes, 4);
  EXPECT_EQ(lanes[0].kept(), (Slots{0, 1, 2}));
  EXPECT_EQ(lanes[1].kept(), (Slots{0}));
}

TEST(TopK, OnlyCandidatesAreChosenAndReadAndKeptBitsStay) {
  std::vector<Lane> lanes = {Lane({kInf, 5, kInf, 1, 7})};
  lanes[0].protect(0);
  lanes[0].candidates[0] &= ~std::uint64_t{4};  // slot 2 is not there at all
  select(lanes, 2);
  EXPECT_EQ(lanes[0].kept(), (Slots{0, 1, 4}));
}

// Against the definition, with many ties, all kinds of numbers, and runs of candidates.
TEST(TopK, EqualsTheDefinition) {
  kvevict_test::Random random(7);
  const float special[] = {kNaN, kInf, -kInf, 0.0F, -0.0F, 1e-42F, -1e-42F, 3e38F, -3e38F};
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<Lane> lanes;
    const std::size_t num_lanes = 1 + random.below(4);
    std::size_t num_candidates = 0;
    for (std::size_t l = 0; l < num_lanes; ++l) {
      std::vector<float> scores(random.below(150));
      for (float& score : scores) {
        const std::size_t kind = random.below(20);
        score = kind == 0  ? special[random.below(9)]
                : kind < 8 ? static_cast<float>(random.bits() >> 40U) * 0x1p-12F
                           : random.eighths();
      }
      Lane lane(scores);
      if (random.below(3) > 0) {
        for (std::size_t slot = 0; slot < scores.size(); ++slot) {
          if (random.below(4) == 0)
            lane.candidates[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
        }
      }
      num_candidates += detail::count_bits(lane.candidates);
      lanes.push_back(lane);
    }
    const std::size_t quota = random.below(num_candidates + 5);
    std::vector<Lane> expected = lanes;
    const auto order = by_preference(lanes);
    for (std::size_t i = 0; i < std::min(quota, order.size()); ++i) {
      Lane::set(expected[order[i].first].keep, order[i].second);
    }
    select(lanes, quota);
    for (std::size_t l = 0; l < num_lanes; ++l) {
      ASSERT_EQ(lanes[l].kept(), expected[l].kept()) << "trial " << trial << " lane " << l;
    }
  }
}

void expect_definition(std::vector<Lane> lanes, std::size_t quota) {
  std::vector<Lane> expected = lanes;
  const auto order = by_preference(lanes);
  for (std::size_t i = 0; i < std::min(quota, order.size()); ++i)
    Lane::set(expected[order[i].first].keep, order[i].second);
  select(lanes, quota);
  for (std::size_t l = 0; l < lanes.size(); ++l)
    ASSERT_EQ(lanes[l].keep, expected[l].keep) << "quota " << quota << " lane " << l;
}

// All but one stay: lanes of several stretches of full words, with holes and ends in between, and
// few values, so that the worst one has equals.
TEST(TopK, AllButOneIsTheDefinitionToo) {
  kvevict_test::Random random(13);
  for (std::size_t trial = 0; trial < 300; ++trial) {
    std::vector<Lane> lanes;
    std::size_t num_candidates = 0;
    for (std::size_t l = 0; l <= random.below(3); ++l) {
      std::vector<float> scores(1 + random.below(3000));
      for (float& score : scores)
        score = random.below(500) == 0 ? kNaN : static_cast<float>(random.below(1 + 10 * trial));
      Lane lane(std::move(scores));
      for (std::size_t hole = random.below(4); hole > 0; --hole) {
        const std::size_t first = random.below(lane.scores.size());
        for (std::size_t slot = first;
             slot < std::min(lane.scores.size(), first + 1 + random.below(200)); ++slot)
          lane.protect(slot);
      }
      num_candidates += detail::count_bits(lane.candidates);
      lanes.push_back(std::move(lane));
    }
    if (num_candidates > 0)
      expect_definition(lanes, num_candidates - 1);
  }
}

// The threshold is guessed from a sample of long lanes: whatever the sample sees, the choice is the
// same.
TEST(TopK, ASampleThatMisleadsCostsAPassAndNothingElse) {
  kvevict_test::Random random(11);
  enum class Kind {
    kSmooth,
    kSampledHigh,
    kSampledLow,
    kFewValues,
    kEqual,
    kHalfNaN,
    kOneWordOf64
  };
  for (const Kind kind : {Kind::kSmooth, Kind::kSampledHigh, Kind::kSampledLow, Kind::kFewValues,
                          Kind::kEqual, Kind::kHalfNaN, Kind::kOneWordOf64}) {
    std::vector<Lane> lanes;
    for (std::size_t l = 0; l < 3; ++l) {
      std::vector<float> scores(20'000 + 37 * l);
      for (std::size_t slot = 0; slot < scores.size(); ++slot) {
        const bool sampled = slot / 64 % 2 == 0;  // a word in two: every stride meets some
        float& score = scores[slot];
        score = static_cast<float>(random.bits() >> 40U) * 0x1p-23F - 1.0F;
        if (kind == Kind::kSampledHigh || kind == Kind::kSampledLow)
          score = (sampled == (kind == Kind::kSampledHigh) ? 1e6F : -1e6F) + score;
        if (kind == Kind::kFewValues)
          score = random.eighths();
        if (kind == Kind::kEqual)
          score = 1;
        if (kind == Kind::kHalfNaN && slot % 2 == 0)
          score = kNaN;
      }
      Lane lane(std::move(scores));
      for (std::size_t w = 0; kind == Kind::kOneWordOf64 && w < lane.candidates.size(); ++w)
        lane.candidates[w] = w % 64 == 5 ? lane.candidates[w] : 0;
      lanes.push_back(std::move(lane));
    }
    for (const std::size_t quota : {1U, 2U, 100U, 5'999U, 30'000U, 59'000U, 60'100U})
      expect_definition(lanes, quota);
  }
}

// Scores that fall from slot to slot are what a decode-time cache looks like, and a sample of one
// slot in a word sees them evenly.
TEST(TopK, SortedScores) {
  std::vector<float> falling(50'000);
  for (std::size_t slot = 0; slot < falling.size(); ++slot)
    falling[slot] = 1.0F / static_cast<float>(slot + 1);
  for (const std::size_t quota : {7U, 5'000U, 49'990U})
    expect_definition({Lane(falling)}, quota);
}

}  // namespace
}  // namespace kvevict
