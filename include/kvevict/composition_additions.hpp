#ifndef KVEVICT_COMPOSITION_ADDITIONS_HPP_
#define KVEVICT_COMPOSITION_ADDITIONS_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/apportion.hpp"
#include "kvevict/allocation/budget_tables.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/allocation/pyramid.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/critical_scores.hpp"
#include "kvevict/scoring/forward_max.hpp"
#include "kvevict/scoring/key_twins.hpp"
#include "kvevict/scoring/normalize.hpp"
#include "kvevict/scoring/output_change.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/head_floors.hpp"
#include "kvevict/selection/pool_selection.hpp"
#include "kvevict/selection/top_k.hpp"
#include "kvevict/selection/twin_repair.hpp"
#include "kvevict/selection/two_stage.hpp"
#include "kvevict/selection/whole_chunks.hpp"
#include "kvevict/temporal/refresh_steps.hpp"
#include "kvevict/temporal/scores_over_steps.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// What a text may add to a recipe, what of it fits which recipe, and the recipe that takes it.
KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// Stages that a text may add; each is also a part of a recipe.
struct AddedStages {
  std::vector<std::variant<OutputChange, TimesValues, Pool, SumToOne, StandardScores, AtLeastMean,
                           ForwardMax, SharesOfLayer>>
      stages;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    visit([&](const auto& stage) {
      if constexpr (LaneStage<decltype(stage)>)
        stage.apply(input, scores);
    });
  }
  void apply_to_pool(const ScoreInput& input, std::span<ScoredLane> lanes) const {
    visit([&](const auto& stage) {
      if constexpr (PoolWideStage<decltype(stage)>)
        stage.apply_to_pool(input, lanes);
    });
  }
  [[nodiscard]] bool is_idle() const noexcept { return stages.empty(); }
  /// What they read.
  [[nodiscard]] Inputs inputs() const {
    Inputs all = Inputs::kNothing;
    visit([&](const auto& stage) {
      all = all | required_by<std::remove_cvref_t<decltype(stage)>>();
    });
    return all;
  }

 private:
  template <class Visit>
  void visit(Visit&& each) const {
    for (const auto& stage : stages)
      std::visit(each, stage);
  }
};

/// Tables that share a budget out in the place of a recipe's allocator.
using AddedBudgets = std::variant<PyramidBudgets, LayerTable, HeadTable, ShareTable>;
using MakeBudgets =
    std::function<AddedBudgets(const CacheShape& shape, const Budget& budget, std::size_t window)>;

/// Not by std::visit, which may throw.
[[nodiscard]] inline Allocation budgets_of(const AddedBudgets& table, std::size_t len) noexcept {
  if (const auto* pyramid = std::get_if<PyramidBudgets>(&table))
    return pyramid->budgets(len);
  if (const auto* layers = std::get_if<LayerTable>(&table))
    return layers->budgets(len);
  if (const auto* heads = std::get_if<HeadTable>(&table))
    return heads->budgets(len);
  return std::get_if<ShareTable>(&table)->budgets(len);
}

struct AddedWindows {
  std::size_t num_sink_tokens = 0;  ///< first tokens that stay, where the policy keeps fewer
  std::size_t recent_window = 0;    ///< newest tokens that stay, where the policy keeps fewer

  [[nodiscard]] Protection over(Protection base) const noexcept {
    base.num_sink_tokens = std::max(base.num_sink_tokens, num_sink_tokens);
    base.recent_window = std::max(base.recent_window, recent_window);
    return base;
  }
};

/// What a part decides or does: flags.
enum class PartKind : std::uint32_t {
  kNone = 0,
  kStage = 1U << 0U,         ///< makes something of the scores
  kFinish = 1U << 1U,        ///< a stage behind which nothing is made of them
  kReadsValues = 1U << 2U,   ///< of single heads
  kRule = 1U << 3U,          ///< aggregates over steps
  kWindows = 1U << 4U,       ///< protects
  kSchedule = 1U << 5U,      ///< says how often to cut
  kBudgets = 1U << 6U,       ///< shares the budget out
  kPromptsAlone = 1U << 7U,  ///< does so for prompts
  kLayerPool = 1U << 8U,     ///< lets the heads of a layer compete
  kModelPool = 1U << 9U,     ///< lets all heads compete
  kSelection = 1U << 10U,    ///< chooses
  kSecondStage = 1U << 11U,  ///< chooses once more over that
  kTwins = 1U << 12U,        ///< repairs what was chosen
};
[[nodiscard]] constexpr PartKind operator|(PartKind a, PartKind b) noexcept {
  return static_cast<PartKind>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
/// Whether they have a flag in common.
[[nodiscard]] constexpr bool any_of(PartKind a, PartKind b) noexcept {
  return (static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b)) != 0;
}

