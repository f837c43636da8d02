#ifndef KVEVICT_POLICIES_COMPOSED_HPP_
#define KVEVICT_POLICIES_COMPOSED_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/token_label.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/equal_scores.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/selection/pool_selection.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What a policy that only recombines parts has to say: its options, and how they become the parts.
///
/// Optional members, each used where it exists:
///
///   check(options, shape)          throws InvalidArgument for options that make no sense
///   schedule(options)              a CutSchedule: how often to cut
///   allocation(options)            who gets how much, where that is more than options.budget for
///                                  each lane, or
///   allocator(options, shape)      the same where it changes from step to step (Allocator)
///   selector(options)              a selection of its own (Selector)
///   streaming(allocator)           a StreamingTopK that decides the same, for frozen scores
///   protection(options)            what stays; needed where the allocator does not say it
///   num_rows_summed(options)       rows that its scores are the sum over, 1 where it does not say
///   scored_layer(options, layer)   the layer whose scores `layer` takes, itself or one before it:
///                                  only such layers are observed
///   added_inputs(options)          what is read beside what the parts say
///   visit_options(options, visit)  the options by name; needed by make_policy alone
///   kNeedsArtefact                 true: see Policy
template <class R>
concept Recipe = requires(const typename R::Options& options, const CacheShape& shape) {
  { R::kName } -> std::convertible_to<std::string_view>;
  { R::scope(options) } -> std::same_as<MaskScope>;
  { R::trigger(options) } -> std::same_as<Trigger>;
  R::pipeline(options, shape);
};

/// Who gets how much, where it depends on more than the options. Optional: state(), begin();
/// kOfPrompts, true where it goes by the length of prompts, for recipes of Trigger::kPrefillEnd
/// alone. One that goes by what was observed has allocation(sequence, signal) and reads the
/// pipeline's signal.
template <class A, class S>
concept Allocator = requires(const A& allocator, const Sequence& sequence) {
  { allocator.allocation(sequence) } -> std::same_as<Allocation>;
}
|| requires(const A& allocator, const Sequence& sequence, const S& signal) {
  { allocator.allocation(sequence, signal) } -> std::same_as<Allocation>;
};

/// Who stays of those who compete: marks at most `quota` candidates in the lanes' keep bits. One
/// that goes by more than the scores has choose(lanes, quota, input, signal).
template <class S, class Signal>
concept Selector = requires(const S& selector, std::span<ScoredLane> lanes, std::size_t quota,
                            const ScoreInput& input) {
  selector.choose(lanes, quota, input);
}
|| requires(const S& selector, std::span<ScoredLane> lanes, std::size_t quota,
            const ScoreInput& input, const Signal& signal) {
  selector.choose(lanes, quota, input, signal);
};

namespace detail {

/// The name of a recipe that changes another one: "AdaKV" over "Knorm" is "AdaKVKnorm".
template <const std::string_view& kFirst, const std::string_view& kSecond>
struct JoinedName {
  static constexpr std::array<char, kFirst.size() + kSecond.size()> kLetters = [] {
    std::array<char, kFirst.size() + kSecond.size()> letters{};
    // By index: pointers into a name that is joined itself are no constants in debug mode.
    for (std::size_t i = 0; i < letters.size(); ++i)
      letters[i] = i < kFirst.size() ? kFirst[i] : kSecond[i - kFirst.size()];
    return letters;
  }();
  static constexpr std::string_view kName{kLetters.data(), kLetters.size()};
};

}  // namespace detail

// What most recipes have in common; a recipe derives from one of these and says the rest.

/// Each prompt is cut once, at its end, per layer and KV head: the observation window stays, and so
/// does all that is decoded later.
struct CutsPrompts {
  template <class O>
  [[nodiscard]] static MaskScope scope(const O& /*options*/) noexcept {
    return MaskScope::kHead;
  }
  template <class O>
  [[nodiscard]] static Trigger trigger(const O& /*options*/) noexcept {
    return Trigger::kPrefillEnd;
  }
  template <class O>
  [[nodiscard]] static Protection protection(const O& options) noexcept {
    return {.recent_window = options.observation_window, .after_prompt = true};
  }
};

