#ifndef KVEVICT_POLICIES_POLICY_HPP_
#define KVEVICT_POLICIES_POLICY_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/counters.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/eviction_policy.hpp"
#include "kvevict/core/executor.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/token_label.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/call_checks.hpp"
#include "kvevict/policies/workers.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/selection/pool_selection.hpp"
#include "kvevict/selection/projection.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// When a policy wants to cut.
enum class Trigger : std::uint8_t {
  kEveryStep,    ///< whenever a lane exceeds its budget, between chunks of a prompt too
  kDecodeSteps,  ///< the same, but never inside a prompt
  kPrefillEnd,   ///< once after each prompt
};

/// How often a policy cuts: each cut costs a pass over the cache and moves memory. It only says
/// when should_evict is true; a selection always goes down to the budget.
struct CutSchedule {
  bool cuts_prompts = true;         ///< false: the prompt stays whole until something is decoded,
                                    ///< for a policy that takes over from another one at its end
  std::size_t decode_interval = 1;  ///< behind a prompt, cut in every such step alone, counted in
                                    ///< tokens since the prompt; ask in every step. RefreshSteps
                                    ///< says how this meets scores that not every step renews
  std::size_t slack = 0;  ///< tokens per KV head above the budget that may gather before a cut, at
                          ///< the end of a prompt too
};

/// What a method has to say for Policy<Method> to be a policy: its options and the stages of its
/// composition. Everything that has a life over steps and slots is listed by state(), so the
/// driver renumbers, rolls back and forgets it; a method has no lifecycle of its own.
///
/// Optional members, each used where it exists. What it observes; [n]: returns how many samples
/// were not finite:
///
///   begin(sequence)               a prompt begins
///   wanted_rows(sequence, layer)  how many of the newest rows; all but AttentionUse::kNone need it
///   observe_rows(group_rows, sequence, kernel) [n]
///                                 attention rows of one KV head; all but kNone and kQueries need
///                                 it
///   observe_query_rows(layer, queries, sequence, view, kernel) [n]
///                                 in its place for AttentionUse::kQueries
///   end_layer(layer, sequence, kernel) [n]
///                                 the rows or queries of a layer came
///   observe_hidden(layer, rows, sequence, kernel) [n]
///                                 hidden states; with wants_hidden(layer)
///   observe_cache(input) [n]      K and V of the step are in the cache; once a step; with
///                                 wants_cache(sequence) where not every step does, and
///                                 samples_step() where it reads what the calls before it left
///   observe_scores(layer, kv_head, scores, first_slot)
///                                 scores that something else worked out
///   observe_labels(labels)        kinds of the newest tokens
///   end_prefill(input)            a prompt is complete
///
/// What it decides, const all of it; score may be called for several lanes at a time, and works in
/// input.scratch alone:
///
///   score(input, lane, out)       without it every candidate is equal
///   normalise(lanes, input)       over all lanes of a pool, before selection
///   choose(lanes, quota, input)   a selection of its own; with chooses() where the options say
///                                 whether
///   schedule()                    a CutSchedule
///   below_threshold(sequence, allocation)
///                                 whether a token may have to go for its score alone, where the
///                                 allocation has a threshold
///
/// What it says of itself:
///
///   added_inputs()                what the options add to kRequiredInputs
///   kChangesLength                false: nothing ever goes
///   kNeedsArtefact                true: see Policy
template <class Method>
concept PolicyMethod = requires(Method& method, const Method& constant, const Sequence& sequence) {
  typename Method::Options;
  { Method::kName } -> std::convertible_to<std::string_view>;
  { Method::kRequiredInputs } -> std::convertible_to<Inputs>;
  { Method::kAttentionUse } -> std::convertible_to<AttentionUse>;
  { constant.scope() } -> std::same_as<MaskScope>;
  { constant.trigger() } -> std::same_as<Trigger>;
  { constant.protection(sequence) } -> std::same_as<Protection>;
  { constant.allocation(sequence) } -> std::same_as<Allocation>;
  method.state();
};

