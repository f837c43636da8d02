#ifndef KVEVICT_COMPOSITION_PARTS_HPP_
#define KVEVICT_COMPOSITION_PARTS_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/budget_tables.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/allocation/pyramid.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
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
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/head_floors.hpp"
#include "kvevict/selection/top_k.hpp"
#include "kvevict/selection/twin_repair.hpp"
#include "kvevict/selection/two_stage.hpp"
#include "kvevict/selection/whole_chunks.hpp"
#include "kvevict/temporal/scores_over_steps.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// What a text may add to a recipe, and the recipe that takes it.
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

struct AddedWindows {
  std::size_t num_sink_tokens = 0;  ///< first tokens that stay, where the policy keeps fewer
  std::size_t recent_window = 0;    ///< newest tokens that stay, where the policy keeps fewer

  [[nodiscard]] Protection over(Protection base) const noexcept {
    base.num_sink_tokens = std::max(base.num_sink_tokens, num_sink_tokens);
    base.recent_window = std::max(base.recent_window, recent_window);
    return base;
  }
};

/// How the scores of steps make one.
struct AddedRule {
  TemporalRule rule = TemporalRule::kEma;
  double decay = 0.8;  ///< weight of the past in the EMA, in [0, 1)
};

/// Everything that a text adds to a recipe.
struct Additions {
  AddedStages samples;  ///< stages in front of `rule`
  std::optional<AddedRule> rule;
  AddedStages stages;
  std::optional<AddedWindows> windows;
  std::optional<CutSchedule> schedule;
  MakeBudgets budgets;
  std::optional<Competition> competition;
  // Selections, each over the one before it.
  std::variant<std::monostate, HeadFloors, WholeChunks> selector;
  std::optional<TwoStage<CriticalScores>> second_stage;
  std::optional<TwinRepair<BestOfAll, KeyTwins>> twins;