/// What a recipe, with its options, is to the parts that may be added.
struct PartHost {
  std::string_view name;
  MaskScope scope = MaskScope::kHead;
  bool scores_nothing = false;    ///< goes by positions
  bool selects = false;           ///< has a selection of its own
  bool has_schedule = false;      ///< as options
  bool cuts_once = false;         ///< a prompt, at its end
  bool has_budget = false;        ///< that a table could share out
  bool has_budget_table = false;  ///< of lanes, or made from what was observed
  bool any_lane_unbounded = false;

  void note_budgets(std::span<const std::size_t> lanes) noexcept {
    has_budget_table = !lanes.empty();
    any_lane_unbounded = std::find(lanes.begin(), lanes.end(),
                                   std::numeric_limits<std::size_t>::max()) != lanes.end();
  }
};

/// Why a part cannot stand behind those before it; empty where it can.
[[nodiscard]] inline std::string_view misfit_behind(PartKind before, PartKind part) noexcept {
  using enum PartKind;
  constexpr PartKind kPools = kLayerPool | kModelPool;
  for (const PartKind once :
       {kRule, kWindows, kSchedule, kBudgets, kPools, kSelection, kSecondStage, kTwins}) {
    if (any_of(before, once) && any_of(part, once))
      return "a part before it has decided the same";
  }
  if ((any_of(part, kSelection) && any_of(before, kSecondStage | kTwins)) ||
      (any_of(part, kSecondStage) && any_of(before, kTwins)))
    return "selections stand before 'critical', and both before 'twins'";
  if (any_of(before, kFinish) && any_of(part, kStage | kRule))
    return "'layer_shares' comes when the scores are finished: nothing may be made of them behind "
           "it";
  return {};
}

/// Why a part does not fit a recipe, as the end of a sentence about it; empty where it does.
[[nodiscard]] inline std::string_view misfit_of(PartKind part, const PartHost& host) noexcept {
  using enum PartKind;
  const bool pools = any_of(part, kLayerPool | kModelPool);
  if (host.scores_nothing && any_of(part, kStage | kRule | kSelection | kSecondStage | kTwins))
    return "goes by positions alone: it has no scores to change or to choose by";
  // Of a set that heads share, the scores are one by now and the values are still several.
  if (host.scope != MaskScope::kHead && any_of(part, kReadsValues))
    return "has one set for several heads, and a part that reads values needs one for each "
           "(scope=head, where there is that option)";
  if (host.scope != MaskScope::kHead && any_of(part, kTwins | kBudgets))
    return "has one set for several heads, and the part is for single heads "
           "(scope=head, where there is that option)";
  if (pools && (host.scope == MaskScope::kModel ||
                (host.scope == MaskScope::kLayer && any_of(part, kLayerPool))))
    return "has one set where the part would let several compete "
           "(scope=head, where there is that option)";
  if (host.selects && any_of(part, kSelection))
    return "has a selection of its own, which the part would drop";
  if (host.cuts_once && any_of(part, kRule))
    return "scores once a prompt: there are no steps to aggregate";
  if (host.cuts_once && any_of(part, kSchedule))
    return "cuts once a prompt: there is nothing to schedule";
  if (host.has_schedule && any_of(part, kSchedule))
    return "has options for this: cuts_prompts, decode_interval, slack";
  if (!host.cuts_once && any_of(part, kPromptsAlone))
    return "cuts at any time, and the part shares out the budget of a prompt";
  if (!host.has_budget && any_of(part, kBudgets))
    return "has no budget that a table could share out";
  if (host.has_budget_table && any_of(part, kBudgets))
    return "shares its budget out by itself, which the part would drop";
  if (host.any_lane_unbounded && pools)
    return "has lanes without a budget, which cannot share one";
  return {};
}

