// The grammar: stages run in the order in which they are written.
#include "kvevict/policies/composed.hpp"

#include "kvevict/allocation/budget_tables.hpp"
#include "kvevict/scoring/cache_signals.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/temporal/attention_inertia.hpp"
#include "support/errors.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 1};
constexpr Pooling kMax3{.kind = PoolKind::kMax, .kernel_size = 3};

/// Scores that are written down: of two query heads, (1, 0, 0) and (0, 0, 1).
struct Written {
  static constexpr Inputs kRequiredInputs = Inputs::kNothing;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  [[nodiscard]] std::tuple<> state() const { return {}; }
  void score(const ScoreInput& /*input*/, LaneScores& scores) const {
    scores.start(0, 3, 2);
    for (std::size_t head = 0; head < 2; ++head) {
      std::fill(scores.array(head).begin(), scores.array(head).end(), 0.0F);
      scores.array(head)[2 * head] = 1.0F;
    }
  }
};

struct PoolFirst : CutsByCacheScore {
  static constexpr std::string_view kName = "PoolFirst";
  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Written() | Pool{kMax3} | GroupReduction{GroupReduce::kMean};
  }
};
struct ReduceFirst : CutsByCacheScore {
  static constexpr std::string_view kName = "ReduceFirst";
  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Written() | GroupReduction{GroupReduce::kMean} | Pool{kMax3};
  }
};

template <class R>
std::vector<float> scores() {
  Policy<Composed<R>> policy({.budget = 2}, kShape);
  policy.append(3);
  kvevict_test::WindowCache cache(kShape, 3);
  cache.append(3);
  return kvevict_test::scores_of(policy, cache);
}

TEST(Composed, TheOrderOfStagesIsPartOfTheMethod) {
  EXPECT_EQ(scores<PoolFirst>(), (std::vector<float>{.5F, 1, .5F}));
  EXPECT_EQ(scores<ReduceFirst>(), (std::vector<float>{.5F, .5F, .5F}));
}

template <GroupReduce kReduce>
struct Reduced : CutsByCacheScore {
  static constexpr std::string_view kName = "Reduced";
  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Written() | HeadReduction{kReduce};
  }
};

TEST(Composed, HeadsComeTogetherAsTold) {
  EXPECT_EQ(scores<Reduced<GroupReduce::kMean>>(), (std::vector<float>{.5F, 0, .5F}));
  EXPECT_EQ(scores<Reduced<GroupReduce::kMax>>(), (std::vector<float>{1, 0, 1}));
  EXPECT_EQ(scores<Reduced<GroupReduce::kSum>>(), (std::vector<float>{1, 0, 1}));
}

struct Needy {
  static constexpr Inputs kRequiredInputs = Inputs::kValues;
  void apply(const ScoreInput& /*input*/, LaneScores& /*scores*/) const {}
};
struct NeedyRecipe : CutsByCacheScore {
  static constexpr std::string_view kName = "Needy";
  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Written() | GroupReduction{} | when(false, Needy{});
  }
};

// A stage that is switched off at run time still counts: what an engine has to supply is a
// constant.
TEST(Composed, AsksForWhatItsPartsAskFor) {
  EXPECT_EQ(Policy<Composed<PoolFirst>>::kRequiredInputs, Inputs::kNothing);
  EXPECT_EQ(Policy<Composed<NeedyRecipe>>::kRequiredInputs, Inputs::kValues);
}

/// A selection of one's own: the last candidates, whatever the scores.
struct Last {
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const ScoreInput& /*input*/) const {
    for (const ScoredLane& lane : lanes) {
      for (std::size_t slot = lane.scores.size(); slot-- > 0 && quota > 0;) {
        if ((lane.candidates[0] >> slot & 1) != 0) {
          lane.keep[0] |= std::uint64_t{1} << slot;
          --quota;
        }
      }
    }
  }
};
struct LastRecipe : CutsByCacheScore {
  static constexpr std::string_view kName = "Last";
  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Written() | GroupReduction{};
  }
  static Last selector(const Options& /*options*/) { return {}; }
};

TEST(Composed, ASelectionOfOnesOwn) {
  Policy<Composed<LastRecipe>> policy({.budget = 2, .num_sink_tokens = 1}, kShape);
  policy.append(3);
  kvevict_test::WindowCache cache(kShape, 3);
  cache.append(3);
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_TRUE(mask.keeps(0, 0, 0));
  EXPECT_FALSE(mask.keeps(0, 0, 1));
  EXPECT_TRUE(mask.keeps(0, 0, 2));
}