  /// Takes over what one part adds; false where an earlier one has decided the same, or a selection
  /// that is made of this one.
  [[nodiscard]] bool take(Additions part) {
    const bool selects = selector.index() != 0;
    if ((rule && part.rule) || (windows && part.windows) || (schedule && part.schedule) ||
        (budgets && part.budgets) || (competition && part.competition) ||
        (part.selector.index() != 0 && (selects || second_stage || twins)) ||
        (part.second_stage && (second_stage || twins)) || (part.twins && twins))
      return false;
    if (part.rule) {
      samples = std::exchange(stages, {});
      rule = part.rule;
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
    return true;
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
  bool prompts_only = false;   // what is decoded comes on top of the budgets
  bool whole_prompts = false;  // until they are complete

  void operator()(Allocation& allocation, const Sequence& sequence) const noexcept {
    if (budgets) {
      const Allocation table = std::visit(
          [&](const auto& t) { return t.budgets(tokens_so_far(sequence, prompts_only)); },
          *budgets);
      allocation.budget = table.budget;
      allocation.lane_budgets = table.lane_budgets;
    }
    allocation.competition = competition.value_or(allocation.competition);
    if (whole_prompts)
      KeepUnfinishedPrompts{}(allocation, sequence);
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
        stages_->choose_within(counts, lanes, quota, input);
      } else {
        stages_->stages().choose(lanes, quota, input);
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
        chunks->choose(lanes, quota, input);
        // NOLINTNEXTLINE(bugprone-branch-clone): the arguments differ
      } else if constexpr (requires { self.base_.choose(lanes, quota, input, signal); }) {
        self.base_.choose(lanes, quota, input, signal);
      } else if constexpr (kBaseChooses) {
        self.base_.choose(lanes, quota, input);
      } else {
        select_top_k(lanes, quota);
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

  static void check(const Options& options, const CacheShape& shape) {
    check_recipe<Base>(options, shape);
    const Additions& added = options.additions;
    if (Base::scope(options) != MaskScope::kHead) {
      // Of a set that heads share, the scores are one by now and the values are still several.
      if (covers(added.inputs(), Inputs::kValues))
        throw_invalid_argument(Base::kName, "a part that reads values needs scope = head");
      if (added.twins || added.budgets)
        throw_invalid_argument(Base::kName, "a part for single heads needs scope = head");
    }
    if (Base::trigger(options) == Trigger::kPrefillEnd) {
      if (added.rule)
        throw_invalid_argument(Base::kName, "scores once a prompt: no steps for 'temporal'");
      if (added.schedule)
        throw_invalid_argument(Base::kName, "cuts once a prompt: nothing for 'schedule' to say");
    }
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    const Additions& added = options.additions;
    std::optional<TemporalRule> rule;
    if (added.rule)
      rule = added.rule->rule;
    return ScoresOverSteps(shape, Base::scope(options),
                           Base::pipeline(options, shape) | added.samples, rule,
                           added.rule ? added.rule->decay : 0.0) |
           added.stages;
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
  static auto allocator(const Options& options, const CacheShape& shape) {
    const Additions& added = options.additions;
    EditsOfAdditions edits{
        .budgets = std::nullopt,
        .competition = added.competition,
        .windows = added.windows.value_or(AddedWindows{}),
        .prompts_only = Base::trigger(options) == Trigger::kPrefillEnd,
        .whole_prompts =
            added.budgets || (added.rule && added.rule->rule != TemporalRule::kFrozen)};
    if (added.budgets)
      edits.budgets = make_budgets(options, shape);
    return EditedAllocator(allocator_of<Base>(options, shape), std::move(edits));
  }
  static auto selector(const Options& options) {
    Additions added = options.additions;
    if (added.second_stage)
      added.second_stage->second.epsilon *= static_cast<float>(rows_summed<Base>(options));
    return SelectorWithAdditions(selector_of<Base>(options), added);
  }

 private:
  [[nodiscard]] static AddedBudgets make_budgets(const Options& options, const CacheShape& shape) {
    if constexpr (requires {
                    { options.budget } -> std::convertible_to<Budget>;
                    protection(options);
                  }) {
      const Protection windows = protection(options);
      const std::size_t window = windows.num_sink_tokens + windows.recent_window;
      check_covers_window(Base::kName, options.budget, shape, window);
      return options.additions.budgets(shape, options.budget, window);
    } else {
      throw_invalid_argument(Base::kName, "has no budget that a table could share out");
    }
  }
};

// Parts by name. Each has options of its own and says what it adds.

/// What parts may need of the model.
struct PartContext {
  const CacheShape& shape;
  const std::shared_ptr<const OutputProjection>& output_projection;
};

template <OutputEstimate kEstimate>
struct CaotePart {
  static constexpr std::string_view kName =
      kEstimate == OutputEstimate::kExact ? "caote" : "fast_caote";
  struct Options {
    bool raw = false;  ///< the scores are attention already: do not divide them by their sum
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("raw", options.raw);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    if (!options.raw)
      to.stages.stages.emplace_back(SumToOne{});
    to.stages.stages.emplace_back(OutputChange{kEstimate});
  }
};

struct ValuesPart {
  static constexpr std::string_view kName = "values";
  struct Options {
    ValueFactor factor = ValueFactor::kNorm;
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("factor", options.factor);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    check_value_factor(kName, options.factor, context.output_projection.get(), context.shape,
                       GroupReading::kMeanNorms);
    to.stages.stages.emplace_back(TimesValues{.factor = options.factor,
                                              .reading = GroupReading::kMeanNorms,
                                              .projection = context.output_projection});
  }
};

struct PoolPart {
  static constexpr std::string_view kName = "pool";
  using Options = Pooling;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("kind", options.kind);
    visit("kernel_size", options.kernel_size);
    visit("edge", options.edge);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    options.check(kName);
    to.stages.stages.emplace_back(Pool{options});
  }
};

struct ForwardMaxPart {
  static constexpr std::string_view kName = "forward_max";
  using Options = ForwardMax;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("width", options.width);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    require(options.width > 0, kName, "width", options.width, "must be > 0");
    to.stages.stages.emplace_back(options);
  }
};

/// A part without options.
struct PlainPart {
  struct Options {};
  template <class Visit>
  static void visit_options(Options& /*options*/, Visit&& /*visit*/) {}
};
struct SumToOnePart : PlainPart {
  static constexpr std::string_view kName = "sum_to_one";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.stages.stages.emplace_back(SumToOne{});
  }
};
struct ZScoresPart : PlainPart {
  static constexpr std::string_view kName = "z_scores";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.stages.stages.emplace_back(StandardScores{});
  }
};
struct AtLeastMeanPart : PlainPart {
  static constexpr std::string_view kName = "at_least_mean";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.stages.stages.emplace_back(AtLeastMean{});
  }
};
struct LayerSharesPart : PlainPart {
  static constexpr std::string_view kName = "layer_shares";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.stages.stages.emplace_back(SharesOfLayer{});
  }
};
struct LayerPart : PlainPart {
  static constexpr std::string_view kName = "layer";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.competition = Competition::kLayer;
  }
};
struct ModelPart : PlainPart {
  static constexpr std::string_view kName = "model";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.competition = Competition::kModel;
  }
};