/// The cache is cut whenever it exceeds the budget, between the chunks of a prompt too; one set per
/// layer and KV head.
struct CutsEveryStep {
  template <class O>
  [[nodiscard]] static MaskScope scope(const O& /*options*/) noexcept {
    return MaskScope::kHead;
  }
  template <class O>
  [[nodiscard]] static Trigger trigger(const O& /*options*/) noexcept {
    return Trigger::kEveryStep;
  }
};

/// Options of a policy that scores what the cache holds and may cut it at any time.
struct CacheScoreOptions {
  Budget budget = 1024;              ///< tokens per KV head, protected ones included
  std::size_t num_sink_tokens = 0;   ///< first tokens that always stay
  std::size_t recent_window = 0;     ///< newest tokens that always stay
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
  CutSchedule schedule = {};         ///< how often to cut
};

/// The recipe of such a policy, but for its pipeline. Its options may have more fields than these.
struct CutsByCacheScore {
  using Options = CacheScoreOptions;

  template <class O>
  [[nodiscard]] static MaskScope scope(const O& /*options*/) noexcept {
    return MaskScope::kHead;
  }
  template <class O>
  [[nodiscard]] static Trigger trigger(const O& options) noexcept {
    if (options.only_at_prefill_end)
      return Trigger::kPrefillEnd;
    return options.schedule.cuts_prompts ? Trigger::kEveryStep : Trigger::kDecodeSteps;
  }
  template <class O>
  [[nodiscard]] static CutSchedule schedule(const O& options) noexcept {
    return options.schedule;
  }
  template <class O>
  [[nodiscard]] static Protection protection(const O& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens,
            .recent_window = options.recent_window,
            .after_prompt = options.only_at_prefill_end};
  }
  template <class O, class Visit>
  static void visit_options(O& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
    visit("only_at_prefill_end", options.only_at_prefill_end);
    visit("cuts_prompts", options.schedule.cuts_prompts);
    visit("decode_interval", options.schedule.decode_interval);
    visit("slack", options.schedule.slack);
  }
};

namespace detail {

/// An allocation that is known from the options; a table of lanes is copied.
class FixedAllocation {
 public:
  explicit FixedAllocation(const Allocation& fixed)
      : fixed_(fixed), lane_budgets_(fixed.lane_budgets.begin(), fixed.lane_budgets.end()) {}
  [[nodiscard]] Allocation allocation(const Sequence& /*sequence*/) const noexcept {
    Allocation given = fixed_;
    given.lane_budgets = lane_budgets_;
    return given;
  }

 private:
  Allocation fixed_;
  std::vector<std::size_t> lane_budgets_;
};

/// What a recipe refuses, where it refuses anything.
template <class R>
void check_recipe(const typename R::Options& options, const CacheShape& shape) {
  if constexpr (requires { R::check(options, shape); })
    R::check(options, shape);
}
// What a wrapper has to know of the recipe below it, so that it drops nothing in silence.

/// Says who gets how much, beyond options.budget for each lane.
template <class R>
concept Allocates = requires(const typename R::Options& options, const CacheShape& shape) {
  R::allocator(options, shape);
}
|| requires(const typename R::Options& options) {
  R::allocation(options);
};
/// Has a selection of its own.
template <class R>
concept Selects = requires(const typename R::Options& options) {
  R::selector(options);
};
/// Throws InvalidArgument naming `where` unless every KV head has a set of its own.
template <class R>
void check_single_heads(std::string_view where, const typename R::Options& options) {
  const MaskScope scope = R::scope(options);
  require(scope == MaskScope::kHead, where, "scope", static_cast<int>(scope),
          "must be one set per KV head");
}
/// Who gets how much by a recipe, whichever way it says so.
template <class R>
[[nodiscard]] auto allocator_of(const typename R::Options& options, const CacheShape& shape) {
  if constexpr (requires { R::allocator(options, shape); }) {
    return R::allocator(options, shape);
  } else if constexpr (requires { R::allocation(options); }) {
    return FixedAllocation(R::allocation(options));
  } else {
    return FixedAllocation({.budget = options.budget});
  }
}
/// Whether an allocator goes by the length of prompts; not where it does not say so.
template <class A>
[[nodiscard]] consteval bool is_of_prompts() {
  if constexpr (requires { A::kOfPrompts; }) {
    return A::kOfPrompts;
  } else {
    return false;
  }
}
/// A recipe's allocator whose allocations another recipe changes: edit(allocation, sequence).
template <class Base, class Edit>
class EditedAllocator {
 public:
  static constexpr bool kOfPrompts = is_of_prompts<Base>();

