#include "kvevict/selection/pool_selection.hpp"

#include "kvevict/views/contiguous_view.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::mask_of;
using kvevict_test::refuses;
using Scores = std::vector<std::vector<float>>;  // [lanes][slots]

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A sequence with nothing but slots, and what a policy would say of it.
class Selection {
 public:
  Selection(std::size_t num_layers, std::size_t num_kv_heads, MaskScope scope)
      : shape_{.num_layers = num_layers,
               .num_q_heads = num_kv_heads,
               .num_kv_heads = num_kv_heads,
               .head_dim = 1},
        sequence("Test", shape_, scope) {}

  /// Texts of the lanes, as mask_of reads them.
  std::vector<std::string> run(const Scores& scores) {
    return run(scores, [](std::span<ScoredLane>) {});
  }
  template <class Normalise>
  std::vector<std::string> run(const Scores& scores, Normalise&& normalise,
                               bool for_projection = false) {
    std::vector<std::size_t> lengths;
    for (std::size_t layer = 0; layer < shape_.num_layers; ++layer) {
      for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
        lengths.push_back(sequence.seq_len(layer, head));
      }
    }
    views::ContiguousView view(shape_, {}, {}, lengths);
    view.set_valid(valid);
    num_scored = 0;
    selection.run(
        sequence, ViewRef(view), allocation, protection,
        [&](ScoredLane& lane, std::size_t) {
          std::copy(scores[lane.lane].begin(), scores[lane.lane].end(), lane.scores.begin());
          ++num_scored;
        },
        normalise, {}, for_projection);
    std::vector<std::string> lanes;
    for (std::size_t lane = 0; lane < sequence.num_lanes(); ++lane) {
      lanes.push_back(kvevict_test::text_of(selection.mask(),
                                            shape_.first_layer(sequence.scope(), lane),
                                            shape_.first_head(sequence.scope(), lane)));
    }
    return lanes;
  }
  [[nodiscard]] const PoolSelection::Report& report() const { return selection.report(); }
  [[nodiscard]] const CacheShape& shape() const { return shape_; }

 private:
  CacheShape shape_;

 public:
  Sequence sequence;
  Allocation allocation;
  Protection protection;
  std::vector<std::uint8_t> valid;
  PoolSelection selection;
  std::size_t num_scored = 0;
};

using Texts = std::vector<std::string>;

// O-23: the order of scores is not the order of slots.
TEST(PoolSelection, KeepsTheBestOfALane) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(4);
  s.allocation.budget = 3;
  EXPECT_EQ(s.run({{.1F, .9F, .5F, .7F}}), (Texts{"0111"}));
}

TEST(PoolSelection, ScoresNothingWhereNothingHasToGo) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(4);
  s.allocation.budget = 4;
  EXPECT_EQ(s.run({{kNaN, 0, 0, 0}}), (Texts{"1111"}));
  EXPECT_EQ(s.num_scored, 0U);
}

// What a projection reads of a lane without candidates does not come from the run before.
TEST(PoolSelection, ALaneThatIsProtectedAsAWholeScoresZeroForAProjection) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(4);
  s.allocation.budget = 2;
  const auto nothing = [](std::span<ScoredLane>) {};
  EXPECT_EQ(s.run({{5, 6, 7, 8}}, nothing, true), (Texts{"0011"}));
  EXPECT_EQ(s.selection.lanes()[0].scores[0], 5.0F);
  s.allocation.budget = 4;
  s.protection.recent_window = 4;
  EXPECT_EQ(s.run({{5, 6, 7, 8}}, nothing, true), (Texts{"1111"}));
  EXPECT_EQ(s.num_scored, 0U);
  for (const float score : s.selection.lanes()[0].scores)
    EXPECT_EQ(score, 0.0F);
}