struct AdaPart {
  static constexpr std::string_view kName = "ada";
  struct Options {
    double floor = 0.2;
    FloorRule rule = FloorRule::kInterpolate;
    bool floor_of_whole = false;
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("floor", options.floor);
    visit("rule", options.rule);
    visit("floor_of_whole", options.floor_of_whole);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    require(options.floor >= 0.0 && options.floor <= 1.0, kName, "floor", options.floor,
            "must be in [0, 1]");
    to.competition = Competition::kLayer;
    to.selector.emplace<HeadFloors>(options.rule, options.floor, false, options.floor_of_whole);
  }
};

struct ChunksPart {
  static constexpr std::string_view kName = "chunks";
  using Options = ChunkOptions;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("chunk_len", options.chunk_len);
    visit("score", options.score);
    visit("fill_rest", options.fill_rest);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    options.check(kName);
    to.selector.emplace<WholeChunks>(options);
  }
};

/// The two stages of CriticalKV over any scores.
struct CriticalPart {
  static constexpr std::string_view kName = "critical";
  struct Options {
    double first_stage = 0.5;  ///< share of the budget that the scores themselves fill
    double epsilon = 1e-4;     ///< added to scores, in units of attention
    bool l2_norm = false;      ///< |v W_O|_2 for |v W_O|_1
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("first_stage", options.first_stage);
    visit("epsilon", options.epsilon);
    visit("l2_norm", options.l2_norm);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    require(options.first_stage >= 0.0 && options.first_stage <= 1.0, kName, "first_stage",
            options.first_stage, "must be in [0, 1]");
    require(options.epsilon >= 0.0, kName, "epsilon", options.epsilon, "must be >= 0");
    const ValueFactor norm = options.l2_norm ? ValueFactor::kProjected : ValueFactor::kProjectedL1;
    check_value_factor(kName, norm, context.output_projection.get(), context.shape,
                       GroupReading::kMeanNorms);
    to.second_stage =
        TwoStage<CriticalScores>{.first_share = Budget::keep_ratio(options.first_stage),
                                 .second = {.epsilon = static_cast<float>(options.epsilon),
                                            .norm = norm,
                                            .projection = context.output_projection}};
  }
};

/// TwinKV's repair of any selection.
struct TwinsPart {
  static constexpr std::string_view kName = "twins";
  struct Options {
    TwinRepairOptions repair = {};
    std::size_t distance = 32;  ///< slots within which keys are no twins
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("similarity", options.repair.similarity);
    visit("distance", options.distance);
    visit("num_sink_tokens", options.repair.num_sink_tokens);
    visit("recent_window", options.repair.recent_window);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    require(options.repair.similarity >= -1.0 && options.repair.similarity <= 1.0, kName,
            "similarity", options.repair.similarity, "must be in [-1, 1]");
    to.twins.emplace(BestOfAll{}, KeyTwins(options.distance), options.repair);
  }
};

/// A temporal rule over the scores so far; parts behind it work on what it makes of them.
struct TemporalPart {
  static constexpr std::string_view kName = "temporal";
  using Options = AddedRule;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("rule", options.rule);
    visit("decay", options.decay);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    require(options.decay >= 0.0 && options.decay < 1.0, kName, "decay", options.decay,
            "must be in [0, 1)");
    to.rule = options;
  }
};