namespace detail {

/// What a method or a recipe says of itself; false where it says nothing.
template <class M>
[[nodiscard]] consteval bool needs_artefact() {
  if constexpr (requires { M::kNeedsArtefact; }) {
    return static_cast<bool>(M::kNeedsArtefact);
  } else {
    return false;
  }
}

/// Whether a state keeps a fixed number of samples, so that one more pushes out another for good.
template <class State>
[[nodiscard]] constexpr bool forgets_oldest(const State& /*state*/) noexcept {
  if constexpr (requires { State::kForgetsOldest; }) {
    return State::kForgetsOldest;
  } else {
    return false;
  }
}

}  // namespace detail

/// An eviction policy for one sequence: the life of a cache, the same for every method.
///
///   begin -> [append, observe_*]... -> end_prefill -> ([append, observe_*], should_evict,
///   select, apply)... -> truncate / begin again / reset
///
/// Copying the object forks the sequence. One object per sequence and thread. The constructor
/// throws InvalidArgument, and so does a call that does not fit the calls before it or whose shapes
/// do not fit, by checks of O(lanes) at most.
template <PolicyMethod Method>
class Policy {
  template <class M>
  static constexpr bool kScores = requires(M& m, const ScoreInput& input, std::span<float> out) {
    m.score(input, std::size_t{}, out);
  };
  template <class M>
  static constexpr bool kNormalises = requires(M& m, const ScoreInput& input,
                                               std::span<ScoredLane> lanes) {
    m.normalise(lanes, input);
  };
  template <class M>
  static constexpr bool kChooses = requires(M& m, const ScoreInput& input,
                                            std::span<ScoredLane> lanes) {
    m.choose(lanes, std::size_t{}, input);
  };
  static_assert(kScores<Method> == kScores<const Method> &&
                    kNormalises<Method> == kNormalises<const Method> &&
                    kChooses<Method> == kChooses<const Method>,
                "score, normalise and choose must be const: select changes nothing (rule R11)");

 public:
  using Options = typename Method::Options;
  static constexpr std::string_view kName = Method::kName;
  static constexpr Inputs kRequiredInputs = Method::kRequiredInputs;
  static constexpr AttentionUse kAttentionUse = Method::kAttentionUse;
  /// Whether the cache gets shorter than the text. Positions never change: what stays keeps its
  /// own.
  static constexpr bool kChangesLength = [] {
    if constexpr (requires { Method::kChangesLength; }) {
      return static_cast<bool>(Method::kChangesLength);
    } else {
      return true;
    }
  }();
  /// Whether it takes something that was made offline for the model to be the published method:
  /// tables of gates, ratios or budgets, filters, statistics of queries, calibrated thresholds.
  /// Weights and RoPE frequencies are no such thing: an engine has them.
  static constexpr bool kNeedsArtefact = detail::needs_artefact<Method>();

  /// Throws InvalidArgument naming the method, the field and its value.
  Policy(const Options& options, const CacheShape& shape,
         const kernels::KernelSet& kernel = kernels::best())
      : shape_((detail::check_shape(shape, kName), shape)),
        kernel_(&kernel),
        method_(options, shape),
        sequence_(kName, shape, method_.scope()),
        max_rollback_(rollback_of(options, method_)),
        scored_(wants_scores() ? shape.num_layers : 0) {
    detail::require(schedule().decode_interval > 0, kName, "decode_interval",
                    schedule().decode_interval, "must be > 0");
    const std::size_t table = method_.allocation(sequence_).lane_budgets.size();
    detail::require(table == 0 || table == sequence_.num_lanes(), kName, "lane_budgets.size()",
                    table, "must be the number of sets");
    detail::check_allocation(method_.allocation(sequence_), method_.protection(sequence_), shape,
                             kName);
  }

  /// Runs what takes long on `executor` from now on: attention rows from queries, by KV head, and
  /// the scores of a selection, by lane; a set for the whole model is one lane. Masks, scores and
  /// counters are the same with any number of workers, bit for bit. Each worker takes scratch of
  /// its own (for rows from queries 64 floats per slot), and views are read by all of them at a
  /// time: lane() and load_row too. A copy runs on the same executor.
  void use_executor(Executor executor) { workers_.use_executor(std::move(executor)); }