// Two arrays are left, and one has no say.
struct LeavesTwo : CutsByCacheScore {
  static constexpr std::string_view kName = "LeavesTwo";
  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Pipeline(Written());
  }
};
TEST(Composed, RefusesScoresThatWereNotBroughtTogether) {
  Policy<Composed<LeavesTwo>> policy({.budget = 2}, kShape);
  policy.append(3);
  kvevict_test::WindowCache cache(kShape, 3);
  cache.append(3);
  EXPECT_TRUE(kvevict_test::refuses([&] { static_cast<void>(policy.select(cache.view())); },
                                    {"Pipeline", "arrays of a lane = 2"}));
}

/// A table of lanes straight from the options.
struct TableOptions : CacheScoreOptions {
  std::vector<std::size_t> table = {};
};
struct TableRecipe : CutsByCacheScore {
  using Options = TableOptions;
  static constexpr std::string_view kName = "Table";
  static auto pipeline(const Options& /*options*/, const CacheShape& shape) {
    return Pipeline(KeyNorm(shape));
  }
  static Allocation allocation(const Options& options) {
    return {.budget = options.budget, .lane_budgets = options.table};
  }
};
constexpr CacheShape kTwoHeads{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};

TEST(Composed, ATableOfAnAllocationLivesAsLongAsThePolicy) {
  using Table = Policy<Composed<TableRecipe>>;
  const auto make = [](std::vector<std::size_t> table) {
    TableOptions options;
    options.table = std::move(table);
    return Table(options, kTwoHeads);
  };
  EXPECT_TRUE(kvevict_test::refuses(
      [&] {
        static_cast<void>(make({1, 2, 3}));
      },
      {"Table", "lane_budgets.size() = 3"}));
  Table copy = [&] {
    const Table original = make({1, 2});
    return Table(original);
  }();
  kvevict_test::WindowCache cache(kTwoHeads, 3);
  copy.append(3);
  cache.append(3);
  const KeepMask& mask = copy.select(cache.view());
  EXPECT_EQ(mask.count(0, 0), 1U);
  EXPECT_EQ(mask.count(0, 1), 2U);
}

/// A table of layers that is scaled to the length of a prompt.
struct LayersRecipe : CutsByCacheScore {
  static constexpr std::string_view kName = "Layers";
  static auto pipeline(const Options& /*options*/, const CacheShape& shape) {
    return Pipeline(KeyNorm(shape));
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return LayerTable(kName, "layers", shape, options.budget, 0, {3});
  }
};
/// Heads compete; all else is as there.
struct SharedLayersRecipe : LayersRecipe {
  static constexpr std::string_view kName = "SharedLayers";
  static auto allocator(const Options& options, const CacheShape& shape) {
    return detail::EditedAllocator(LayersRecipe::allocator(options, shape),
                                   detail::SetCompetition{Competition::kLayer});
  }
};
TEST(Composed, RefusesAnAllocatorOfPromptsWhereMoreThanPromptsIsCut) {
  EXPECT_TRUE(kvevict_test::refuses(
      [] { static_cast<void>(Policy<Composed<LayersRecipe>>({.budget = 3}, kTwoHeads)); },
      {"Layers: trigger", "must be kPrefillEnd"}));
  EXPECT_TRUE(kvevict_test::refuses(
      [] { static_cast<void>(Policy<Composed<SharedLayersRecipe>>({.budget = 3}, kTwoHeads)); },
      {"SharedLayers: trigger", "must be kPrefillEnd"}));
  EXPECT_NO_THROW(static_cast<void>(
      Policy<Composed<LayersRecipe>>({.budget = 3, .only_at_prefill_end = true}, kTwoHeads)));
}

/// Inertia has one score per token for the whole model.
struct InertiaPerHead : CutsByCacheScore {
  static constexpr std::string_view kName = "InertiaPerHead";
  static auto pipeline(const Options& /*options*/, const CacheShape& shape) {
    return Pipeline(AttentionInertia<false>(kName, shape, {}));
  }
};
TEST(Composed, RefusesASignalOfAnotherScope) {
  EXPECT_TRUE(kvevict_test::refuses(
      [] { static_cast<void>(Policy<Composed<InertiaPerHead>>({.budget = 2}, kTwoHeads)); },
      {"InertiaPerHead", "scope"}));
}

}  // namespace
}  // namespace kvevict