/// Everything that a text adds to a recipe.
struct Additions {
  PartKind kinds = PartKind::kNone;
  AddedStages samples;  ///< stages in front of `rule`
  std::optional<NamedRule> rule;
  RefreshSteps refresh;  ///< of `rule`
  AddedStages stages;
  std::optional<AddedWindows> windows;
  std::optional<CutSchedule> schedule;
  MakeBudgets budgets;
  std::optional<Competition> competition;
  // Selections, each over the one before it.
  std::variant<std::monostate, HeadFloors, WholeChunks> selector;
  std::optional<TwoStage<CriticalScores>> second_stage;
  std::optional<TwinRepair<BestOfAll, KeyTwins>> twins;

  /// Takes over what one part adds; misfit_behind has allowed it.
  void take(Additions part, PartKind kind) {
    kinds = kinds | kind;
    if (part.rule) {
      samples = std::exchange(stages, {});
      rule = part.rule;
      refresh = part.refresh;
    }
    for (auto& stage : part.stages.stages)
      stages.stages.push_back(std::move(stage));
    const auto take_set = [](auto& mine, auto& other) {
      if (other)
        mine = std::move(other);
    };
    take_set(windows, part.windows);
    take_set(schedule, part.schedule);
    take_set(budgets, part.budgets);
    take_set(competition, part.competition);
    take_set(second_stage, part.second_stage);
    take_set(twins, part.twins);
    if (part.selector.index() != 0)
      selector = std::move(part.selector);
  }
  /// What all of it reads.
  [[nodiscard]] Inputs inputs() const {
    return samples.inputs() | stages.inputs() |
           (second_stage ? TwoStage<CriticalScores>::kRequiredInputs : Inputs::kNothing) |
           (twins ? Inputs::kKeys : Inputs::kNothing);
  }
};

/// What a text changes of a recipe's allocations and of what they leave alone.
struct EditsOfAdditions {
  std::optional<AddedBudgets> budgets;
  std::optional<Competition> competition;
  AddedWindows windows;
  bool prompts_only = false;                  // what is decoded comes on top of the budgets
  std::optional<std::size_t> windows_budget;  // of a policy without scores: nothing else stays
  std::size_t least = 0;  // tokens of every lane of a recipe's own table: added windows
  mutable std::vector<std::size_t> lifted = {};  // [lanes] if there is a least; memory

  void operator()(Allocation& allocation, const Sequence& sequence) const noexcept {
    if (budgets) {
      const Allocation table = budgets_of(*budgets, tokens_so_far(sequence, prompts_only));
      allocation.budget = table.budget;
      allocation.lane_budgets = table.lane_budgets;
      allocation.headroom = 0;  // a table says what is kept, not what may gather above it
    }
    if (least > 0 && !allocation.lane_budgets.empty()) {
      std::copy(allocation.lane_budgets.begin(), allocation.lane_budgets.end(), lifted.begin());
      lift(lifted, [&](std::size_t) { return least; });
      allocation.lane_budgets = lifted;
    }
    allocation.competition = competition.value_or(allocation.competition);
    if (windows_budget && allocation.lane_budgets.empty())
      allocation.budget = *windows_budget;
    if (budgets)
      keep_unfinished_prompt(allocation, sequence);
  }
  [[nodiscard]] Protection protection(const Protection& base) const noexcept {
    return windows.over(base);
  }
};

/// A recipe's selection, or the one that a text puts in its place, and what it puts over it.
template <class Base>
class SelectorWithAdditions {
 public:
  static constexpr Inputs kRequiredInputs = required_by<Base>();

  SelectorWithAdditions(Base base, const Additions& added)
      : base_(std::move(base)), added_(added.selector), twins_(added.twins) {
    if (added.second_stage)
      stages_.emplace(BestOfAll{}, *added.second_stage);
  }

