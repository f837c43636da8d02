#ifndef KVEVICT_TEMPORAL_SCORES_OVER_STEPS_HPP_
#define KVEVICT_TEMPORAL_SCORES_OVER_STEPS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What the scores s_1, s_2, .. that a token has in the steps since it came make together; s_1 is
/// that of the step that brought it.
enum class TemporalRule : std::uint8_t {
  kSingle,        ///< s_t
  kFrozen,        ///< s_1
  kEma,           ///< m_t = decay m_(t-1) + (1 - decay) s_t, m_1 = s_1
  kCumulative,    ///< s_1 + .. + s_t
  kLifetimeMean,  ///< (s_1 + .. + s_t) / t: all steps weigh alike, and age is no advantage
  kDecayedSum,    ///< m_t = decay m_(t-1) + s_t, m_1 = s_1
  kMax,           ///< the largest of s_1 .. s_t
};

[[nodiscard]] constexpr auto enum_names(TemporalRule /*type*/) noexcept {
  return std::array<std::pair<std::string_view, TemporalRule>, 7>{
      {{"single", TemporalRule::kSingle},
       {"frozen", TemporalRule::kFrozen},
       {"ema", TemporalRule::kEma},
       {"cumulative", TemporalRule::kCumulative},
       {"lifetime_mean", TemporalRule::kLifetimeMean},
       {"decayed_sum", TemporalRule::kDecayedSum},
       {"max", TemporalRule::kMax}}};
}

/// A rule of this kind: next(before, sample, count) is the score after the count-th sample, which
/// is 2 or more; the first sample is the score itself. Optional: is_frozen(), true where next
/// always gives `before`, so that later samples need not be taken.
template <class R>
concept StepRule = requires(const R& rule, float before, float sample, float count) {
  { rule.next(before, sample, count) } -> std::same_as<float>;
};

/// A TemporalRule as a StepRule.
struct NamedRule {
  TemporalRule rule = TemporalRule::kEma;
  double decay = 0.8;  ///< weight of the past in an EMA or a decayed sum, in [0, 1)

  /// Throws InvalidArgument, naming `where`.
  void check(std::string_view where) const {
    detail::require(decay >= 0.0 && decay < 1.0, where, "decay", decay, "must be in [0, 1)");
  }
  [[nodiscard]] bool is_frozen() const noexcept { return rule == TemporalRule::kFrozen; }
  [[nodiscard]] bool uses_decay() const noexcept {
    return rule == TemporalRule::kEma || rule == TemporalRule::kDecayedSum;
  }
  [[nodiscard]] float next(float before, float sample, float count) const noexcept {
    const auto kept = static_cast<float>(decay);
    switch (rule) {
      case TemporalRule::kSingle:
        return sample;
      case TemporalRule::kFrozen:
        return before;
      case TemporalRule::kEma:
        return kept * before + (1.0F - kept) * sample;
      case TemporalRule::kCumulative:
        return before + sample;
      case TemporalRule::kDecayedSum:
        return kept * before + sample;
      case TemporalRule::kMax:
        return std::max(before, sample);
      case TemporalRule::kLifetimeMean:
        break;
    }
    return before + (sample - before) / count;
  }
};

namespace detail {

/// Whether a signal has something to see in observe_cache.
template <class S>
[[nodiscard]] constexpr bool wants_cache(const S& signal) noexcept {
  if constexpr (requires { signal.wants_cache(); }) {
    return signal.wants_cache();
  } else {
    return requires(S & observer, const ScoreInput& input) {
      observer.observe_cache(input);
    };
  }
}

}  // namespace detail

/// A signal made of the scores that `Scorer`, a pipeline, gives step after step: [1, seq_len].
/// Wants observe_cache once in every step, behind the attention of all layers where the scorer
/// reads some, which costs one run of the scorer; under kFrozen, where the scorer looks at each
/// token by itself, one over the new tokens. A prompt is one step, sampled at its end, whatever
/// chunks it came in; under kFrozen a chunk is, so that it may be cut before the next. Tokens that
/// are appended together have one sample together. What the scorer does over all lanes of a pool
/// is done to the finished scores, not to the samples.
///
/// A sample that is not finite changes nothing (rule R19); a token that never had another one has
/// -infinity, goes first and is counted. A new token starts with its first sample (rule R20), under
/// kEma without a correction for its age. A rollback takes tokens back, not what the others' scores
/// took from steps with them.
///
/// Without a rule it is the scorer and nothing else.
///
/// State: two floats per cached token and lane, the score and how many samples it is made of.
template <class Scorer, StepRule Rule = NamedRule>
class ScoresOverSteps {
 public:
  static constexpr Inputs kRequiredInputs = Scorer::kRequiredInputs;
  static constexpr AttentionUse kAttentionUse = Scorer::kAttentionUse;

