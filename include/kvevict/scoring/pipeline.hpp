#ifndef KVEVICT_SCORING_PIPELINE_HPP_
#define KVEVICT_SCORING_PIPELINE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <concepts>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

// How a policy says what a token is worth: a signal and stages, written in the order in which data
// passes them, since the order is part of the method:
//
//   WindowAttention(kName, shape, {.window = 32}) | Pool(pooling) |
//   GroupReduction(GroupReduce::kMean)
//
// A scorer of your own is one struct that fulfils Signal or Stage. Under an executor several lanes
// are scored at a time: score() and apply() change nothing but their LaneScores and input.scratch.

/// Where scores come from. score() fills the arrays of one lane; what it keeps over steps is listed
/// by state(). Optional: what the observe members of a PolicyMethod are; kForgetsSteps, true
/// where every step starts it over; kScope, where it has one array whatever the lanes are, for
/// recipes of that scope alone. A signal that is made of another pipeline (ScoresOverSteps)
/// gives it by scorer(), which is what observes, and may say by wants_rows(sequence) in which
/// steps, by scope() of which recipes alone it may be a part, and by keeps_unfinished_prompts()
/// that no prompt is to be cut before it is complete.
template <class S>
concept Signal = requires(S& signal, const S& constant, const ScoreInput& input,
                          LaneScores& scores) {
  { S::kRequiredInputs } -> std::convertible_to<Inputs>;
  { S::kAttentionUse } -> std::convertible_to<AttentionUse>;
  signal.state();
  constant.score(input, scores);
};

/// A step on the way: changes the arrays of one lane. Optional: is_idle(), true where its options
/// make it change nothing.
template <class S>
concept LaneStage = requires(const S& stage, const ScoreInput& input, LaneScores& scores) {
  stage.apply(input, scores);
};
/// A step over the finished scores of all lanes that compete; comes after every LaneStage.
template <class S>
concept PoolWideStage = requires(const S& stage, const ScoreInput& input,
                                 std::span<ScoredLane> lanes) {
  stage.apply_to_pool(input, lanes);
};
template <class S>
concept Stage = LaneStage<S> || PoolWideStage<S>;

/// A signal and the stages behind it.
template <Signal S, Stage... Stages>
class Pipeline {
 public:
  static constexpr Inputs kRequiredInputs =
      (detail::required_by<S>() | ... | detail::required_by<Stages>());
  static constexpr AttentionUse kAttentionUse = S::kAttentionUse;

  explicit Pipeline(S signal, Stages... stages)
      : signal_(std::move(signal)), stages_(std::move(stages)...) {}

  [[nodiscard]] S& signal() noexcept { return signal_; }
  [[nodiscard]] const S& signal() const noexcept { return signal_; }

  /// Scores of one lane, [seq_len]. Those before `first_wanted` may come out as 0.
  void score(const ScoreInput& input, std::size_t lane, std::span<float> out,
             std::size_t first_wanted = 0) const {
    // A stage may look at all slots.
    LaneScores scores(input, lane, out, signal_is_score() ? first_wanted : 0);
    fill(input, scores);
    scores.finish();
  }
  /// The same while they are several arrays.
  void fill(const ScoreInput& input, LaneScores& scores) const {
    signal_.score(input, scores);
    std::apply([&](const Stages&... stages) { (apply(stages, input, scores), ...); }, stages_);
  }
  /// Whether no stage changes what the signal says.
  [[nodiscard]] bool signal_is_score() const noexcept {
    bool is_score = true;
    if constexpr (requires(const S& signal) { signal.is_score(); })
      is_score = signal_.is_score();
    return is_score &&
           std::apply([](const Stages&... stages) { return (is_idle(stages) && ...); }, stages_);
  }
  /// The score of one slot where signal_is_score(), known before a selection.
  [[nodiscard]] float score_of(std::size_t lane, std::size_t slot) const noexcept
      requires(requires(const S& signal) { signal.score_of(0, 0); }) {
    return signal_.score_of(lane, slot);
  }
  /// What follows once all lanes of a pool have scores.
  void normalise(std::span<ScoredLane> lanes, const ScoreInput& input) const {
    if constexpr (requires(const S& signal) { signal.normalise(lanes, input); })
      signal_.normalise(lanes, input);
    std::apply([&](const Stages&... stages) { (apply(stages, input, lanes), ...); }, stages_);
  }

  template <Stage T>
  friend auto operator|(Pipeline pipeline, T stage) {
    return std::apply(
        [&](Stages&... stages) {
          return Pipeline<S, Stages..., T>(std::move(pipeline.signal_), std::move(stages)...,
                                           std::move(stage));
        },
        pipeline.stages_);
  }

 private:
  template <class T>
  [[nodiscard]] static bool is_idle(const T& stage) noexcept {
    if constexpr (requires { stage.is_idle(); }) {
      return stage.is_idle();
    } else {
      return false;
    }
  }
  template <class T>
  static void apply(const T& stage, const ScoreInput& input, LaneScores& scores) {
    if constexpr (LaneStage<T>)
      stage.apply(input, scores);
  }
  template <class T>
  static void apply(const T& stage, const ScoreInput& input, std::span<ScoredLane> lanes) {
    if constexpr (PoolWideStage<T>)
      stage.apply_to_pool(input, lanes);
  }

  S signal_;
  std::tuple<Stages...> stages_;
};

namespace detail {

/// The signal that observes: of one that is made of a pipeline, that pipeline's.
template <class S>
[[nodiscard]] constexpr auto& source_of(S& signal) noexcept {
  if constexpr (requires { signal.scorer(); }) {
    return source_of(signal.scorer().signal());
  } else {
    return signal;
  }
}

}  // namespace detail

template <Signal S, Stage T>
[[nodiscard]] Pipeline<S, T> operator|(S signal, T stage) {
  return Pipeline<S, T>(std::move(signal), std::move(stage));
}

/// `stage` where `condition` holds, nothing otherwise: an option that switches a stage.
template <Stage S>
struct When {
  static constexpr Inputs kRequiredInputs = detail::required_by<S>();

  bool condition;
  S stage;

  [[nodiscard]] bool is_idle() const noexcept { return !condition; }
  void apply(const ScoreInput& input, LaneScores& scores) const requires LaneStage<S> {
    if (condition)
      stage.apply(input, scores);
  }
  void apply_to_pool(const ScoreInput& input,
                     std::span<ScoredLane> lanes) const requires PoolWideStage<S> {
    if (condition)
      stage.apply_to_pool(input, lanes);
  }
};

template <Stage S>
[[nodiscard]] When<S> when(bool condition, S stage) {
  return {condition, std::move(stage)};
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_PIPELINE_HPP_