  [[nodiscard]] bool chooses() const noexcept { return has_counts() || stages_ || twins_; }
  template <class Signal>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const ScoreInput& input,
              const Signal& signal) const {
    const auto choose_stages = [&] {
      const Counts<Signal> counts{*this, signal};
      if (!stages_) {
        counts.choose(lanes, quota, input);
      } else if (has_counts()) {
        stages_->choose_within(
            [&] { counts.choose(lanes, quota, input); },
            [&](std::size_t lane) { return counts.num_safe(lanes, quota, lane); }, lanes, input);
      } else {
        stages_->stages().choose(lanes, quota - keep_one_each(lanes, quota), input);
      }
    };
    if (twins_) {
      twins_->repair_after(lanes, input, choose_stages);
    } else {
      choose_stages();
    }
  }

 private:
  static constexpr bool kBaseChooses = !std::same_as<Base, std::tuple<>>;

  // The selection below all others.
  template <class Signal>
  struct Counts {
    const SelectorWithAdditions& self;
    const Signal& signal;

    void choose(std::span<ScoredLane> lanes, std::size_t quota, const ScoreInput& input) const {
      if (const auto* floors = std::get_if<HeadFloors>(&self.added_)) {
        floors->choose(lanes, quota, input);
      } else if (const auto* chunks = std::get_if<WholeChunks>(&self.added_)) {
        chunks->choose(lanes, quota - keep_one_each(lanes, quota), input);
        // NOLINTNEXTLINE(bugprone-branch-clone): the arguments differ
      } else if constexpr (requires { self.base_.choose(lanes, quota, input, signal); }) {
        self.base_.choose(lanes, quota, input, signal);
      } else if constexpr (kBaseChooses) {
        self.base_.choose(lanes, quota, input);
      } else {
        BestOfAll{}.choose(lanes, quota, input);
      }
    }
    [[nodiscard]] std::size_t num_safe(std::span<const ScoredLane> lanes, std::size_t quota,
                                       std::size_t lane) const noexcept {
      if (const auto* floors = std::get_if<HeadFloors>(&self.added_))
        return floors->num_safe(lanes, quota, lane);
      if constexpr (requires { self.base_.num_safe(lanes, quota, lane); }) {
        return self.added_.index() == 0 ? self.base_.num_safe(lanes, quota, lane) : 0;
      } else {
        return 0;
      }
    }
  };
  [[nodiscard]] bool has_counts() const noexcept { return kBaseChooses || added_.index() != 0; }

  Base base_;
  std::variant<std::monostate, HeadFloors, WholeChunks> added_;
  std::optional<TwoStageWithin<BestOfAll, CriticalScores>> stages_;
  std::optional<TwinRepair<BestOfAll, KeyTwins>> twins_;
};

template <class Base>
struct OptionsWithAdditions : Base::Options {
  Additions additions;
};

/// A recipe that a text may add to.
template <Recipe Base>
struct WithAdditions : Base {
  using Options = OptionsWithAdditions<Base>;