/// Sinks and recent tokens for a policy that keeps fewer.
struct ProtectPart {
  static constexpr std::string_view kName = "protect";
  using Options = AddedWindows;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    to.windows = options;
  }
};

/// How often to cut.
struct SchedulePart {
  static constexpr std::string_view kName = "schedule";
  using Options = CutSchedule;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("cuts_prompts", options.cuts_prompts);
    visit("decode_interval", options.decode_interval);
    visit("slack", options.slack);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    require(options.decode_interval > 0, kName, "decode_interval", options.decode_interval,
            "must be > 0");
    to.schedule = options;
  }
};

// Who gets how much of the policy's budget.

/// PyramidKV's line over the layers.
struct PyramidPart {
  static constexpr std::string_view kName = "pyramid";
  struct Options {
    double beta = 20;  ///< the last layer gets one part in beta of an equal share
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("beta", options.beta);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    require(options.beta >= 1.0, kName, "beta", options.beta, "must be >= 1");
    to.budgets = [options](const CacheShape& shape, const Budget& budget, std::size_t window) {
      return PyramidBudgets(shape, budget, window, options.beta, PyramidRounding::kExact);
    };
  }
};

/// EvolKV's table of layers.
struct LayerBudgetsPart {
  static constexpr std::string_view kName = "layer_budgets";
  struct Options {
    std::vector<std::size_t> tokens = {};  ///< [layers] per KV head, in proportion
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("tokens", options.tokens);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    to.budgets = [options](const CacheShape& shape, const Budget& budget, std::size_t window) {
      return LayerTable(kName, shape, budget, window, options.tokens);
    };
  }
};

/// HeadKV's scores of heads.
struct HeadScoresPart {
  static constexpr std::string_view kName = "head_scores";
  struct Options {
    std::vector<double> scores = {};  ///< [layers * KV heads] or [layers * query heads], >= 0
    double power = 1;                 ///< that they are raised to
    double beta = 1.5;                ///< one part in beta of the budget goes by score
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("scores", options.scores);
    visit("power", options.power);
    visit("beta", options.beta);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    to.budgets = [options](const CacheShape& shape, const Budget& budget, std::size_t window) {
      return HeadTable(kName, shape, budget, window, options.scores, options.power, options.beta,
                       false);
    };
  }
};

/// Shares of layers or heads; the policy's own budget has no meaning then.
struct CompressionRatiosPart {
  static constexpr std::string_view kName = "compression_ratios";
  struct Options {
    std::vector<double> ratios = {};  ///< [layers] or [layers * KV heads] of tokens that go
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("ratios", options.ratios);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    const std::size_t size = options.ratios.size();
    require(size == 0 || size == context.shape.num_layers ||
                size == context.shape.num_layers * context.shape.num_kv_heads,
            kName, "ratios.size()", size, "must be 0, num_layers or layers x KV heads");
    to.budgets = [options](const CacheShape& shape, const Budget& /*budget*/,
                           std::size_t /*window*/) {
      return ShareTable(kName, "ratios", shape, options.ratios, ShareRounding::kExact, false);
    };
  }
};

template <class... Parts>
struct PartList {};

/// Every part that a text can add. A new one is a line here.
// clang-format off
using NamedParts = PartList<
    CaotePart<OutputEstimate::kExact>,
    CaotePart<OutputEstimate::kMeanValue>,
    ValuesPart,
    PoolPart,
    ForwardMaxPart,
    SumToOnePart,
    ZScoresPart,
    AtLeastMeanPart,
    TemporalPart,
    LayerSharesPart,
    ProtectPart,
    SchedulePart,
    PyramidPart,
    LayerBudgetsPart,
    HeadScoresPart,
    CompressionRatiosPart,
    LayerPart,
    ModelPart,
    AdaPart,
    ChunksPart,
    CriticalPart,
    TwinsPart>;
// clang-format on

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_COMPOSITION_PARTS_HPP_