  /// Announces a prompt of `prompt_len` tokens, the first or a further one of the sequence.
  /// `pinned` positions always stay, even where they alone exceed the budget: nothing else does
  /// then (counted in budget_not_reached). A prompt that is fed in one piece needs no append.
  void begin(std::size_t prompt_len, std::span<const PositionSpan> pinned = {}) {
    close_step();
    sequence_.begin(prompt_len, pinned);
    prefill_ended_ = false;
    if constexpr (requires { method_.begin(sequence_); })
      method_.begin(sequence_);
  }

  /// `count` tokens were written to the end of every lane: a chunk of a prompt, a decode step, or
  /// several drafted tokens. Comes before the observe calls of the same step. Drafted tokens leave
  /// no trace of those that are rejected if the accepted ones are appended after verification, with
  /// rows and a view of that length alone.
  void append(std::size_t count) {
    close_step();
    sequence_.append(count);
    each_state([&](auto& state) { state.append(count); });
    ++counters_.steps;
    observed_.assign(shape_.num_layers, 0);
    cache_observed_ = false;
    step_open_ = true;
  }

  /// What this policy reads: kRequiredInputs, and what its options add.
  [[nodiscard]] Inputs required_inputs() const {
    if constexpr (requires { method_.added_inputs(); }) {
      return kRequiredInputs | method_.added_inputs();
    } else {
      return kRequiredInputs;
    }
  }

  /// Whether a token of a prompt may go. Where none does, the blocks of a prompt stay whole, may be
  /// shared with other sequences, and can be found again as a prefix.
  [[nodiscard]] bool touches_prompt() const {
    return kChangesLength && (!protection().prompt || protection().prompt_gives_way);
  }
  /// What stays whatever its score, pinned positions aside: what a fair control has to keep, too.
  /// Of what is a share of the prompt it is known from `begin` on.
  [[nodiscard]] Protection protection() const { return method_.protection(sequence_); }
  /// How many tokens truncate takes back without loss to what is remembered of those before them.
  /// It takes back any number; of more the doc of the option `max_rollback` says what is missing. 0
  /// where the newest rows or queries are remembered and new ones push out the oldest. What
  /// accumulated scores took from the tokens stays in any case.
  [[nodiscard]] std::size_t max_rollback() const noexcept { return max_rollback_; }

  /// How many of the newest tokens' attention rows this step needs of `layer`; 0: none.
  [[nodiscard]] std::size_t wanted_attention_rows(std::size_t layer) const {
    if constexpr (kAttentionUse == AttentionUse::kNone) {
      return 0;
    } else {
      return std::min(step_len(), method_.wanted_rows(sequence_, layer));
    }
  }
  [[nodiscard]] bool wants_attention(std::size_t layer) const {
    return wanted_attention_rows(layer) > 0;
  }
  /// Whether the hidden states after block `layer` are needed.
  [[nodiscard]] bool wants_hidden(std::size_t layer) const {
    if constexpr (requires { method_.wants_hidden(layer); }) {
      return method_.wants_hidden(layer);
    } else {
      return false;
    }
  }