// A threshold is no budget: what is below it goes though there is room. NaN is below all.
TEST(PoolSelection, WhatIsBelowTheThresholdGoes) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(5);
  s.allocation.budget = 5;
  s.allocation.threshold = .5F;
  EXPECT_EQ(s.run({{.5F, .4F, kNaN, 2, 1}}), (Texts{"10011"}));
  EXPECT_EQ(s.report().non_finite, 1U);
  EXPECT_EQ(s.num_scored, 1U);
  s.allocation.budget = 2;  // of what is left the best
  EXPECT_EQ(s.run({{.5F, .4F, kNaN, 2, 1}}), (Texts{"00011"}));
  EXPECT_EQ(s.num_scored, 1U);
  s.allocation.budget = 4;
  s.allocation.headroom = 1;  // nothing is over the budget once the threshold had its share
  EXPECT_EQ(s.run({{.5F, .4F, kNaN, 2, 1}}), (Texts{"10011"}));
}

// Rule R15: the sink counts; .4 and .3 of lane 0, nothing of lane 1, whose .6 .5 and sink are
// enough. Without any other the best of the NaN stay, lowest slot first.
TEST(PoolSelection, ALaneKeepsItsBestBelowTheThreshold) {
  Selection s(1, 2, MaskScope::kHead);
  s.sequence.append(5);
  s.allocation = {.budget = 5, .min_keep = 3, .threshold = .5F};
  s.protection = {.num_sink_tokens = 1};
  EXPECT_EQ(s.run({{0, .2F, .4F, .3F, kNaN}, {0, .1F, .6F, .4F, .5F}}), (Texts{"10110", "10101"}));
  EXPECT_EQ(s.run({{0, kNaN, kNaN, kNaN, kNaN}, {0, .7F, .6F, .8F, .5F}}),
            (Texts{"11100", "11111"}));
}

// .1 is protected; of the other lane nothing is left.
TEST(PoolSelection, AThresholdSparesWhatIsProtected) {
  Selection s(1, 2, MaskScope::kHead);
  s.sequence.append(3);
  s.allocation = {.budget = 3, .competition = Competition::kLayer, .threshold = .5F};
  s.protection = {.num_sink_tokens = 1};
  EXPECT_EQ(s.run({{.1F, .4F, .9F}, {.1F, .2F, .3F}}), (Texts{"101", "100"}));
}

TEST(PoolSelection, AnEmptyCacheGivesAnEmptyMask) {
  Selection s(2, 2, MaskScope::kHead);
  s.allocation.budget = Budget::compression_ratio(0.6);  // O-01 d
  EXPECT_EQ(s.run({}), (Texts{"", "", "", ""}));
  EXPECT_EQ(s.selection.mask().total_count(), 0U);
}

// O-02 a: a window of zero protects nothing, not everything.
TEST(PoolSelection, AWindowOfZeroProtectsNothing) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(10);
  s.allocation.budget = 4;
  s.protection = {.num_sink_tokens = 4, .recent_window = 0};
  EXPECT_EQ(s.run({std::vector<float>(10, 0.0F)}), (Texts{"1111000000"}));
}

// O-20, R14: the window holds the newest token.
TEST(PoolSelection, SinksAndRecentTokensStay) {
  Selection s(1, 1, MaskScope::kModel);
  s.protection = {.num_sink_tokens = 2, .recent_window = 4};
  s.allocation.budget = 6;
  s.sequence.append(6);
  EXPECT_EQ(s.run({std::vector<float>(6, 0.0F)}), (Texts{"111111"}));
  s.sequence.append(1);
  EXPECT_EQ(s.run({std::vector<float>(7, 0.0F)}), (Texts{"1101111"}));
  s.sequence.append(3);
  EXPECT_EQ(s.run({std::vector<float>(10, 0.0F)}), (Texts{"1100001111"}));
  EXPECT_EQ(s.report().protected_entries, 6U);
}

// R5: no score, however large, gets past a protected slot, and none is faked.
TEST(PoolSelection, ProtectionIsNotAScore) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(5);
  s.allocation.budget = 3;
  s.protection = {.num_sink_tokens = 1, .recent_window = 1};
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(s.run({{kNaN, kInf, kInf, kInf, -kInf}}), (Texts{"11001"}));
}