  EditedAllocator(Base base, Edit edit) : base_(std::move(base)), edit_(std::move(edit)) {}

  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept requires
      requires(const Base& base) {
    base.allocation(sequence);
  }
  { return edited(base_.allocation(sequence), sequence); }
  template <class S>
  [[nodiscard]] Allocation allocation(const Sequence& sequence,
                                      const S& signal) const noexcept requires
      requires(const Base& base) {
    base.allocation(sequence, signal);
  }
  { return edited(base_.allocation(sequence, signal), sequence); }
  [[nodiscard]] Protection protection(const Sequence& sequence) const noexcept requires
      requires(const Base& base) {
    base.protection(sequence);
  }
  {
    if constexpr (requires { edit_.protection(base_.protection(sequence)); }) {
      return edit_.protection(base_.protection(sequence));
    } else {
      return base_.protection(sequence);
    }
  }
  [[nodiscard]] auto state() noexcept requires requires(Base& base) { base.state(); }
  { return base_.state(); }
  void begin(const Sequence& sequence) requires requires(Base& base) { base.begin(sequence); }
  { base_.begin(sequence); }

 private:
  [[nodiscard]] Allocation edited(Allocation allocation, const Sequence& sequence) const noexcept {
    edit_(allocation, sequence);
    return allocation;
  }

  Base base_;
  Edit edit_;
};

/// Brings lanes together in other pools.
struct SetCompetition {
  Competition competition;
  void operator()(Allocation& allocation, const Sequence& /*sequence*/) const noexcept {
    allocation.competition = competition;
  }
};
struct SetThreshold {
  float threshold;
  void operator()(Allocation& allocation, const Sequence& /*sequence*/) const noexcept {
    allocation.threshold = threshold;
  }
};
/// Leaves a prompt whole until it is complete.
inline void keep_unfinished_prompt(Allocation& allocation, const Sequence& sequence) noexcept {
  if (sequence.in_prompt())
    allocation = {.budget = std::numeric_limits<std::size_t>::max()};
}

/// What a recipe's options say of how often to cut.
template <class R>
[[nodiscard]] CutSchedule schedule_of(const typename R::Options& options) noexcept {
  if constexpr (requires { R::schedule(options); }) {
    return R::schedule(options);
  } else {
    return {};
  }
}
/// Rows that a recipe's scores are the sum over; 1 where it does not say.
template <class R>
[[nodiscard]] double rows_summed(const typename R::Options& options) noexcept {
  if constexpr (requires { R::num_rows_summed(options); }) {
    return static_cast<double>(R::num_rows_summed(options));
  } else {
    return 1.0;
  }
}

/// Who stays by a recipe; an empty tuple where the best do.
template <class R>
[[nodiscard]] auto selector_of(const typename R::Options& options) {
  if constexpr (Selects<R>) {
    return R::selector(options);
  } else {
    return std::tuple<>();
  }
}

}  // namespace detail

/// The method that a recipe describes: Policy<Composed<SnapKVRecipe>> is a policy.
template <Recipe R>
class Composed {
 public:
  using Recipe = R;
  using Options = typename R::Options;
  using Parts =
      decltype(R::pipeline(std::declval<const Options&>(), std::declval<const CacheShape&>()));
  /// What scores come from, and what observes: the same, but where one is made of the other.
  using Scores = std::remove_cvref_t<decltype(std::declval<Parts&>().signal())>;
  using Signal = std::remove_cvref_t<decltype(detail::source_of(std::declval<Scores&>()))>;
  using Budgets = decltype(detail::allocator_of<R>(std::declval<const Options&>(),
                                                   std::declval<const CacheShape&>()));
  using Selection = decltype(detail::selector_of<R>(std::declval<const Options&>()));
  static constexpr std::string_view kName = R::kName;
  static constexpr Inputs kRequiredInputs =
      Parts::kRequiredInputs | detail::required_by<Selection>();
  static constexpr AttentionUse kAttentionUse = Parts::kAttentionUse;
  static constexpr bool kNeedsArtefact = detail::needs_artefact<R>();
  /// Whether positions alone say what stays.
  static constexpr bool kScoresNothing = std::same_as<Signal, EqualScores>;