  /// What parts have to fit. Throws InvalidArgument for options that make no sense.
  [[nodiscard]] static PartHost part_host(const Options& options, const CacheShape& shape) {
    check_recipe<Base>(options, shape);
    PartHost host{.name = Base::kName,
                  .scope = Base::scope(options),
                  .scores_nothing = kScoresNothing,
                  .selects = !std::same_as<decltype(selector_of<Base>(options)), std::tuple<>>,
                  .has_schedule = kHasSchedule,
                  .cuts_once = Base::trigger(options) == Trigger::kPrefillEnd,
                  .has_budget = kHasBudget};
    const auto allocator = allocator_of<Base>(options, shape);
    if constexpr (requires(const Sequence& sequence) { allocator.allocation(sequence); }) {
      const Sequence sequence(Base::kName, shape, Base::scope(options));
      host.note_budgets(allocator.allocation(sequence).lane_budgets);
    } else {
      host.has_budget_table = true;
    }
    return host;
  }
  /// Whether the budget has room for the windows and the tables among the parts. Throws
  /// InvalidArgument naming `where`, which is the newest part, or the policy where it has none.
  static void check_room(const Options& options, const CacheShape& shape, std::string_view where) {
    const auto budgets = allocator(options, shape, where);
    const Sequence sequence(Base::kName, shape, Base::scope(options));
    // One that goes by what is observed gives each lane a budget of its own, which has room.
    if constexpr (requires { budgets.allocation(sequence); }) {
      const Allocation given = budgets.allocation(sequence);
      if constexpr (requires { budgets.protection(sequence); }) {
        check_allocation(given, budgets.protection(sequence), shape, where);
      } else {
        check_allocation(given, protection(options), shape, where);
      }
    }
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    const Additions& added = options.additions;
    return ScoresOverSteps(shape, Base::scope(options),
                           Base::pipeline(options, shape) | added.samples, added.rule,
                           added.refresh) |
           added.stages;
  }
  static void check(const Options& options, const CacheShape& shape) {
    check_recipe<Base>(options, shape);
  }
  [[nodiscard]] static Inputs added_inputs(const Options& options) {
    Inputs inputs = options.additions.inputs();
    if constexpr (requires { Base::added_inputs(options); })
      inputs = inputs | Base::added_inputs(options);
    return inputs;
  }
  [[nodiscard]] static Trigger trigger(const Options& options) noexcept {
    const Trigger base = Base::trigger(options);
    const bool spares_prompts =
        options.additions.schedule && !options.additions.schedule->cuts_prompts;
    return base == Trigger::kEveryStep && spares_prompts ? Trigger::kDecodeSteps : base;
  }
  [[nodiscard]] static CutSchedule schedule(const Options& options) noexcept {
    return options.additions.schedule.value_or(schedule_of<Base>(options));
  }
  [[nodiscard]] static Protection protection(const Options& options) noexcept
      requires(requires { Base::protection(options); }) {
    return options.additions.windows.value_or(AddedWindows{}).over(Base::protection(options));
  }
  /// @param where  what an error of a table names
  static auto allocator(const Options& options, const CacheShape& shape,
                        std::string_view where = Base::kName) {
    const Additions& added = options.additions;
    EditsOfAdditions edits{.budgets = std::nullopt,
                           .competition = added.competition,
                           .windows = added.windows.value_or(AddedWindows{}),
                           .prompts_only = Base::trigger(options) == Trigger::kPrefillEnd,
                           .windows_budget = std::nullopt};
    edits.budgets = make_budgets(options, shape, where);
    if constexpr (kScoresNothing) {
      if (added.windows) {
        const Protection stays = protection(options);
        edits.windows_budget = saturating_add(stays.num_sink_tokens, stays.recent_window);
      }
    }
    if (added.windows && !edits.budgets) {
      if constexpr (requires { protection(options); }) {
        const Protection windows = protection(options);
        edits.least = saturating_add(windows.num_sink_tokens, windows.recent_window);
        edits.lifted.resize(shape.num_lanes(Base::scope(options)));
      }
    }
    return EditedAllocator(allocator_of<Base>(options, shape), std::move(edits));
  }
  static auto selector(const Options& options) {
    Additions added = options.additions;
    // In units of attention only where no part has made something else of the scores.
    if (added.second_stage && !added.rule && added.stages.is_idle())
      added.second_stage->second.epsilon *= static_cast<float>(rows_summed<Base>(options));
    return SelectorWithAdditions(selector_of<Base>(options), added);
  }

 private:
  static constexpr bool kScoresNothing = Composed<Base>::kScoresNothing;
  static constexpr bool kHasSchedule = requires(const Options& options) {
    Base::schedule(options);
  };
  static constexpr bool kHasBudget = requires(const Options& options) {
    { options.budget } -> std::convertible_to<Budget>;
    protection(options);
  };

  [[nodiscard]] static std::optional<AddedBudgets> make_budgets(const Options& options,
                                                                const CacheShape& shape,
                                                                std::string_view where) {
    if constexpr (kHasBudget) {
      if (!options.additions.budgets)
        return std::nullopt;
      const Protection windows = protection(options);
      const std::size_t window = windows.num_sink_tokens + windows.recent_window;
      check_covers_window(where, options.budget, shape, window);
      return options.additions.budgets(shape, options.budget, window);
    } else {
      return std::nullopt;
    }
  }
};

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_COMPOSITION_ADDITIONS_HPP_