// O-29, R9: left padding. The sink is the first valid slot, n is 5, and padding never stays.
TEST(PoolSelection, PaddingIsNeitherKeptNorCounted) {
  const std::vector<float> scores = {.3F, .3F, .3F, .01F, .02F, .04F, .03F, 0};
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(8);
  s.allocation.budget = 4;
  s.protection = {.num_sink_tokens = 1, .recent_window = 1};
  s.valid = {0, 0, 0, 1, 1, 1, 1, 1};
  EXPECT_EQ(s.run({scores}), (Texts{"00010111"}));  // {3, 5, 6, 7}
  s.valid = {};
  EXPECT_EQ(s.run({scores}), (Texts{"11100001"}));  // without padding slot 0 is the sink
}

TEST(PoolSelection, PaddingGoesEvenWhereTheBudgetHasRoom) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(4);
  s.allocation.budget = 9;
  s.valid = {0, 1, 0, 1};
  EXPECT_EQ(s.run({{0, 0, 0, 0}}), (Texts{"0101"}));
}

TEST(PoolSelection, ARatioRefersToValidSlots) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(8);
  s.allocation.budget = Budget::keep_ratio(0.4);
  s.valid = {0, 0, 0, 1, 1, 1, 1, 1};
  EXPECT_EQ(s.run({{9, 9, 9, 1, 2, 3, 4, 5}}), (Texts{"00000011"}));
}

// R9 over time: of five tokens behind three slots of padding half stay, and the padding goes; of
// the two that are left and two new ones, half of the seven tokens that ever came.
TEST(PoolSelection, ARatioForgetsPaddingThatWentBefore) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(8);
  s.allocation.budget = Budget::keep_ratio(0.5);
  s.valid = {0, 0, 0, 1, 1, 1, 1, 1};
  EXPECT_EQ(s.run({{9, 9, 9, 1, 2, 3, 4, 5}}), (Texts{"00000011"}));
  const KeepMask mask = s.selection.mask();
  EXPECT_EQ(s.selection.evicted_padding(0, mask.words(0)), 3U);
  EXPECT_EQ(s.selection.evicted_padding(0, mask_of("01000011").words(0)), 2U);
  s.sequence.note_evicted_padding(0, s.selection.evicted_padding(0, mask.words(0)));
  s.sequence.apply(mask);
  s.sequence.append(2);
  s.valid.clear();
  EXPECT_EQ(s.sequence.num_evicted(0), 3U);
  EXPECT_EQ(s.run({{4, 5, 6, 7}}), (Texts{"0111"}));
  s.sequence.truncate(0);
  EXPECT_EQ(s.sequence.num_evicted(0), 0U);
}

// Half of ten tokens stay; of the five that are left and the two that come, half of twelve.
TEST(PoolSelection, ARatioCutsNoDeeperTheSecondTime) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(10);
  s.allocation.budget = Budget::keep_ratio(0.5);
  EXPECT_EQ(s.run({{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}), (Texts{"0000011111"}));
  s.sequence.apply(s.selection.mask());
  EXPECT_FALSE(detail::exceeds_budget(s.sequence, s.allocation, s.protection));
  EXPECT_EQ(s.run({{0, 1, 2, 3, 4}}), (Texts{"11111"}));
  s.sequence.append(2);
  EXPECT_TRUE(detail::exceeds_budget(s.sequence, s.allocation, s.protection));
  EXPECT_EQ(s.run({{0, 1, 2, 3, 4, 5, 6}}), (Texts{"0111111"}));
}

// R4: NaN goes first, and is counted, as infinities are.
TEST(PoolSelection, CountsScoresThatAreNotFinite) {
  Selection s(1, 2, MaskScope::kHead);
  s.sequence.append(4);
  s.allocation.budget = 3;
  EXPECT_EQ(s.run({{kNaN, 1, 1, 1}, {0, std::numeric_limits<float>::infinity(), kNaN, 0}}),
            (Texts{"0111", "1101"}));
  EXPECT_EQ(s.report().non_finite, 3U);
}

