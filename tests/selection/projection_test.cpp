#include "kvevict/selection/projection.hpp"

#include "kvevict/core/plan.hpp"
#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvevict;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using kvevict_test::kept_slots;
using kvevict_test::Slots;

/// What a policy decided, by lanes, and what it looked at.
struct Decision {
  CacheShape shape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  KeepMask mask;
  KeepMask locked;
  std::vector<std::vector<float>> scores;
  std::vector<std::vector<std::uint64_t>> candidates;
  std::vector<ScoredLane> lanes;

  Decision(std::size_t num_layers, std::size_t num_kv_heads,
           const std::vector<std::vector<float>>& lane_scores, const std::vector<Slots>& kept,
           const std::vector<Slots>& protected_slots = {})
      : scores(lane_scores) {
    shape.num_layers = num_layers;
    shape.num_q_heads = shape.num_kv_heads = num_kv_heads;
    mask.reset(MaskScope::kHead, num_layers, num_kv_heads);
    locked.reset(MaskScope::kHead, num_layers, num_kv_heads);
    for (std::size_t l = 0; l < scores.size(); ++l) {
      mark(mask.add_lane(scores[l].size()), kept[l]);
      mark(locked.add_lane(scores[l].size()),
           protected_slots.empty() ? Slots{} : protected_slots[l]);
    }
    candidates.resize(scores.size());
    for (std::size_t l = 0; l < scores.size(); ++l) {
      const auto bits = locked.words(l);
      for (std::size_t s = 0; s < scores[l].size(); ++s) {
        if (s % 64 == 0)
          candidates[l].push_back(0);
        candidates[l][s / 64] |= (~bits[s / 64] >> (s % 64) & 1U) << (s % 64);
      }
      lanes.push_back({l, scores[l], candidates[l], mask.words(l)});
    }
  }
  static void mark(std::span<std::uint64_t> bits, const Slots& slots) {
    for (const std::size_t s : slots)
      bits[s / 64] |= std::uint64_t{1} << (s % 64);
  }
  const KeepMask& run(Projection& projection) { return projection.run(mask, lanes, locked); }
};

Slots shared(Decision decision, const Granularity& granularity) {
  Projection projection(granularity, decision.shape);
  return kept_slots(decision.run(projection));
}

// Two heads that keep 2 of 4. Votes: slot 1 twice, 0 and 3 once: 1, then the lower slot.
// Means: 2.5, 3, 1.25, 2.75. Maxima: 5, 4, 2, 5.5.
TEST(Projection, ReducesTheHeadsOfALayerToOneSet) {
  const Decision heads(1, 2, {{5.0F, 4.0F, 0.5F, 0.0F}, {0.0F, 2.0F, 2.0F, 5.5F}},
                       {{0, 1}, {1, 3}});
  const auto by = [&](ScoreReduce reduce) {
    return shared(heads, {.scope = MaskScope::kLayer, .lane_reduce = reduce});
  };
  EXPECT_EQ(by(ScoreReduce::kVotes), (Slots{0, 1}));
  EXPECT_EQ(by(ScoreReduce::kMean), (Slots{1, 3}));
  EXPECT_EQ(by(ScoreReduce::kSum), (Slots{1, 3}));
  EXPECT_EQ(by(ScoreReduce::kMax), (Slots{0, 3}));
}

TEST(Projection, ListedLayersAloneHaveASay) {
  const Decision layers(3, 1, {{9.0F, 0.0F, 0.0F}, {0.0F, 1.0F, 0.0F}, {0.0F, 0.0F, 2.0F}},
                        {{0}, {1}, {2}});
  EXPECT_EQ(shared(layers, {.scope = MaskScope::kModel}), (Slots{0}));
  EXPECT_EQ(shared(layers, {.scope = MaskScope::kModel, .layers = {1}}), (Slots{1}));
  EXPECT_EQ(shared(layers, {.scope = MaskScope::kModel, .layers = upper_half(3)}), (Slots{2}));
  EXPECT_EQ(upper_half(3), (std::vector<std::size_t>{1, 2}));
}