  Composed(const Options& options, const CacheShape& shape)
      : options_((check(options, shape), options)),
        pipeline_(R::pipeline(options, shape)),
        allocator_(detail::allocator_of<R>(options, shape)),
        selector_(detail::selector_of<R>(options)) {
    if constexpr (requires { pipeline_.signal().scope(); })
      check_scope(pipeline_.signal().scope(), options);
  }

  /// What is read beside kRequiredInputs, where that is known from the options only.
  [[nodiscard]] Inputs added_inputs() const {
    if constexpr (requires { R::added_inputs(options_); }) {
      return R::added_inputs(options_);
    } else {
      return Inputs::kNothing;
    }
  }
  [[nodiscard]] MaskScope scope() const noexcept { return R::scope(options_); }
  [[nodiscard]] Trigger trigger() const noexcept { return R::trigger(options_); }
  [[nodiscard]] CutSchedule schedule() const noexcept { return detail::schedule_of<R>(options_); }
  [[nodiscard]] Protection protection(const Sequence& sequence) const noexcept {
    if constexpr (requires { allocator_.protection(sequence); }) {
      return allocator_.protection(sequence);
    } else {
      return R::protection(options_);
    }
  }
  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    Allocation given = allocation_of_recipe(sequence);
    if constexpr (requires { pipeline_.signal().keeps_unfinished_prompts(); }) {
      if (pipeline_.signal().keeps_unfinished_prompts())
        detail::keep_unfinished_prompt(given, sequence);
    }
    return given;
  }
  [[nodiscard]] bool below_threshold(const Sequence& sequence,
                                     const Allocation& given) const noexcept {
    if constexpr (requires { pipeline_.score_of(0, 0); }) {
      const auto score_of = [this](std::size_t lane, std::size_t slot) {
        return pipeline_.score_of(lane, slot);
      };
      return !pipeline_.signal_is_score() ||
             detail::any_below_threshold(sequence, given, protection(sequence), score_of);
    } else {
      return true;  // no score is known before a selection
    }
  }
  [[nodiscard]] auto state() noexcept {
    if constexpr (requires { allocator_.state(); }) {
      return std::tuple_cat(pipeline_.signal().state(), allocator_.state());
    } else {
      return pipeline_.signal().state();
    }
  }

  void begin(const Sequence& sequence) {
    if constexpr (requires { signal().begin(sequence); })
      signal().begin(sequence);
    if constexpr (requires { allocator_.begin(sequence); })
      allocator_.begin(sequence);
  }
  void end_prefill(const ScoreInput& input) requires requires(Signal& signal) {
    signal.end_prefill(input);
  }
  { signal().end_prefill(input); }
  void observe_labels(std::span<const TokenLabel> labels) requires requires(Signal& signal) {
    signal.observe_labels(labels);
  }
  { signal().observe_labels(labels); }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence, std::size_t layer) const
      requires(kAttentionUse != AttentionUse::kNone) {
    if (scored_layer(layer) != layer)
      return 0;
    if constexpr (requires { pipeline_.signal().wants_rows(sequence); }) {
      if (!pipeline_.signal().wants_rows(sequence))
        return 0;
    }
    return signal().wanted_rows(sequence, layer);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) requires(kAttentionUse !=
                                                                          AttentionUse::kNone &&
                                                                      kAttentionUse !=
                                                                          AttentionUse::kQueries) {
    return signal().observe_rows(rows, sequence, kernel);
  }
  std::size_t end_layer(std::size_t layer, const Sequence& sequence,
                        const kernels::KernelSet& kernel) requires requires(Signal& signal) {
    signal.end_layer(layer, sequence, kernel);
  }
  { return signal().end_layer(layer, sequence, kernel); }
  [[nodiscard]] bool wants_hidden(std::size_t layer) const noexcept requires
      requires(const Signal& signal) {
    signal.wants_hidden(layer);
  }
  { return signal().wants_hidden(layer); }
  std::size_t observe_hidden(std::size_t layer, const HiddenRows& rows, const Sequence& sequence,
                             const kernels::KernelSet& kernel) requires requires(Signal& signal) {
    signal.observe_hidden(layer, rows, sequence, kernel);
  }
  { return signal().observe_hidden(layer, rows, sequence, kernel); }
  std::size_t observe_query_rows(
      std::size_t layer, const QueryRows& rows, const Sequence& sequence, const ViewRef& view,
      const kernels::KernelSet& kernel) requires(kAttentionUse == AttentionUse::kQueries) {
    return signal().observe_query_rows(layer, rows, sequence, view, kernel);
  }
  std::size_t observe_cache(const ScoreInput& input) requires requires(Scores& scores) {
    scores.observe_cache(input);
  }
  { return pipeline_.signal().observe_cache(input); }
  [[nodiscard]] bool wants_cache(const Sequence& sequence) const noexcept requires
      requires(const Scores& scores) {
    scores.wants_cache(sequence);
  }
  { return pipeline_.signal().wants_cache(sequence); }
  [[nodiscard]] bool samples_step() const noexcept requires requires(const Scores& scores) {
    scores.samples_step();
  }
  { return pipeline_.signal().samples_step(); }
  void observe_scores(std::size_t layer, std::size_t kv_head, std::span<const float> scores,
                      std::size_t first_slot) requires requires(Signal& signal) {
    signal.observe_scores(layer, kv_head, scores, first_slot);
  }
  { signal().observe_scores(layer, kv_head, scores, first_slot); }

  [[nodiscard]] const Parts& parts() const noexcept { return pipeline_; }
  /// [seq_len] what the signal holds of each slot, for signals that say it.
  [[nodiscard]] std::span<const float> scores() const noexcept requires
      requires(const Signal& signal) {
    { signal.scores() } -> std::same_as<std::span<const float>>;
  }
  { return signal().scores(); }
  /// The same decisions as a StreamingTopK, where the recipe has them.
  [[nodiscard]] auto streaming() const requires requires(const Budgets& budgets) {
    R::streaming(budgets);
  }
  { return R::streaming(allocator_); }
  [[nodiscard]] const Budgets& allocator() const noexcept { return allocator_; }

  void score(const ScoreInput& input, std::size_t lane, std::span<float> out) const
      requires(!kScoresNothing) {
    const CacheShape& shape = input.sequence.shape();
    const std::size_t layer = shape.first_layer(scope(), lane);
    // The lanes of a layer lie side by side.
    const std::size_t lanes_before =
        (layer - scored_layer(layer)) * shape.num_lanes(scope()) / shape.num_layers;
    pipeline_.score(input, lane - lanes_before, out);
  }
  void normalise(std::span<ScoredLane> lanes, const ScoreInput& input) const {
    pipeline_.normalise(lanes, input);
  }
  /// Whether choose selects, where that is known from the options only.
  [[nodiscard]] bool chooses() const noexcept {
    if constexpr (requires { selector_.chooses(); }) {
      return selector_.chooses();
    } else {
      return Selector<Selection, Signal>;
    }
  }
  void choose(std::span<ScoredLane> lanes, std::size_t quota,
              const ScoreInput& input) const requires Selector<Selection, Signal> {
    if constexpr (requires { selector_.choose(lanes, quota, input, signal()); }) {
      selector_.choose(lanes, quota, input, signal());
    } else {
      selector_.choose(lanes, quota, input);
    }
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    R::visit_options(options, visit);
  }

 private:
  static void check(const Options& options, const CacheShape& shape) {
    if constexpr (requires {
                    options.only_at_prefill_end;
                    options.schedule;
                  }) {
      detail::require(!options.only_at_prefill_end || options.schedule.cuts_prompts, R::kName,
                      "cuts_prompts", 0, "must be 1 where only_at_prefill_end is");
    }
    detail::check_recipe<R>(options, shape);
    if constexpr (detail::is_of_prompts<Budgets>()) {
      detail::require(R::trigger(options) == Trigger::kPrefillEnd, R::kName, "trigger",
                      static_cast<int>(R::trigger(options)),
                      "must be kPrefillEnd: its allocator goes by the length of prompts");
    }
    // A signal of one set of tokens has one array for all lanes.
    if constexpr (requires { Signal::kScope; })
      check_scope(Signal::kScope, options);
  }
  static void check_scope(MaskScope of_signal, const Options& options) {
    detail::require(R::scope(options) == of_signal, R::kName, "scope",
                    static_cast<int>(R::scope(options)), "must be that of its signal");
  }

  static_assert(
      Allocator<Budgets, Signal>,
      "an allocator has allocation(sequence) const, or allocation(sequence, signal) const");
  static_assert(Selector<Selection, Signal> || std::same_as<Selection, std::tuple<>>,
                "a selector has choose(lanes, quota, input) const, or with the signal behind");
  // Optional members of a signal and of a recipe that have other parameters would be passed over.
  static_assert(
      !requires { &Signal::observe_cache; } ||
          requires(Signal & s, const ScoreInput& input) { s.observe_cache(input); },
      "a signal's observe_cache takes (ScoreInput)");
  static_assert(
      !requires { &Signal::observe_hidden; } ||
          requires(Signal & s, const HiddenRows& rows, const Sequence& sequence,
                   const kernels::KernelSet& kernel) {
            s.observe_hidden(std::size_t{}, rows, sequence, kernel);
            s.wants_hidden(std::size_t{});
          },
      "a signal's observe_hidden takes (layer, HiddenRows, Sequence, KernelSet), and there is "
      "wants_hidden(layer)");
  static_assert(
      !requires { &Signal::begin; } ||
          requires(Signal & s, const Sequence& sequence) { s.begin(sequence); },
      "a signal's begin takes (Sequence)");
  static_assert(
      !requires { &Signal::end_prefill; } ||
          requires(Signal & s, const ScoreInput& input) { s.end_prefill(input); },
      "a signal's end_prefill takes (ScoreInput)");
  static_assert(
      !requires { &Signal::end_layer; } ||
          requires(Signal & s, const Sequence& sequence, const kernels::KernelSet& kernel) {
            s.end_layer(std::size_t{}, sequence, kernel);
          },
      "a signal's end_layer takes (layer, Sequence, KernelSet)");
  static_assert(
      !requires { &R::selector; } || requires(const Options& o) { R::selector(o); },
      "a recipe's selector takes (options)");
  static_assert(
      !requires { &R::allocation; } || requires { &R::allocator; } ||
          requires(const Options& o) { R::allocation(o); },
      "a recipe's allocation takes (options)");
  static_assert(
      !requires { &R::allocator; } ||
          requires(const Options& o, const CacheShape& s) { R::allocator(o, s); },
      "a recipe's allocator takes (options, shape)");
  static_assert(
      !requires { &R::check; } ||
          requires(const Options& o, const CacheShape& s) { R::check(o, s); },
      "a recipe's check takes (options, shape)");
  static_assert(
      !requires { &R::schedule; } || requires(const Options& o) { R::schedule(o); },
      "a recipe's schedule takes (options)");
  static_assert(
      !requires { &R::num_rows_summed; } || requires(const Options& o) { R::num_rows_summed(o); },
      "a recipe's num_rows_summed takes (options)");
  static_assert(
      !requires { &R::scored_layer; } ||
          requires(const Options& o) { R::scored_layer(o, std::size_t{}); },
      "a recipe's scored_layer takes (options, layer)");
  static_assert(
      !requires { &R::added_inputs; } || requires(const Options& o) { R::added_inputs(o); },
      "a recipe's added_inputs takes (options)");

  [[nodiscard]] Allocation allocation_of_recipe(const Sequence& sequence) const noexcept {
    if constexpr (requires { allocator_.allocation(sequence, signal()); }) {
      return allocator_.allocation(sequence, signal());
    } else {
      return allocator_.allocation(sequence);
    }
  }
  [[nodiscard]] Signal& signal() noexcept { return detail::source_of(pipeline_.signal()); }
  [[nodiscard]] const Signal& signal() const noexcept {
    return detail::source_of(pipeline_.signal());
  }
  [[nodiscard]] std::size_t scored_layer(std::size_t layer) const noexcept {
    if constexpr (requires { R::scored_layer(options_, layer); }) {
      return R::scored_layer(options_, layer);
    } else {
      return layer;
    }
  }

  Options options_;
  Parts pipeline_;
  Budgets allocator_;
  [[no_unique_address]] Selection selector_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_COMPOSED_HPP_