TEST(PoolSelection, PinnedSpansAndPromptsStayOverTheBudget) {
  Selection s(1, 1, MaskScope::kModel);
  const PositionSpan pinned[] = {{1, 3}};
  s.sequence.begin(5, pinned);
  s.sequence.append(5);
  s.sequence.append(4);
  s.allocation.budget = 5;
  EXPECT_EQ(s.run({{0, 0, 0, 0, 0, 1, 2, 3, 4}}), (Texts{"011000111"}));
  EXPECT_FALSE(s.report().budget_not_reached);
  // The prompt alone fills the budget; the windows get no room and decoded tokens go.
  s.protection = {.recent_window = 2, .prompt = true};
  EXPECT_EQ(s.run({{0, 0, 0, 0, 0, 1, 2, 3, 4}}), (Texts{"111110000"}));
  EXPECT_FALSE(s.report().budget_not_reached);
  s.allocation.budget = 4;
  EXPECT_EQ(s.run({{0, 0, 0, 0, 0, 1, 2, 3, 4}}), (Texts{"111110000"}));
  EXPECT_TRUE(s.report().budget_not_reached);
}

// D = K - P = 2 entries for a recent window of three: its newest two.
TEST(PoolSelection, WindowsTakeWhatTheBudgetHasRoomFor) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.begin(3, {});
  s.sequence.append(3);
  s.sequence.append(4);
  s.allocation.budget = 5;
  s.protection = {.num_sink_tokens = 5, .recent_window = 3, .prompt = true};
  EXPECT_EQ(s.run({std::vector<float>(7, 0.0F)}), (Texts{"1110011"}));
}

/// A view whose layers see different slots.
struct WindowedLayers {
  CacheShape view_shape;
  std::array<std::vector<std::uint8_t>, 2> valid;

  [[nodiscard]] const CacheShape& shape() const { return view_shape; }
  [[nodiscard]] Lane lane(std::size_t layer, std::size_t /*kv_head*/) const {
    Lane lane;
    lane.seq_len = valid[layer].size();
    lane.valid = valid[layer];
    return lane;
  }
};

// One set for two layers, of which the first sees a window only: a slot that one layer needs has to
// stay a candidate, and the sinks are the first slots that anybody sees.
TEST(PoolSelection, ASharedSetHasTheSlotsThatAnyLayerHas) {
  const CacheShape shape{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  for (const std::size_t windowed : {0U, 1U}) {
    Sequence sequence("Test", shape, MaskScope::kModel);
    sequence.append(6);
    WindowedLayers view{shape, {{{0, 1, 1, 1, 1, 1}, {0, 1, 1, 1, 1, 1}}}};
    view.valid[windowed] = {0, 0, 0, 1, 1, 1};
    PoolSelection selection;
    selection.run(
        sequence, ViewRef(view), {.budget = 3}, {.num_sink_tokens = 1, .recent_window = 2},
        [](ScoredLane&, std::size_t) {}, [](std::span<ScoredLane>) {});
    EXPECT_EQ(kvevict_test::text_of(selection.mask()), "010011") << windowed;
  }
}

TEST(PoolSelection, PinsAreFoundByPositionAfterAnEviction) {
  Selection s(1, 1, MaskScope::kModel);
  const PositionSpan pinned[] = {{4, 6}, {5, 7}};
  s.sequence.begin(8, pinned);
  s.sequence.append(8);
  s.sequence.apply(mask_of("10101111"));  // positions 0 2 4 5 6 7
  s.allocation.budget = 4;
  EXPECT_EQ(s.run({{9, 8, 0, 0, 0, 7}}), (Texts{"101110"}));
}

// What is decoded comes on top of the budget; the prompt is cut as if it were not there.
TEST(PoolSelection, KeepsTheAnswerOnTopOfTheBudget) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.begin(6, {});
  s.sequence.append(6);
  s.allocation.budget = Budget::keep_ratio(0.5);
  s.protection = {.recent_window = 1, .after_prompt = true};
  EXPECT_TRUE(detail::exceeds_budget(s.sequence, s.allocation, s.protection));
  s.sequence.append(3);
  EXPECT_EQ(s.run({{5, 4, 3, 2, 1, 0, 9, 9, 9}}), (Texts{"110001111"}));
}