// A set of one layer none of whose lanes is listed still goes by that layer.
TEST(Projection, LayersSpeakForThemselvesWhereSetsAreByLayer) {
  Decision layers(2, 2, {{2.0F, 1.0F}, {2.0F, 1.0F}, {0.0F, 3.0F}, {0.0F, 3.0F}},
                  {{0}, {0}, {1}, {1}});
  Projection projection({.scope = MaskScope::kLayer, .layers = {1}}, layers.shape);
  const KeepMask& mask = layers.run(projection);
  EXPECT_EQ(kept_slots(mask, 0), (Slots{0}));
  EXPECT_EQ(kept_slots(mask, 1), (Slots{1}));
}

TEST(Projection, ProtectedSlotsStayAndCount) {
  const Decision heads(1, 2, {{0.0F, 3.0F, 2.0F, 0.0F}, {0.0F, 3.0F, 2.0F, 0.0F}}, {{0, 1}, {0, 1}},
                       {{0}, {0}});
  EXPECT_EQ(shared(heads, {.scope = MaskScope::kModel}), (Slots{0, 1}));
  EXPECT_EQ(shared(heads, {.scope = MaskScope::kModel, .lane_reduce = ScoreReduce::kVotes}),
            (Slots{0, 1}));
}

TEST(Projection, NanGoesFirstInEveryReduction) {
  const Decision heads(1, 2, {{kNan, 1.0F, 0.5F}, {9.0F, 1.0F, 0.5F}}, {{1, 2}, {0, 1}});
  EXPECT_EQ(shared(heads, {.scope = MaskScope::kModel, .lane_reduce = ScoreReduce::kMean}),
            (Slots{1, 2}));
  // The other head has a number for it.
  EXPECT_EQ(shared(heads, {.scope = MaskScope::kModel, .lane_reduce = ScoreReduce::kMax}),
            (Slots{0, 1}));
}

// Case O-35: a budget is in tokens, and the partial page counts by its real size. Pages of 2 over 5
// slots: means 2, 2.5, 3; sums 4, 5, 3; votes 1, 1, 1; three slots are kept.
TEST(Projection, KeepsThePagesThatFit) {
  const Decision lane(1, 1, {{0.0F, 4.0F, 2.0F, 3.0F, 3.0F}}, {{1, 3, 4}});
  const auto by = [&](ScoreReduce reduce) {
    return shared(lane, {.page_size = 2, .page_reduce = reduce});
  };
  EXPECT_EQ(by(ScoreReduce::kMean), (Slots{2, 3, 4}));
  // The best page takes two of three, the next one does not fit, the partial one does.
  EXPECT_EQ(by(ScoreReduce::kSum), (Slots{2, 3, 4}));
  EXPECT_EQ(by(ScoreReduce::kMax), (Slots{0, 1, 4}));
  EXPECT_EQ(by(ScoreReduce::kVotes), (Slots{0, 1, 4}));
}

TEST(Projection, PageWithAProtectedSlotStays) {
  const Decision lane(1, 1, {{0.0F, 0.0F, 9.0F, 9.0F, 9.0F, 9.0F}}, {{0, 2, 3, 4}}, {{0}});
  EXPECT_EQ(shared(lane, {.page_size = 2}), (Slots{0, 1, 2, 3}));
}

TEST(Projection, FillsLanesUpToTheLongestWithTheBestOfTheEvicted) {
  Decision lanes(2, 2,
                 {{5.0F, 4.0F, 3.0F, 0.0F}, {1.0F, 9.0F, 8.0F, 2.0F}, {1.0F, 1.0F}, {1.0F, 1.0F}},
                 {{0, 1, 2}, {1}, {0}, {}});
  Projection by_layer({.equal_counts = EqualCounts::kLayer}, lanes.shape);
  const KeepMask& mask = lanes.run(by_layer);
  EXPECT_EQ(kept_slots(mask, 0, 0), (Slots{0, 1, 2}));
  EXPECT_EQ(kept_slots(mask, 0, 1), (Slots{1, 2, 3}));
  EXPECT_EQ(kept_slots(mask, 1, 0), (Slots{0}));
  EXPECT_EQ(kept_slots(mask, 1, 1), (Slots{0}));
  Projection by_model({.equal_counts = EqualCounts::kModel}, lanes.shape);
  // Shorter lanes keep all that they have.
  EXPECT_EQ(kept_slots(lanes.run(by_model), 1, 0), (Slots{0, 1}));
}

