#include "kvevict/selection/projection.hpp"

#include "kvevict/core/plan.hpp"
#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
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
           const std::vector<Slots>& protected_slots = {}, MaskScope scope = MaskScope::kHead)
      : scores(lane_scores) {
    shape.num_layers = num_layers;
    shape.num_q_heads = shape.num_kv_heads = num_kv_heads;
    mask.reset(scope, num_layers, num_kv_heads);
    locked.reset(scope, num_layers, num_kv_heads);
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

// Case O-35 in its own numbers: blocks of 32, 64 of 100 tokens, the last block of 4. Best first:
// the last block (4), block 1 (32); of the 28 that are left no block of 32 fits. A constant of 16
// would let four blocks in.
TEST(Projection, ABudgetIsInTokensWhateverTheBlock) {
  std::vector<float> scores(100);
  for (std::size_t s = 0; s < 100; ++s)
    scores[s] = std::array{1.0F, 3.0F, 2.0F, 4.0F}[s / 32];
  Slots best = kvevict_test::range(32, 92);
  for (const std::size_t s : {96U, 97U, 98U, 99U})
    best.push_back(s);
  const Decision lane(1, 1, {scores}, {best});
  EXPECT_EQ(lane.mask.total_count(), 64U);
  Slots expected = kvevict_test::range(32, 64);
  for (const std::size_t s : {96U, 97U, 98U, 99U})
    expected.push_back(s);
  EXPECT_EQ(shared(lane, {.page_size = 32}), expected);
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

// Nobody keeps the last page, of slot 4 alone, until head 1 has to be filled up: its best page
// would make it shorter than head 0, which has two whole ones.
TEST(Projection, ALastPageThatIsNotFullIsNoFilling) {
  Decision heads(1, 2, {{5.0F, 5.0F, 4.0F, 4.0F, 0.0F}, {5.0F, 5.0F, 1.0F, 1.0F, 4.0F}},
                 {{0, 1, 2, 3}, {0, 1}});
  Projection projection({.page_size = 2, .equal_counts = EqualCounts::kLayer}, heads.shape);
  const KeepMask& mask = heads.run(projection);
  EXPECT_EQ(kept_slots(mask, 0, 0), (Slots{0, 1, 2, 3}));
  EXPECT_EQ(kept_slots(mask, 0, 1), (Slots{0, 1, 2, 3}));
}

// Slot 0 is padding, so page 0 has one token: head 1 takes it too, and head 0 gets the whole page.
TEST(Projection, APageWithPaddingIsSharedToo) {
  Decision heads(1, 2, {{0.0F, 5.0F, 1.0F, 1.0F}, {0.0F, 0.0F, 4.0F, 4.0F}}, {{1}, {2, 3}});
  for (std::vector<std::uint64_t>& lane : heads.candidates)
    lane[0] &= ~std::uint64_t{1};
  Projection projection({.page_size = 2, .equal_counts = EqualCounts::kLayer}, heads.shape);
  const KeepMask& mask = heads.run(projection);
  EXPECT_EQ(kept_slots(mask, 0, 0), (Slots{1, 2, 3}));
  EXPECT_EQ(kept_slots(mask, 0, 1), (Slots{1, 2, 3}));
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

// Lengths around the words that bits lie in.
constexpr std::size_t kOddLengths[] = {0, 1, 63, 64, 65, 127, 128, 1000};

/// Random numbers, and decisions of them: every lane keeps as many as it likes, the best or not.
/// Scores are few, so that many are equal, some NaN. Padding is no candidate of any lane.
struct RandomDecisions {
  std::mt19937 random;

  std::size_t draw(std::size_t n) { return static_cast<std::size_t>(random() % n); }
  Decision decision(MaskScope scope, std::size_t num_layers, std::size_t num_heads,
                    std::size_t len) {
    const std::size_t padding = draw(3) == 0 ? draw(len + 1) : 0;
    Slots locked;
    if (draw(2) == 0 && padding < len)
      locked = padding + 1 < len ? Slots{padding, len - 1} : Slots{padding};
    const std::size_t num_lanes = scope == MaskScope::kHead    ? num_layers * num_heads
                                  : scope == MaskScope::kLayer ? num_layers
                                                               : 1;
    std::vector<std::vector<float>> scores;
    std::vector<Slots> kept;
    for (std::size_t l = 0; l < num_lanes; ++l) {
      const std::size_t one_of = 1 + draw(9);
      scores.emplace_back();
      kept.push_back(locked);
      for (std::size_t s = 0; s < len; ++s) {
        const float score = static_cast<float>(draw(9)) - 4;
        scores.back().push_back(draw(40) == 0 ? kNan : score);
        if (s >= padding && draw(one_of) == 0)
          kept.back().push_back(s);
      }
    }
    Decision decision(num_layers, num_heads, scores, kept, std::vector<Slots>(num_lanes, locked),
                      scope);
    for (std::vector<std::uint64_t>& bits : decision.candidates) {
      for (std::size_t s = 0; s < padding; ++s)
        bits[s / 64] &= ~(std::uint64_t{1} << (s % 64));
    }
    return decision;
  }
};

/// What the text of Projection says of one set that `lanes` of a decision share, slot by slot.
struct Definition {
  std::vector<double> scores;  // reduced
  std::vector<bool> token;     // may stay
  std::vector<bool> forced;
  Slots kept;

  /// `first` to `last`: the lanes; `has_say`: of which the scores count.
  Definition(const Decision& decision, std::size_t first, std::size_t last,
             const std::vector<bool>& has_say, const Granularity& granularity) {
    const std::size_t len = decision.scores[first].size();
    std::size_t budget = 0;
    for (std::size_t l = first; l < last; ++l)
      budget += decision.mask.lane_count(l);
    budget /= last - first;
    for (std::size_t s = 0; s < len; ++s) {
      const auto any = [&](auto&& of_lane) {
        for (std::size_t l = first; l < last; ++l) {
          if (of_lane(l))
            return true;
        }
        return false;
      };
      const auto in = [&](std::span<const std::uint64_t> bits) {
        return (bits[s / 64] >> (s % 64) & 1U) != 0;
      };
      forced.push_back(any([&](std::size_t l) { return in(decision.locked.words(l)); }));
      token.push_back(forced[s] || any([&](std::size_t l) {
                        return in(decision.candidates[l]) || in(decision.mask.words(l));
                      }));
      std::vector<double> said;
      for (std::size_t l = first; l < last; ++l) {
        if (has_say[l])
          said.push_back(last - first > 1 && granularity.lane_reduce == ScoreReduce::kVotes
                             ? (in(decision.mask.words(l)) ? 1.0 : 0.0)
                             : static_cast<double>(decision.scores[l][s]));
      }
      scores.push_back(last - first == 1 ? said[0] : reduce(granularity.lane_reduce, said));
    }
    if (last - first == 1) {
      kept = kept_lane(decision.mask, first);
    } else {
      keep_best(budget);
    }
    if (granularity.page_size > 1)
      keep_pages(granularity);
  }
  static Slots kept_lane(const KeepMask& mask, std::size_t lane) {
    Slots slots;
    for (std::size_t s = 0; s < mask.lane_len(lane); ++s) {
      if ((mask.words(lane)[s / 64] >> (s % 64) & 1U) != 0)
        slots.push_back(s);
    }
    return slots;
  }
  // NaN has no part in a maximum, and spoils the other two.
  static double reduce(ScoreReduce how, const std::vector<double>& values) {
    double sum = 0;
    double largest = -std::numeric_limits<double>::infinity();
    for (const double x : values) {
      sum += x;
      largest = x > largest ? x : largest;
    }
    if (how == ScoreReduce::kMax)
      return largest;
    return how == ScoreReduce::kMean && !values.empty() ? sum / static_cast<double>(values.size())
                                                        : sum;
  }
  static bool better(double a, double b) {
    return std::isnan(b) ? !std::isnan(a) : !std::isnan(a) && a > b;
  }
  void keep_best(std::size_t budget) {
    Slots others;
    for (std::size_t s = 0; s < token.size(); ++s) {
      if (forced[s]) {
        kept.push_back(s);
      } else if (token[s]) {
        others.push_back(s);
      }
    }
    std::stable_sort(others.begin(), others.end(),
                     [&](std::size_t a, std::size_t b) { return better(scores[a], scores[b]); });
    for (std::size_t i = 0; i < others.size() && kept.size() < budget; ++i)
      kept.push_back(others[i]);
    std::sort(kept.begin(), kept.end());
  }
  void keep_pages(const Granularity& granularity) {
    struct Page {
      Slots slots;
      bool forced;
      double score;
    };
    std::vector<Page> pages;
    for (std::size_t first = 0; first < token.size(); first += granularity.page_size) {
      Page page{{}, false, 0};
      std::vector<double> values;
      for (std::size_t s = first; s < std::min(token.size(), first + granularity.page_size); ++s) {
        if (!token[s])
          continue;
        page.slots.push_back(s);
        page.forced = page.forced || forced[s];
        if (!forced[s]) {
          values.push_back(granularity.page_reduce == ScoreReduce::kVotes
                               ? (std::binary_search(kept.begin(), kept.end(), s) ? 1.0 : 0.0)
                               : scores[s]);
        }
      }
      page.score = reduce(granularity.page_reduce, values);
      pages.push_back(page);
    }
    std::stable_sort(pages.begin(), pages.end(), [&](const Page& a, const Page& b) {
      return a.forced != b.forced ? a.forced : better(a.score, b.score);
    });
    std::size_t room = kept.size();
    kept.clear();
    for (const Page& page : pages) {
      if (!page.forced && page.slots.size() > room)
        continue;
      kept.insert(kept.end(), page.slots.begin(), page.slots.end());
      room -= std::min(room, page.slots.size());
    }
    std::sort(kept.begin(), kept.end());
  }
};

// Every scope to every coarser one, with every reducer, of every layer or of some, tokens and
// pages, over lengths around those of words.
TEST(Projection, IsItsDefinitionOverRandomDecisions) {
  RandomDecisions random{std::mt19937(11)};
  constexpr std::array kScopes = {MaskScope::kHead, MaskScope::kLayer, MaskScope::kModel};
  for (const std::size_t len : kOddLengths) {
    for (int round = 0; round < 120; ++round) {
      const std::size_t num_layers = 1 + random.draw(4);
      const std::size_t num_heads = 1 + random.draw(3);
      const std::size_t from = random.draw(3);
      const std::size_t to = random.draw(3);
      Decision decision = random.decision(kScopes[from], num_layers, num_heads, len);
      Granularity granularity{.scope = kScopes[to],
                              .lane_reduce = static_cast<ScoreReduce>(random.draw(4)),
                              .page_size = random.draw(2) == 0 ? 1 : 1 + random.draw(70),
                              .page_reduce = static_cast<ScoreReduce>(random.draw(4))};
      for (std::size_t layer = 0; layer < num_layers; ++layer) {
        if (random.draw(3) == 0)
          granularity.layers.push_back(layer);
      }
      Projection projection(granularity, decision.shape);
      const KeepMask& mask = decision.run(projection);
      ASSERT_EQ(mask.scope(), kScopes[std::max(from, to)]);
      const std::size_t num_lanes = decision.scores.size();
      const std::size_t sources = num_lanes / mask.num_lanes();
      for (std::size_t lane = 0; lane < mask.num_lanes(); ++lane) {
        std::vector<bool> has_say(num_lanes, granularity.layers.empty());
        bool somebody = granularity.layers.empty();
        for (std::size_t l = lane * sources; l < (lane + 1) * sources; ++l) {
          const std::size_t layer = l * num_layers / num_lanes;
          if (std::count(granularity.layers.begin(), granularity.layers.end(), layer) > 0)
            has_say[l] = somebody = true;
        }
        if (!somebody || sources == 1)
          has_say.assign(num_lanes, true);
        const Definition expected(decision, lane * sources, (lane + 1) * sources, has_say,
                                  granularity);
        ASSERT_EQ(Definition::kept_lane(mask, lane), expected.kept)
            << "len " << len << ", scopes " << from << ' ' << to << ", page "
            << granularity.page_size << ", reduce " << static_cast<int>(granularity.lane_reduce)
            << ' ' << static_cast<int>(granularity.page_reduce);
      }
    }
  }
}

// Lanes are filled up to the longest of their group, with the best of what they would have lost,
// and no further; a lane that is too short keeps all it has.
TEST(Projection, FillsUpWithTheBestOfTheEvictedOverRandomDecisions) {
  RandomDecisions random{std::mt19937(12)};
  for (const std::size_t len : kOddLengths) {
    for (int round = 0; round < 60; ++round) {
      const std::size_t num_layers = 1 + random.draw(3);
      const std::size_t num_heads = 1 + random.draw(3);
      Decision decision = random.decision(MaskScope::kHead, num_layers, num_heads, len);
      const EqualCounts equal = random.draw(2) == 0 ? EqualCounts::kLayer : EqualCounts::kModel;
      Projection projection({.equal_counts = equal}, decision.shape);
      const KeepMask& mask = decision.run(projection);
      const std::size_t group = equal == EqualCounts::kModel ? num_layers * num_heads : num_heads;
      for (std::size_t lane = 0; lane < num_layers * num_heads; ++lane) {
        std::size_t longest = 0;
        for (std::size_t l = lane / group * group; l < (lane / group + 1) * group; ++l)
          longest = std::max(longest, decision.mask.lane_count(l));
        ASSERT_EQ(mask.lane_count(lane), longest);
        const Slots before = Definition::kept_lane(decision.mask, lane);
        const Slots after = Definition::kept_lane(mask, lane);
        EXPECT_TRUE(std::includes(after.begin(), after.end(), before.begin(), before.end()));
        const std::vector<float>& scores = decision.scores[lane];
        for (const std::size_t in : after) {
          if (std::binary_search(before.begin(), before.end(), in))
            continue;
          for (std::size_t out = 0; out < len; ++out) {
            const bool may_stay = (decision.candidates[lane][out / 64] >> (out % 64) & 1U) != 0;
            if (!may_stay || std::binary_search(after.begin(), after.end(), out))
              continue;
            const double a = static_cast<double>(scores[in]);
            const double b = static_cast<double>(scores[out]);
            EXPECT_FALSE(Definition::better(b, a)) << in << ' ' << out;
            EXPECT_TRUE(in < out || Definition::better(a, b)) << in << ' ' << out;
          }
        }
      }
    }
  }
}

// The same of pages: lanes hold equally many, those that are not full all or none of them.
TEST(Projection, FillsUpWithTheBestPagesOverRandomDecisions) {
  RandomDecisions random{std::mt19937(13)};
  for (const std::size_t len : kOddLengths) {
    for (int round = 0; round < 60; ++round) {
      const std::size_t num_heads = 2 + random.draw(2);
      Decision decision = random.decision(MaskScope::kHead, 1, num_heads, len);
      const std::size_t size = 2 + random.draw(20);
      const Granularity alone{.page_size = size,
                              .page_reduce = static_cast<ScoreReduce>(random.draw(4))};
      Granularity together = alone;
      together.equal_counts = EqualCounts::kLayer;
      Projection first(alone, decision.shape);
      Projection second(together, decision.shape);
      const KeepMask before = decision.run(first);
      const KeepMask& after = decision.run(second);
      for (std::size_t lane = 0; lane < num_heads; ++lane) {
        EXPECT_EQ(after.lane_count(lane), after.lane_count(0));
        const std::vector<bool> say(num_heads, true);
        const Definition definition(decision, lane, lane + 1, say, alone);
        // Pages by what the policy said of their slots.
        std::vector<double> scores;
        std::vector<int> was;
        std::vector<int> is;
        std::vector<bool> full;  // the others go by what other lanes keep
        for (std::size_t begin = 0; begin < len; begin += size) {
          std::vector<double> values;
          was.push_back(0);
          is.push_back(0);
          std::size_t num_tokens = 0;
          for (std::size_t s = begin; s < std::min(len, begin + size); ++s) {
            const auto bit = [&](std::span<const std::uint64_t> bits) {
              return (bits[s / 64] >> (s % 64) & 1U) != 0;
            };
            was.back() |= bit(before.words(lane)) ? 1 : 0;
            is.back() |= bit(after.words(lane)) ? 1 : 0;
            if (bit(decision.candidates[lane]))
              values.push_back(alone.page_reduce == ScoreReduce::kVotes
                                   ? (bit(decision.mask.words(lane)) ? 1.0 : 0.0)
                                   : definition.scores[s]);
            num_tokens += definition.token[s] ? 1 : 0;
            // A page stays or goes with all its tokens.
            EXPECT_EQ(bit(after.words(lane)), is.back() == 1 && definition.token[s]);
          }
          full.push_back(num_tokens == size);
          scores.push_back(values.empty() ? -1e300 : Definition::reduce(alone.page_reduce, values));
        }
        for (std::size_t in = 0; in < full.size(); ++in) {
          EXPECT_LE(was[in], is[in]);
          if (was[in] == 1 || is[in] == 0 || !full[in])
            continue;
          for (std::size_t out = 0; out < full.size(); ++out) {
            if (full[out] && is[out] == 0 && scores[out] > -1e300) {
              EXPECT_FALSE(Definition::better(scores[out], scores[in])) << in << ' ' << out;
              EXPECT_TRUE(in < out || Definition::better(scores[in], scores[out]));
            }
          }
        }
      }
    }
  }
}

// Votes are the policy's, also of pages that come back: head 0 keeps pages 0, 1 and 2 whole, head 1
// slots 0, 1, 4 and 8, of which two pages stay, the second by its lower number. The third is then
// the one that has a vote too, not the one before it that has none.
TEST(Projection, PagesComeBackByTheVotesTheyHad) {
  Decision heads(1, 2, {std::vector<float>(10), std::vector<float>(10)},
                 {{0, 1, 2, 3, 4, 5}, {0, 1, 4, 8}});
  Projection projection(
      {.page_size = 2, .page_reduce = ScoreReduce::kVotes, .equal_counts = EqualCounts::kLayer},
      heads.shape);
  EXPECT_EQ(kept_slots(heads.run(projection), 0, 1), (Slots{0, 1, 4, 5, 8, 9}));
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

// All forms of a mask against its bits, read one by one: with random bits, with long runs, and with
// none or all of them kept.
TEST(Plan, AllFormsAgreeWithTheBits) {
  std::mt19937 random(9);
  for (const std::size_t len : kOddLengths) {
    for (std::size_t round = 0; round < 24; ++round) {
      std::vector<bool> bits;
      while (bits.size() < len) {
        const std::size_t run = round < 12 ? 1 : 1 + random() % 90;
        bits.insert(bits.end(), run, round < 2 ? round == 1 : random() % 2 == 0);
      }
      bits.resize(len);
      Slots kept;
      std::vector<std::int32_t> ordinals;  // of kept slots; -1 where evicted
      for (std::size_t s = 0; s < len; ++s) {
        ordinals.push_back(bits[s] ? static_cast<std::int32_t>(kept.size()) : -1);
        if (bits[s])
          kept.push_back(s);
      }
      const Decision lane(1, 1, {std::vector<float>(len)}, {kept});
      EXPECT_EQ(lane.mask.count(0, 0), kept.size());
      std::vector<std::uint32_t> slots(kept.size());
      EXPECT_EQ(lane.mask.kept_slots(0, 0, slots), kept.size());
      EXPECT_EQ(Slots(slots.begin(), slots.end()), kept);
      std::vector<std::int32_t> map(len, 99);
      lane.mask.slot_map(0, 0, map);
      EXPECT_EQ(map, ordinals);
      // Runs are as long as they can be and cover every slot once.
      const auto runs_of = [&](bool wanted) {
        std::vector<bool> read(len, !wanted);
        std::size_t end = len + 1;
        const auto visit = [&](std::size_t first, std::size_t last) {
          EXPECT_LT(first, last);
          EXPECT_LE(last, len);
          EXPECT_TRUE(end > len || first > end) << "ascending, not touching the one before";
          end = last;
          for (std::size_t s = first; s < last; ++s)
            read[s] = wanted;
        };
        wanted ? lane.mask.for_each_kept_run(0, 0, visit)
               : lane.mask.for_each_evicted_run(0, 0, visit);
        return read;
      };
      EXPECT_EQ(runs_of(true), bits);
      EXPECT_EQ(runs_of(false), bits);
      // A slot that no move names lies right already.
      std::vector<std::int32_t> moved(len, -1);
      for (std::size_t s = 0; s < len && bits[s]; ++s)
        moved[s] = static_cast<std::int32_t>(s);
      for_each_move(lane.mask, 0, 0, [&](std::size_t from, std::size_t to, std::size_t count) {
        EXPECT_LE(to, from);
        for (std::size_t i = 0; i < count; ++i)
          moved[from + i] = static_cast<std::int32_t>(to + i);
      });
      EXPECT_EQ(moved, ordinals);
      for (const std::size_t page_size : {1U, 2U, 3U, 16U, 63U, 64U, 65U, 256U, 2000U}) {
        std::vector<std::uint32_t> held;
        std::vector<std::uint32_t> free;
        for (std::size_t first = 0; first < len; first += page_size) {
          const auto begin = bits.begin() + static_cast<std::ptrdiff_t>(first);
          const bool any =
              std::find(
                  begin,
                  bits.begin() + static_cast<std::ptrdiff_t>(std::min(len, first + page_size)),
                  true) !=
              bits.begin() + static_cast<std::ptrdiff_t>(std::min(len, first + page_size));
          (any ? held : free).push_back(static_cast<std::uint32_t>(first / page_size));
        }
        std::vector<std::uint32_t> pages((len + page_size - 1) / page_size);
        pages.resize(kept_pages(lane.mask, 0, 0, page_size, pages));
        EXPECT_EQ(pages, held) << len << ' ' << page_size;
        pages.clear();
        for_each_free_page(lane.mask, 0, 0, page_size, [&](std::size_t page) {
          pages.push_back(static_cast<std::uint32_t>(page));
        });
        EXPECT_EQ(pages, free) << len << ' ' << page_size;
      }
    }
  }
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