TEST(PoolSelection, ProtectedEntriesMayComeOnTop) {
  Selection s(1, 1, MaskScope::kModel);
  s.sequence.append(6);
  s.allocation = {.budget = 2, .protected_extra = true};
  s.protection = {.num_sink_tokens = 1, .recent_window = 2};
  EXPECT_EQ(s.run({{0, 1, 3, 2, 0, 0}}), (Texts{"101111"}));
}

// O-06, R15: four entries for two heads; without a floor the second head gets nothing.
TEST(PoolSelection, AFloorKeepsEveryHeadAlive) {
  const Scores p = {{.4F, .3F, .2F, .09F}, {.004F, .003F, .002F, .001F}};
  Selection s(1, 2, MaskScope::kHead);
  s.sequence.append(4);
  s.allocation = {.budget = Budget::total(4), .competition = Competition::kModel, .min_keep = 1};
  EXPECT_EQ(s.run(p), (Texts{"1110", "1000"}));
  s.allocation.min_keep = 0;
  EXPECT_EQ(s.run(p), (Texts{"1111", "0000"}));
  const Allocation starved{
      .budget = Budget::total(1), .competition = Competition::kModel, .min_keep = 1};
  EXPECT_TRUE(refuses([&] { detail::check_allocation(starved, {}, s.shape(), "Test"); },
                      {"Test", "budget", "1", "min_keep"}));
}

TEST(PoolSelection, ProtectedEntriesCountTowardsTheFloor) {
  Selection s(1, 2, MaskScope::kHead);
  s.sequence.append(4);
  s.allocation = {.budget = Budget::total(4), .competition = Competition::kModel, .min_keep = 2};
  s.protection.recent_window = 1;
  EXPECT_EQ(s.run({{9, 8, 7, 0}, {1, 2, 3, 0}}), (Texts{"1001", "0011"}));
}

// A head that has less than the floor gives what it has; one that has nothing is asked for nothing.
TEST(PoolSelection, AFloorAsksForNoMoreThanThereIs) {
  Selection s(1, 3, MaskScope::kHead);
  s.sequence.append(4);
  s.sequence.apply(mask_of(MaskScope::kHead, 1, 3, {"1111", "0100", "0000"}));
  s.allocation = {.budget = Budget::total(6), .competition = Competition::kModel, .min_keep = 2};
  s.allocation.budget = Budget::total(4);
  EXPECT_EQ(s.run({{1, 2, 3, 4}, {0}, {}}), (Texts{"0111", "1", ""}));
  EXPECT_FALSE(s.report().budget_not_reached);
  s.allocation.budget = Budget::total(2);  // two for the first head, none left for the second
  EXPECT_EQ(s.run({{1, 2, 3, 4}, {0}, {}}), (Texts{"0011", "0", ""}));
  EXPECT_TRUE(s.report().budget_not_reached);
}

// R3: in a choice over all lanes equal scores go by layer, then KV head, then slot.
TEST(PoolSelection, TiesOverLanesGoInTheirOrder) {
  Selection s(2, 2, MaskScope::kHead);
  s.sequence.append(3);
  const Scores ones(4, std::vector<float>(3, 1.0F));
  s.allocation = {.budget = Budget::total(5), .competition = Competition::kModel, .min_keep = 0};
  EXPECT_EQ(s.run(ones), (Texts{"111", "110", "000", "000"}));
  s.allocation.competition = Competition::kLayer;  // 5 = 4 lanes of 1 and one more for layer 0
  EXPECT_EQ(s.run(ones), (Texts{"111", "000", "110", "000"}));
  s.allocation.competition = Competition::kLane;
  EXPECT_EQ(s.run(ones), (Texts{"110", "100", "100", "100"}));
}