// Lanes of 5 slots in pages of 2: the last page is half full. Head 0 keeps it and one whole page,
// head 1 two whole pages; both then hold the last page and as many whole ones.
TEST(Projection, EqualPagesAreEqualSlots) {
  Decision heads(1, 2, {{0.0F, 0.0F, 5.0F, 5.0F, 9.0F}, {5.0F, 5.0F, 4.0F, 4.0F, 0.0F}},
                 {{2, 3, 4}, {0, 1, 2, 3}});
  Projection projection({.page_size = 2, .equal_counts = EqualCounts::kLayer}, heads.shape);
  const KeepMask& mask = heads.run(projection);
  EXPECT_EQ(mask.count(0, 0), 5U);
  EXPECT_EQ(mask.count(0, 1), 5U);
}

TEST(Projection, RefusesADecisionOfAnotherShape) {
  Decision one(1, 1, {{1.0F, 2.0F}}, {{0}});
  CacheShape other = one.shape;
  other.num_layers = 4;
  Projection projection({.scope = MaskScope::kModel}, other);
  EXPECT_THROW(one.run(projection), InvalidArgument);
}

TEST(Projection, RefusesWhatCannotBe) {
  const CacheShape shape{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  EXPECT_THROW(Projection({.page_size = 0}, shape), InvalidArgument);
  EXPECT_THROW(Projection({.layers = {2}}, shape), InvalidArgument);
  EXPECT_THROW(Projection({.layers = {1, 1}}, shape), InvalidArgument);
  Decision ragged(2, 1, {{1.0F, 2.0F}, {1.0F}}, {{0}, {0}});
  Projection projection({.scope = MaskScope::kModel}, ragged.shape);
  EXPECT_THROW(ragged.run(projection), InvalidArgument);
}

// Over random decisions: never more than the policy kept, but for pages that protection opens and
// lanes that are filled up; protected slots always stay; a page stays whole or goes whole.
TEST(Projection, HoldsItsPromisesOverRandomDecisions) {
  std::mt19937 random(5);
  const auto draw = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    const std::size_t num_layers = 1 + draw(3);
    const std::size_t num_heads = 1 + draw(3);
    const std::size_t len = 1 + draw(150);
    const Slots locked = draw(2) == 0 ? Slots{} : Slots{0, len - 1};
    std::vector<std::vector<float>> scores;
    std::vector<Slots> slots;
    for (std::size_t l = 0; l < num_layers * num_heads; ++l) {
      scores.emplace_back();
      slots.emplace_back(locked);
      for (std::size_t s = 0; s < len; ++s) {
        scores.back().push_back(static_cast<float>(draw(8)));  // many ties
        if (draw(3) == 0)
          slots.back().push_back(s);
      }
    }
    Decision decision(num_layers, num_heads, scores, slots,
                      std::vector<Slots>(scores.size(), locked));
    const Granularity granularity{
        .scope = std::array{MaskScope::kHead, MaskScope::kLayer, MaskScope::kModel}[draw(3)],
        .lane_reduce = static_cast<ScoreReduce>(draw(4)),
        .page_size = 1 + draw(5),
        .page_reduce = static_cast<ScoreReduce>(draw(4)),
        .equal_counts = static_cast<EqualCounts>(draw(3))};
    Projection projection(granularity, decision.shape);
    const KeepMask& mask = decision.run(projection);
    ASSERT_EQ(mask.scope(), granularity.scope);
    const std::size_t page_size = granularity.page_size;
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
      for (std::size_t head = 0; head < num_heads; ++head) {
        for (const std::size_t s : locked)
          EXPECT_TRUE(mask.keeps(layer, head, s));
        for (std::size_t s = 0; s < len; ++s)
          EXPECT_EQ(mask.keeps(layer, head, s), mask.keeps(layer, head, s / page_size * page_size));
        if (granularity.equal_counts == EqualCounts::kModel && page_size == 1) {
          EXPECT_EQ(mask.count(layer, head), mask.count(0, 0));
        }
      }
    }
    if (granularity.equal_counts == EqualCounts::kNone) {
      const std::size_t opened = locked.empty() ? 0 : 2 * (page_size - 1) * scores.size();
      EXPECT_LE(mask.total_count(), decision.mask.total_count() + opened);
    }
  }
}