  /// @param scope  of the policy's mask
  ScoresOverSteps(const CacheShape& shape, MaskScope scope, Scorer scorer, std::optional<Rule> rule)
      : scorer_(std::move(scorer)), rule_(std::move(rule)), scores_(shape, scope, rule_ ? 2 : 0) {}

  [[nodiscard]] Scorer& scorer() noexcept { return scorer_; }
  [[nodiscard]] const Scorer& scorer() const noexcept { return scorer_; }

  [[nodiscard]] auto state() noexcept {
    return std::tuple_cat(scorer_.signal().state(), std::tie(scores_));
  }

  [[nodiscard]] bool wants_cache() const noexcept {
    return rule_ || detail::wants_cache(scorer_.signal());
  }
  /// Whether observe_cache reads what attention left.
  [[nodiscard]] bool samples_attention() const noexcept {
    return rule_ && kAttentionUse != AttentionUse::kNone;
  }
  std::size_t observe_cache(const ScoreInput& input) {
    std::size_t non_finite = 0;
    if constexpr (requires { scorer_.signal().observe_cache(input); })
      non_finite = scorer_.signal().observe_cache(input);
    if (!rule_ || (!is_frozen() && input.sequence.in_prompt()))
      return non_finite;
    for (std::size_t lane = 0; lane < input.sequence.num_lanes(); ++lane) {
      const std::span<float> scores = scores_.at(lane);
      const std::span<float> counts = scores_.at(lane, 1);
      const std::size_t first = is_frozen() ? num_known(counts) : 0;
      samples_.resize(std::max(samples_.size(), scores.size()));
      const std::span<float> samples(samples_.data(), scores.size());
      if (first < scores.size())
        scorer_.score(input, lane, samples, first);
      for (std::size_t slot = first; slot < scores.size(); ++slot) {
        if (!std::isfinite(samples[slot])) {
          ++non_finite;
          continue;
        }
        counts[slot] += 1.0F;
        scores[slot] = counts[slot] > 1.0F ? rule_->next(scores[slot], samples[slot], counts[slot])
                                           : samples[slot];
      }
    }
    return non_finite;
  }

  void score(const ScoreInput& input, LaneScores& scores) const {
    if (!rule_)
      return scorer_.fill(input, scores);
    scores.start(0, scores.seq_len(), 1);
    scores.keep_one();
    const std::span<float> out = scores.array(0);
    for (std::size_t slot = 0; slot < out.size(); ++slot)
      out[slot] = score_of(scores.lane(), slot);
  }
  void normalise(std::span<ScoredLane> lanes, const ScoreInput& input) const {
    scorer_.normalise(lanes, input);
  }
  [[nodiscard]] bool is_score() const noexcept { return rule_ || scorer_.signal_is_score(); }
  /// The score of a slot, known before a selection; -infinity where it is not.
  [[nodiscard]] float score_of(std::size_t lane, std::size_t slot) const noexcept {
    if (rule_)
      return scores_.at(lane, 1)[slot] > 0.0F ? scores_.at(lane)[slot] : kUnknown;
    if constexpr (requires { scorer_.score_of(lane, slot); }) {
      return scorer_.score_of(lane, slot);
    } else {
      return kUnknown;
    }
  }

 private:
  static constexpr float kUnknown = -std::numeric_limits<float>::infinity();

  // The newest tokens are the ones that may be missing.
  [[nodiscard]] static std::size_t num_known(std::span<const float> counts) noexcept {
    std::size_t known = counts.size();
    while (known > 0 && counts[known - 1] == 0.0F)
      --known;
    return known;
  }
  [[nodiscard]] bool is_frozen() const noexcept {
    if constexpr (requires { rule_->is_frozen(); }) {
      return rule_->is_frozen();
    } else {
      return false;
    }
  }

  Scorer scorer_;
  std::optional<Rule> rule_;
  SlotArray scores_;            // and, second, how many samples they are made of
  std::vector<float> samples_;  // memory that is kept between calls
};

template <class Scorer, StepRule Rule>
ScoresOverSteps(const CacheShape&, MaskScope, Scorer, Rule) -> ScoresOverSteps<Scorer, Rule>;
template <class Scorer, StepRule Rule>
ScoresOverSteps(const CacheShape&, MaskScope, Scorer, std::optional<Rule>)
    -> ScoresOverSteps<Scorer, Rule>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_SCORES_OVER_STEPS_HPP_