// A pool that is uneven but within its total is not over its budget.
TEST(PoolSelection, ExceedingTheBudgetIsAMatterOfThePool) {
  Selection s(1, 2, MaskScope::kHead);
  s.sequence.append(4);
  s.allocation = {.budget = 2, .competition = Competition::kLayer};
  EXPECT_TRUE(detail::exceeds_budget(s.sequence, s.allocation, s.protection));
  s.sequence.apply(mask_of(MaskScope::kHead, 1, 2, {"1110", "0001"}));
  EXPECT_FALSE(detail::exceeds_budget(s.sequence, s.allocation, s.protection));
  s.allocation.competition = Competition::kLane;
  EXPECT_TRUE(detail::exceeds_budget(s.sequence, s.allocation, s.protection));
  s.allocation.budget = Budget::total(4);
  EXPECT_TRUE(detail::exceeds_budget(s.sequence, s.allocation, s.protection));
  s.allocation.budget = Budget::total(5);  // the entry that is left goes to the first lane
  EXPECT_FALSE(detail::exceeds_budget(s.sequence, s.allocation, s.protection));
}

TEST(PoolSelection, AnUnlimitedBudgetDoesNotOverflow) {
  Selection s(1, 2, MaskScope::kHead);
  s.sequence.append(4);
  s.allocation = {.budget = std::numeric_limits<std::size_t>::max(),
                  .competition = Competition::kModel};
  EXPECT_FALSE(detail::exceeds_budget(s.sequence, s.allocation, s.protection));
  EXPECT_EQ(s.run({{0, 0, 0, 0}, {0, 0, 0, 0}}), (Texts{"1111", "1111"}));
}

TEST(PoolSelection, NormaliseSeesAPoolAndMayTakeCandidatesAway) {
  Selection s(2, 2, MaskScope::kHead);
  s.sequence.append(3);
  s.allocation = {.budget = 2, .competition = Competition::kLayer};
  std::vector<std::size_t> seen;
  const Texts lanes = s.run(Scores(4, {3, 2, 1}), [&](std::span<ScoredLane> pool) {
    EXPECT_EQ(pool.size(), 2U);
    for (ScoredLane& lane : pool) {
      seen.push_back(lane.lane);
      for (float& score : lane.scores)
        score = -score;
      lane.candidates[0] &= ~std::uint64_t{1};
    }
  });
  EXPECT_EQ(seen, (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(lanes, (Texts{"011", "011", "011", "011"}));
}

TEST(PoolSelection, CountsProtectedEntriesOfSharedLanesForEveryHead) {
  Selection s(2, 3, MaskScope::kLayer);
  s.sequence.append(4);
  s.allocation.budget = 3;
  s.protection.recent_window = 2;
  EXPECT_EQ(s.run(Scores(2, {0, 1, 0, 0})), (Texts{"0111", "0111"}));
  EXPECT_EQ(s.report().protected_entries, 12U);
}

// R7: what is known when a policy is made is refused then.
TEST(CheckAllocation, RefusesABudgetBelowItsWindows) {
  const CacheShape shape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 1};
  const Protection protection{.num_sink_tokens = 2, .recent_window = 6};
  const auto check = [&](const Allocation& allocation) {
    detail::check_allocation(allocation, protection, shape, "Test");
  };
  EXPECT_NO_THROW(check({.budget = 8}));
  EXPECT_TRUE(refuses([&] { check({.budget = 7}); }, {"Test", "budget", "7"}));
  EXPECT_NO_THROW(check({.budget = Budget::total(16)}));
  EXPECT_TRUE(refuses([&] { check({.budget = Budget::total(15)}); }, {"Test", "budget", "15"}));
  EXPECT_NO_THROW(check({.budget = 0, .protected_extra = true}));
  EXPECT_NO_THROW(check({.budget = Budget::keep_ratio(0.01)}));  // depends on the prompt
}

}  // namespace
}  // namespace kvevict