// A mask as an engine executes it, hand-worked: 7 slots, 1, 2 and 5 stay.
TEST(Plan, NamesMovesAndPages) {
  Decision lane(1, 1, {std::vector<float>(7)}, {{1, 2, 5}});
  std::vector<std::size_t> moves;
  for_each_move(lane.mask, 0, 0, [&](std::size_t from, std::size_t to, std::size_t count) {
    moves.insert(moves.end(), {from, to, count});
  });
  EXPECT_EQ(moves, (std::vector<std::size_t>{1, 0, 2, 5, 2, 1}));
  std::vector<std::size_t> free_pages;
  for_each_free_page(lane.mask, 0, 0, 3, [&](std::size_t page) { free_pages.push_back(page); });
  EXPECT_EQ(free_pages, (std::vector<std::size_t>{2}));  // slot 6 alone
  std::vector<std::uint32_t> pages(3);
  pages.resize(kept_pages(lane.mask, 0, 0, 3, pages));
  EXPECT_EQ(pages, (std::vector<std::uint32_t>{0, 1}));
}

// In the order in which they come, moves may be made in place: none overwrites what a later one
// reads, and what stays lies at the front in order.
TEST(Plan, MovesInPlaceLeaveTheKeptSlotsInOrder) {
  std::mt19937 random(8);
  for (std::size_t len = 0; len < 200; ++len) {
    Slots kept;
    for (std::size_t s = 0; s < len; ++s) {
      if (random() % (1 + len % 7) == 0)
        kept.push_back(s);
    }
    const Decision lane(1, 1, {std::vector<float>(len)}, {kept});
    Slots rows(len);
    for (std::size_t s = 0; s < len; ++s)
      rows[s] = s;
    std::size_t end_of_targets = 0;
    for_each_move(lane.mask, 0, 0, [&](std::size_t from, std::size_t to, std::size_t count) {
      EXPECT_LT(to, from);
      EXPECT_GE(to, end_of_targets);
      EXPECT_GT(count, 0U);
      end_of_targets = to + count;
      for (std::size_t i = 0; i < count; ++i)
        rows[to + i] = rows[from + i];
    });
    rows.resize(kept.size());
    EXPECT_EQ(rows, kept);
  }
}

TEST(Plan, PagesAreEitherFreeOrKept) {
  std::mt19937 random(6);
  for (std::size_t len = 1; len < 140; ++len) {
    Slots slots;
    for (std::size_t s = 0; s < len; ++s) {
      if (random() % 4 == 0)
        slots.push_back(s);
    }
    const Decision lane(1, 1, {std::vector<float>(len)}, {slots});
    for (std::size_t page_size = 1; page_size < 9; ++page_size) {
      std::vector<std::uint32_t> pages(len);
      pages.resize(kept_pages(lane.mask, 0, 0, page_size, pages));
      for_each_free_page(lane.mask, 0, 0, page_size, [&](std::size_t page) {
        pages.push_back(static_cast<std::uint32_t>(page));
      });
      std::sort(pages.begin(), pages.end());
      ASSERT_EQ(pages.size(), (len + page_size - 1) / page_size);
      for (std::size_t page = 0; page < pages.size(); ++page)
        EXPECT_EQ(pages[page], page);
    }
  }
}

}  // namespace