  /// Softmax rows of the newest tokens. More rows than wanted may be given; the newest are used.
  void observe_attention(std::size_t layer, const AttentionRows& rows) requires(
      kAttentionUse != AttentionUse::kNone && kAttentionUse != AttentionUse::kQueries) {
    checks().check_layer(layer);
    append_implied();
    const std::size_t wanted = wanted_attention_rows(layer);
    if (wanted == 0 || observed_[layer] != 0)
      return;
    check_cache_comes_later();
    checks().check_rows(rows, wanted, longest_lane(layer));
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
      visit_given_rows(rows, shape_, layer, head, sequence_.seq_len(layer, head),
                       sequence_.length(), wanted,
                       [&](const GroupRows& group) { observe_group(group); });
    }
    end_layer(layer);
  }
  /// Queries of the newest tokens, whose rows are computed from the view: the same as handing
  /// over the rows.
  template <KvCacheView View>
  void observe_queries(std::size_t layer, const QueryRows& queries,
                       const View& view) requires(kAttentionUse != AttentionUse::kNone) {
    checks().check_layer(layer);
    append_implied();
    const std::size_t wanted = wanted_attention_rows(layer);
    if (wanted == 0 || observed_[layer] != 0)
      return;
    check_cache_comes_later();
    checks().check_rows(queries, wanted);
    const ViewRef ref = as_view_ref(view);
    checks().check_layer_of(ref, layer, Inputs::kKeys);
    note_left_padding(ref, layer);
    if constexpr (kAttentionUse == AttentionUse::kQueries) {
      counters_.non_finite +=
          method_.observe_query_rows(layer, newest_rows(queries, wanted), sequence_, ref, *kernel_);
    } else {
      const std::size_t non_finite =
          workers_.make_rows(queries, shape_, layer, ref, sequence_.length(), wanted, *kernel_,
                             [&](const GroupRows& group) { observe_group(group); });
      counters_.non_finite += non_finite;
    }
    end_layer(layer);
  }
  /// Hidden states of the newest tokens after block `layer`.
  void observe_hidden(std::size_t layer, const HiddenRows& rows) requires
      requires(Method& m, const Sequence& s, const kernels::KernelSet& k) {
    m.observe_hidden(layer, rows, s, k);
  }
  {
    checks().check_layer(layer);
    append_implied();
    if (step_len() == 0)
      return;
    check_cache_comes_later();
    checks().check_hidden(rows);
    counters_.non_finite += method_.observe_hidden(layer, rows, sequence_, *kernel_);
  }

  /// What kind of tokens the newest ones are, at most those of the step; for policies that keep
  /// some kinds. Does nothing for the others.
  void observe_labels(std::span<const TokenLabel> labels) {
    if constexpr (wants_labels()) {
      append_implied();
      detail::require(labels.size() <= sequence_.step_len(), kName, "labels.size()", labels.size(),
                      "must not exceed the tokens of the step");
      method_.observe_labels(labels);
    }
  }
  /// Whether observe_labels does anything.
  [[nodiscard]] static constexpr bool wants_labels() noexcept {
    return requires(Method & m, std::span<const TokenLabel> labels) {
      m.observe_labels(labels);
    };
  }

  /// The newest tokens' K and V of every layer are in the cache: once a step, after its attention,
  /// for policies that score the cache in each of them. Does nothing for the others.
  template <KvCacheView View>
  void observe_cache(const View& view) {
    if constexpr (kObservesCache) {
      if (!wants_cache())
        return;
      append_implied();
      if (step_len() == 0)
        return;
      const ViewRef ref = as_view_ref(view);
      checks().check_view(ref, required_inputs());
      cache_observed_ = true;
      note_left_padding(ref, 0);
      counters_.non_finite +=
          method_.observe_cache(ScoreInput{ref, sequence_, *kernel_, workers_.scratch()});
    }
  }
  /// Whether observe_cache does anything in this step: no longer once it did.
  [[nodiscard]] bool wants_cache() const noexcept {
    if (cache_observed_ && sequence_.implied_append() == 0)
      return false;
    if constexpr (requires { method_.wants_cache(sequence_); }) {
      return method_.wants_cache(sequence_);
    } else {
      return kObservesCache;
    }
  }

  /// Whether scores are needed of something else.
  [[nodiscard]] static constexpr bool wants_scores() noexcept {
    return requires(Method & m, std::span<const float> scores) {
      m.observe_scores(std::size_t{}, std::size_t{}, scores, std::size_t{});
    };
  }
  /// Scores of the slots [first_slot, first_slot + scores.size()) of one KV head, higher = keep,
  /// which something else worked out: a learned scorer, a gradient, a second pass over the text
  /// (ReplayScores). At any time, under a temporal rule before the step's observe_cache, and as
  /// often as there is something new; the latest word counts and goes with its token through apply
  /// and truncate.
  void observe_scores(std::size_t layer, std::size_t kv_head, std::span<const float> scores,
                      std::size_t first_slot = 0) requires(wants_scores()) {
    checks().check_layer(layer);
    checks().check_head(kv_head);
    append_implied();
    check_cache_comes_later();
    checks().check_scores(layer, kv_head, first_slot, scores.size());
    method_.observe_scores(layer, kv_head, scores, first_slot);
    scored_[layer] = 1;
  }

  /// The prompt is complete and attended, and all of it in the view. Throws InvalidArgument, and
  /// changes nothing, if it is not or if none was begun since the last.
  template <KvCacheView View>
  void end_prefill(const View& view) {
    detail::require(sequence_.prompt_open(), kName, "begin calls", 0,
                    "before end_prefill; 1 is needed");
    const auto ref = as_view_ref(view);
    checks().check_view(ref, required_inputs(), sequence_.pending_prompt());
    if (sequence_.pending_prompt() > 0)
      append(sequence_.pending_prompt());
    close_step();
    sequence_.end_prompt();
    sequence_.note_prompt_padding(padding_of(ref.lane(0, 0)));
    if constexpr (requires(const ScoreInput& input) { method_.end_prefill(input); })
      method_.end_prefill(ScoreInput{ref, sequence_, *kernel_, workers_.scratch()});
    prefill_ended_ = sequence_.prompt().last > sequence_.prompt().first;  // else nothing to cut
  }

  /// Whether it is time to select: the cache exceeds its budget, and slack and interval of the
  /// schedule, if it has one, are used up. Cheap; needs no view. Where protected entries alone
  /// exceed the budget, select may then find nothing to evict.
  [[nodiscard]] bool should_evict() const {
    if (!triggered())
      return false;
    const Allocation given = allocation();
    return detail::exceeds_budget(sequence_, given, method_.protection(sequence_),
                                  schedule().slack) ||
           (given.has_threshold() && below_threshold(given));
  }

  /// What to keep, to be executed after every layer of the step attended. Changes nothing but
  /// scratch memory (rule R11); the mask is valid until the next call on this object.
  template <KvCacheView View>
  [[nodiscard]] const KeepMask& select(const View& view) const {
    run_selection(view, false);
    return selection_.mask();
  }
  /// The same as the engine can execute it: one set for several heads or layers, whole pages,
  /// equal lengths. The mask is valid until the projection's next use. Apply this object, not a
  /// copy: a copy of it leaves some counters at 0. A method that selects by itself goes by what it
  /// selected first, and by its scores between equals.
  template <KvCacheView View>
  [[nodiscard]] const KeepMask& select(const View& view, Projection& projection) const {
    run_selection(view, true);
    projected_ = &projection.run(selection_.mask(), selection_.lanes(),
                                 selection_.protected_slots(), selection_.unused_budget());
    return *projected_;
  }

  /// The mask was executed: the one place where slots are renumbered. A mask that speaks for
  /// several lanes of this policy is accepted. Throws if its lengths do not fit. What was marked as
  /// not valid is gone with it: the view's next validity mask is about the slots that are left.
  void apply(const KeepMask& mask) {
    checks().check_mask(mask);
    close_step();
    // A mask that select did not make, or not last, has no report.
    const PoolSelection::Report report = &mask == projected_ || mask == selection_.mask()
                                             ? selection_.report()
                                             : PoolSelection::Report{};
    projected_ = nullptr;
    counters_.evicted += mask.total_evicted();
    counters_.kept = mask.total_count();
    counters_.protected_entries = report.protected_entries;
    counters_.non_finite += report.non_finite;
    counters_.budget_not_reached += report.budget_not_reached ? 1 : 0;
    ++counters_.firings;
    for (std::uint8_t& scored : scored_) {
      counters_.missing_signals += scored == 0 ? 1 : 0;
      scored = 0;
    }
    for (std::size_t lane = 0; lane < sequence_.num_lanes(); ++lane) {
      sequence_.note_evicted_padding(
          lane, selection_.evicted_padding(lane, mask.words(sequence_.mask_lane(mask, lane))));
    }
    sequence_.apply(mask);
    each_state([&](auto& state) { state.apply(mask); });
    selection_.forget_padding();
    prefill_ended_ = false;
  }

  /// Forgets every token at position `new_length` and later (speculative decoding, an edit); what
  /// accumulated scores, those of an observation window too, took from them stays. Before
  /// end_prefill a prompt of which something is left goes on: append again what was taken back. One
  /// of which nothing is left is to be begun again. Throws if `new_length` exceeds length().
  void truncate(std::size_t new_length) {
    close_step();
    sequence_.truncate(new_length);
    each_state([&](auto& state) { state.truncate(sequence_); });
    selection_.forget_padding();
  }
  /// Back to the state after construction, memory kept: the next request.
  void reset() {
    sequence_.reset();
    each_state([](auto& state) { state.reset(); });
    selection_.forget_padding();
    prefill_ended_ = false;
    step_open_ = false;
    cache_observed_ = false;
    std::fill(scored_.begin(), scored_.end(), std::uint8_t{0});
    counters_ = {};
  }

  /// Tokens seen, evicted ones included.
  [[nodiscard]] std::size_t length() const noexcept { return sequence_.length(); }
  [[nodiscard]] const Sequence& sequence() const noexcept { return sequence_; }
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
  [[nodiscard]] const Method& method() const noexcept { return method_; }

 private:
  static constexpr bool kObservesCache = requires(Method & m, const ScoreInput& input) {
    m.observe_cache(input);
  };

  template <KvCacheView View>
  void run_selection(const View& view, bool for_projection) const {
    projected_ = nullptr;
    const auto ref = as_view_ref(view);
    checks().check_view(ref, required_inputs());
    const ScoreInput input{ref, sequence_, *kernel_, workers_.scratch()};
    const auto score = [&](ScoredLane& lane, std::size_t worker) {
      if constexpr (kScores<const Method>) {
        method_.score({ref, sequence_, *kernel_, workers_.scratch(worker), lane.candidates},
                      lane.lane, lane.scores);
      } else {
        std::fill(lane.scores.begin(), lane.scores.end(), 0.0F);
      }
    };
    const auto normalise = [&](std::span<ScoredLane> lanes) {
      if constexpr (kNormalises<const Method>) {
        method_.normalise(lanes, input);
      }
    };
    const auto choose = [&](std::span<ScoredLane> lanes, std::size_t quota) {
      if constexpr (kChooses<const Method>) {
        method_.choose(lanes, quota, input);
      }
    };
    selection_.run(sequence_, ref, allocation(), method_.protection(sequence_), score, normalise,
                   chooses() ? PoolSelection::Choose(choose) : PoolSelection::Choose(),
                   for_projection, workers_.executor());
    // The mask of such a policy says more about a slot than its score.
    if (for_projection && (!kScores<const Method> || chooses()))
      selection_.score_by_mask(kScores<const Method>);
    workers_.share_sizes();
  }

  [[nodiscard]] static std::size_t rollback_of(const Options& options, Method& method) noexcept {
    if constexpr (requires { options.max_rollback; }) {
      return options.max_rollback;
    } else {
      const bool forgets =
          std::apply([](const auto&... state) { return (detail::forgets_oldest(state) || ...); },
                     method.state());
      return forgets ? 0 : std::numeric_limits<std::size_t>::max();
    }
  }
  [[nodiscard]] bool chooses() const noexcept {
    if constexpr (requires { method_.chooses(); }) {
      return method_.chooses();
    } else {
      return kChooses<const Method>;
    }
  }

  template <class Visit>
  void each_state(Visit&& visit) {
    std::apply([&](auto&... state) { (visit(state), ...); }, method_.state());
  }
  void append_implied() {
    if (const std::size_t count = sequence_.implied_append(); count > 0)
      append(count);
  }
  [[nodiscard]] std::size_t step_len() const noexcept {
    const std::size_t implied = sequence_.implied_append();
    return implied > 0 ? implied : sequence_.step_len();
  }
  // A share of a prompt that is still coming is not known: a cut between its chunks would depend on
  // them.
  [[nodiscard]] Allocation allocation() const {
    Allocation allocation = method_.allocation(sequence_);
    if (sequence_.in_prompt() && allocation.budget.is_share())
      allocation.budget = std::numeric_limits<std::size_t>::max();
    return allocation;
  }
  [[nodiscard]] bool triggered() const noexcept {
    switch (method_.trigger()) {
      case Trigger::kPrefillEnd:
        return prefill_ended_;
      case Trigger::kDecodeSteps:
        return sequence_.num_decoded() > 0 && interval_ends();
      case Trigger::kEveryStep:
        break;
    }
    return sequence_.num_decoded() == 0 || interval_ends();
  }
  [[nodiscard]] CutSchedule schedule() const noexcept {
    if constexpr (requires { method_.schedule(); }) {
      return method_.schedule();
    } else {
      return {};
    }
  }
  // Whether something may have to go for its score alone.
  [[nodiscard]] bool below_threshold(const Allocation& given) const noexcept {
    if constexpr (requires { method_.below_threshold(sequence_, given); }) {
      return method_.below_threshold(sequence_, given);
    } else {
      return true;
    }
  }
  // Whether the step reached a multiple of the interval, or passed it with several tokens.
  [[nodiscard]] bool interval_ends() const noexcept {
    const std::size_t interval = schedule().decode_interval;
    const std::size_t decoded = sequence_.num_decoded();
    const std::size_t in_step = sequence_.length() - sequence_.step_begin();
    return interval == 1 || decoded / interval > (decoded - std::min(decoded, in_step)) / interval;
  }
  [[nodiscard]] static QueryRows newest_rows(QueryRows queries, std::size_t wanted) noexcept {
    queries.data = queries.row(0, queries.num_rows - wanted);
    queries.num_rows = wanted;
    return queries;
  }
  void observe_group(const GroupRows& group) {
    counters_.non_finite += method_.observe_rows(group, sequence_, *kernel_);
  }
  // Counts the layers whose attention the step wanted and nobody handed over.
  void close_step() {
    if (!step_open_)
      return;
    step_open_ = false;
    if (wants_cache())
      ++counters_.missing_signals;
    if constexpr (kAttentionUse != AttentionUse::kNone) {
      for (std::size_t layer = 0; layer < shape_.num_layers; ++layer) {
        if (observed_[layer] == 0 && wants_attention(layer))
          ++counters_.missing_signals;
      }
    }
  }
  void end_layer(std::size_t layer) {
    observed_[layer] = 1;
    if constexpr (requires { method_.end_layer(layer, sequence_, *kernel_); }) {
      counters_.non_finite += method_.end_layer(layer, sequence_, *kernel_);
    }
  }
  [[nodiscard]] std::size_t longest_lane(std::size_t layer) const noexcept {
    std::size_t longest = 0;
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
      longest = std::max(longest, sequence_.seq_len(layer, head));
    }
    return longest;
  }
  [[nodiscard]] static std::size_t padding_of(const Lane& lane) noexcept {
    const auto valid = lane.valid.first(std::min(lane.valid.size(), lane.seq_len));
    return static_cast<std::size_t>(std::count(valid.begin(), valid.end(), std::uint8_t{0}));
  }
  // Left padding of a prompt that is being fed, which its rows and samples are not to count.
  void note_left_padding(const ViewRef& view, std::size_t layer) {
    if (!sequence_.prompt_open())
      return;
    const Lane lane = view.lane(layer, 0);
    std::size_t padding = 0;
    while (padding < std::min(lane.valid.size(), lane.seq_len) && lane.valid[padding] == 0)
      ++padding;
    sequence_.note_prompt_padding(padding, shape_.lane_of(sequence_.scope(), layer, 0));
  }
  // Samples would lack what comes behind them.
  void check_cache_comes_later() const {
    if constexpr (requires { method_.samples_step(); }) {
      detail::require(!cache_observed_ || !method_.samples_step(), kName, "observe_cache", 1,
                      "must come after what the scores of the step are made of");
    }
  }
  [[nodiscard]] detail::CallChecks checks() const noexcept { return {kName, shape_, sequence_}; }

  CacheShape shape_;
  const kernels::KernelSet* kernel_;
  Method method_;
  Sequence sequence_;
  Counters counters_;
  std::size_t max_rollback_;
  bool prefill_ended_ = false;          // end_prefill came, no mask was applied since
  bool step_open_ = false;              // appended, and nothing since that ends the step
  bool cache_observed_ = false;         // in the newest step
  std::vector<std::uint8_t> observed_;  // [num_layers] attention of the open step
  std::vector<std::uint8_t> scored_;    // [num_layers] since the newest firing; empty: not wanted
  mutable detail::Workers workers_;     // memory kept between calls
  mutable PoolSelection selection_;
  mutable const KeepMask* projected_ = nullptr;  // by the newest select; compared, never read
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_POLICY_HPP_
