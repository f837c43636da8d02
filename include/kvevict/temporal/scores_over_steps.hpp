#ifndef KVEVICT_TEMPORAL_SCORES_OVER_STEPS_HPP_
#define KVEVICT_TEMPORAL_SCORES_OVER_STEPS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/temporal/refresh_steps.hpp"
#include "kvevict/temporal/sample_windows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What the scores s_1, s_2, .. that a token has in the steps since it came make together; s_1 is
/// that of the step that brought it. Sums, means, maxima and counts may be of a window of the last
/// ones.
enum class TemporalRule : std::uint8_t {
  kSingle,        ///< s_t
  kFrozen,        ///< s_1
  kEma,           ///< m_t = decay m_(t-1) + (1 - decay) s_t, m_1 = s_1
  kCumulative,    ///< s_1 + .. + s_t
  kLifetimeMean,  ///< (s_1 + .. + s_t) / t: all steps weigh alike, and age is no advantage
  kDecayedSum,    ///< m_t = decay m_(t-1) + s_t, m_1 = s_1
  kMax,           ///< the largest of s_1 .. s_t
  kCount,         ///< how many of s_1 .. s_t are above the threshold
  kLastTime,      ///< -(samples since the last one above the threshold, or since it came)
};

[[nodiscard]] constexpr auto enum_names(TemporalRule /*type*/) noexcept {
  return std::array<std::pair<std::string_view, TemporalRule>, 9>{
      {{"single", TemporalRule::kSingle},
       {"frozen", TemporalRule::kFrozen},
       {"ema", TemporalRule::kEma},
       {"cumulative", TemporalRule::kCumulative},
       {"lifetime_mean", TemporalRule::kLifetimeMean},
       {"decayed_sum", TemporalRule::kDecayedSum},
       {"max", TemporalRule::kMax},
       {"count", TemporalRule::kCount},
       {"last_time", TemporalRule::kLastTime}}};
}

/// A rule of this kind: next(before, sample, count) is the score after the count-th sample, which
/// is 2 or more; the first sample is the score itself. Optional: first(sample), what it makes of
/// the first sample instead; is_frozen(), true where next always gives `before`, so that later
/// samples need not be taken; window(), how many of the last samples make the score, 0 being all of
/// them: of_window(joined, count) of their number and of first(sample) of each, joined by join(a,
/// b).
template <class R>
concept StepRule = requires(const R& rule, float before, float sample, float count) {
  { rule.next(before, sample, count) } -> std::same_as<float>;
};

/// A TemporalRule as a StepRule.
struct NamedRule {
  TemporalRule rule = TemporalRule::kEma;
  double decay = 0.8;      ///< weight of the past in an EMA or a decayed sum, in [0, 1)
  float threshold = 0.0F;  ///< of kCount and kLastTime; behind z-scores 0 is the mean

  std::size_t window_len = 0;  ///< of kCumulative, kLifetimeMean, kMax and kCount: samples that
                               ///< make a score, at 4 bytes each per token; 0: all, at no bytes

  /// Throws InvalidArgument, naming `where` and the option, the last two behind `prefix`.
  void check(std::string_view where, const std::string& prefix = "") const {
    detail::require(decay >= 0.0 && decay < 1.0, where, "decay", decay, "must be in [0, 1)");
    detail::require(std::isfinite(threshold), where, prefix + "threshold", threshold,
                    "must be finite");
    detail::require(window_len == 0 || may_have_window(), where, prefix + "window", window_len,
                    "has a meaning for rule = cumulative, lifetime_mean, max and count alone");
    detail::require(window_len <= kLongestWindow, where, prefix + "window", window_len,
                    "must be at most 65536");
  }
  [[nodiscard]] bool is_frozen() const noexcept { return rule == TemporalRule::kFrozen; }
  [[nodiscard]] bool uses_decay() const noexcept {
    return rule == TemporalRule::kEma || rule == TemporalRule::kDecayedSum;
  }
  [[nodiscard]] bool uses_threshold() const noexcept {
    return rule == TemporalRule::kCount || rule == TemporalRule::kLastTime;
  }
  [[nodiscard]] std::size_t window() const noexcept { return window_len; }
  [[nodiscard]] float join(float a, float b) const noexcept {
    return rule == TemporalRule::kMax ? std::max(a, b) : a + b;
  }
  [[nodiscard]] float of_window(float joined, float count) const noexcept {
    return rule == TemporalRule::kLifetimeMean ? joined / count : joined;
  }
  [[nodiscard]] float first(float sample) const noexcept {
    if (rule == TemporalRule::kCount)
      return sample > threshold ? 1.0F : 0.0F;
    return rule == TemporalRule::kLastTime ? 0.0F : sample;
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
      case TemporalRule::kCount:
        return sample > threshold ? before + 1.0F : before;
      case TemporalRule::kLastTime:
        return sample > threshold ? 0.0F : before - 1.0F;
      case TemporalRule::kLifetimeMean:
        break;
    }
    return before + (sample - before) / count;
  }

 private:
  static constexpr std::size_t kLongestWindow = std::size_t{1} << 16U;

  [[nodiscard]] bool may_have_window() const noexcept {
    return rule == TemporalRule::kCumulative || rule == TemporalRule::kLifetimeMean ||
           rule == TemporalRule::kMax || rule == TemporalRule::kCount;
  }
};

namespace detail {

/// Whether a signal has something to see in observe_cache.
template <class S>
[[nodiscard]] constexpr bool wants_cache(const S& signal, const Sequence& sequence) noexcept {
  if constexpr (requires { signal.wants_cache(sequence); }) {
    return signal.wants_cache(sequence);
  } else {
    return requires(S & observer, const ScoreInput& input) {
      observer.observe_cache(input);
    };
  }
}

/// Whether a signal's scores are of the newest step alone.
template <class S>
[[nodiscard]] consteval bool forgets_steps() noexcept {
  if constexpr (requires { S::kForgetsSteps; }) {
    return S::kForgetsSteps;
  } else {
    return false;
  }
}

/// By slot, a score and how many samples it is made of. A new token's is -infinity, or, where it
/// may have to wait for its first sample, the mean of those that its lane has.
class SampledScores {
 public:
  static constexpr float kUnknown = -std::numeric_limits<float>::infinity();

  SampledScores(const CacheShape& shape, MaskScope scope, bool used, bool enter_at_mean)
      : num_entering_(used && enter_at_mean ? shape.num_lanes(scope) : 0),
        scores_(shape, scope, used ? 1 : 0),
        counts_(shape, scope, used ? 1 : 0) {}

  [[nodiscard]] std::span<float> scores(std::size_t lane) noexcept { return scores_.at(lane); }
  [[nodiscard]] std::span<const float> scores(std::size_t lane) const noexcept {
    return scores_.at(lane);
  }
  [[nodiscard]] std::span<float> counts(std::size_t lane) noexcept { return counts_.at(lane); }

  void append(std::size_t count) {
    scores_.append(count, kUnknown);
    counts_.append(count);
    for (std::size_t lane = 0; lane < num_entering_; ++lane) {
      const std::span<float> all = scores_.at(lane);
      const float entry = mean_of_known(all.first(all.size() - count));
      std::fill(all.end() - static_cast<std::ptrdiff_t>(count), all.end(), entry);
    }
  }
  void apply(const KeepMask& mask) {
    scores_.apply(mask);
    counts_.apply(mask);
  }
  void truncate(const Sequence& sequence) {
    scores_.truncate(sequence);
    counts_.truncate(sequence);
  }
  void reset() noexcept {
    scores_.reset();
    counts_.reset();
  }

 private:
  [[nodiscard]] static float mean_of_known(std::span<const float> scores) noexcept {
    double sum = 0.0;
    std::size_t known = 0;
    for (const float score : scores) {
      sum += score > kUnknown ? static_cast<double>(score) : 0.0;
      known += score > kUnknown ? 1 : 0;
    }
    return known == 0 ? kUnknown : static_cast<float>(sum / static_cast<double>(known));
  }

  std::size_t num_entering_;  // lanes whose new tokens enter at the mean
  SlotArray scores_;
  SlotArray counts_;
};

}  // namespace detail

/// A signal made of the scores that `Scorer`, a pipeline, gives step after step: [1, seq_len]. It
/// stands where a signal does, with stages behind it or none, and `Rule` is a NamedRule or a struct
/// of one's own:
///
///   static auto pipeline(const Options& options, const CacheShape& shape) {
///     return Pipeline(ScoresOverSteps(shape, scope(options), TOVARecipe::pipeline(options, shape),
///                                     NamedRule{.rule = TemporalRule::kMax}));
///   }
///
/// Wants observe_cache once in every step, behind the attention, hidden states and scores that the
/// scorer reads, which costs one run of the scorer; under kFrozen, where the scorer looks at each
/// token by itself, one over the new tokens. A prompt is one step, sampled at its end, whatever
/// chunks it came in, and stays whole until then; under kFrozen a chunk is one, so that it may be
/// cut before the next. Tokens that are appended together have one sample together. What the scorer
/// does over all lanes of a pool is done to the finished scores, not to the samples. Votes of a
/// prompt's window (AttentionUse::kWindow) come once a prompt: there are no steps to aggregate.
///
/// Samples may be taken in some steps alone (RefreshSteps; at a prompt's end always). In the others
/// scores stay, observe_cache is not wanted, and attention is only where the scorer accumulates it.
/// A new token then enters at the mean of its lane, as in InertiaKV, until it has a sample.
///
/// A sample that is not finite changes nothing (rule R19); a token that never had another one has
/// -infinity, goes first and is counted. A new token starts with its first sample (rule R20), under
/// kEma without a correction for its age. A rollback takes tokens back, not what the others' scores
/// took from steps with them.
///
/// Without a rule it is the scorer and nothing else.
///
/// State: two floats per cached token and lane, the score and how many samples it is made of; under
/// a rule with a window of W samples W + 1 more.
template <class Scorer, StepRule Rule = NamedRule>
class ScoresOverSteps {
 public:
  static constexpr Inputs kRequiredInputs = Scorer::kRequiredInputs;
  static constexpr AttentionUse kAttentionUse = Scorer::kAttentionUse;

  /// @param scope  of the policy's mask; Composed refuses another one
  ScoresOverSteps(const CacheShape& shape, MaskScope scope, Scorer scorer, std::optional<Rule> rule,
                  const RefreshSteps& refresh = {})
      : scope_(scope),
        scorer_(std::move(scorer)),
        rule_(std::move(rule)),
        refresh_(refresh),
        scores_(shape, scope, rule_.has_value(), !refresh.are_all()),
        windows_(shape, scope, window_of(rule_)) {}

  [[nodiscard]] Scorer& scorer() noexcept { return scorer_; }
  [[nodiscard]] const Scorer& scorer() const noexcept { return scorer_; }

  [[nodiscard]] MaskScope scope() const noexcept { return scope_; }
  /// Whether a cut before a prompt's end would be one without its sample.
  [[nodiscard]] bool keeps_unfinished_prompts() const noexcept {
    if constexpr (requires { scorer_.signal().keeps_unfinished_prompts(); }) {
      if (scorer_.signal().keeps_unfinished_prompts())
        return true;
    }
    return rule_ && !is_frozen();
  }
  [[nodiscard]] auto state() noexcept {
    return std::tuple_cat(scorer_.signal().state(), std::tie(scores_, windows_));
  }

  [[nodiscard]] bool wants_cache(const Sequence& sequence) const noexcept {
    return takes_sample(sequence) || detail::wants_cache(scorer_.signal(), sequence);
  }
  /// Whether what the scorer makes of this step's attention is looked at, now or later.
  [[nodiscard]] bool wants_rows(const Sequence& sequence) const noexcept {
    using Source = std::remove_cvref_t<decltype(scorer_.signal())>;
    if constexpr (requires { scorer_.signal().wants_rows(sequence); }) {
      return scorer_.signal().wants_rows(sequence);
    } else {
      return !rule_ || !detail::forgets_steps<Source>() || takes_sample(sequence);
    }
  }
  /// Whether observe_cache reads what the calls before it left.
  [[nodiscard]] bool samples_step() const noexcept { return rule_.has_value(); }
  std::size_t observe_cache(const ScoreInput& input) {
    std::size_t non_finite = 0;
    if constexpr (requires { scorer_.signal().observe_cache(input); })
      non_finite = scorer_.signal().observe_cache(input);
    if (!takes_sample(input.sequence) || (!is_frozen() && input.sequence.in_prompt()))
      return non_finite;
    for (std::size_t lane = 0; lane < input.sequence.num_lanes(); ++lane) {
      const std::span<float> scores = scores_.scores(lane);
      const std::span<float> counts = scores_.counts(lane);
      const std::size_t first_slot = is_frozen() ? num_known(counts) : 0;
      samples_.resize(std::max(samples_.size(), scores.size()));
      const std::span<float> samples(samples_.data(), scores.size());
      if (first_slot < scores.size())
        scorer_.score(input, lane, samples, first_slot);
      const Lane cache = LaneScores(input, lane).cache();
      for (std::size_t slot = first_slot; slot < scores.size(); ++slot) {
        if (!cache.has_token(slot)) {  // no sample, and no part of a mean (rule R9)
          scores[slot] = detail::SampledScores::kUnknown;
          continue;
        }
        if (!std::isfinite(samples[slot])) {
          ++non_finite;
          continue;
        }
        counts[slot] += 1.0F;
        scores[slot] = next(lane, slot, scores[slot], samples[slot], counts[slot]);
      }
    }
    return non_finite;
  }

  void score(const ScoreInput& input, LaneScores& scores) const {
    if (!rule_)
      return scorer_.fill(input, scores);
    scores.start_one(0, scores.seq_len());
    const std::span<const float> now = scores_.scores(scores.lane());
    std::copy(now.begin(), now.end(), scores.array(0).begin());
  }
  void normalise(std::span<ScoredLane> lanes, const ScoreInput& input) const {
    scorer_.normalise(lanes, input);
  }
  [[nodiscard]] bool is_score() const noexcept { return rule_ || scorer_.signal_is_score(); }
  /// The score of a slot, known before a selection; -infinity where it is not.
  [[nodiscard]] float score_of(std::size_t lane, std::size_t slot) const noexcept {
    if (rule_)
      return scores_.scores(lane)[slot];
    if constexpr (requires { scorer_.score_of(lane, slot); }) {
      return scorer_.score_of(lane, slot);
    } else {
      return detail::SampledScores::kUnknown;
    }
  }

 private:
  // Prompt tokens are always sampled, by themselves or at their end.
  [[nodiscard]] bool takes_sample(const Sequence& sequence) const noexcept {
    return rule_ && refresh_.renew_in_step(sequence);
  }
  // The newest tokens are the ones that may be missing.
  [[nodiscard]] static std::size_t num_known(std::span<const float> counts) noexcept {
    std::size_t known = counts.size();
    while (known > 0 && counts[known - 1] == 0.0F)
      --known;
    return known;
  }
  [[nodiscard]] static std::size_t window_of(const std::optional<Rule>& rule) noexcept {
    if constexpr (requires { rule->window(); }) {
      return rule ? rule->window() : 0;
    } else {
      return 0;
    }
  }
  [[nodiscard]] float next(std::size_t lane, std::size_t slot, float before, float sample,
                           float count) noexcept {
    if constexpr (requires { rule_->window(); }) {
      if (const std::size_t length = windows_.length(); length > 0) {
        const float joined =
            windows_.push(lane, slot, static_cast<std::size_t>(count) - 1, first(sample),
                          [&](float a, float b) { return rule_->join(a, b); });
        return rule_->of_window(joined, std::min(count, static_cast<float>(length)));
      }
    }
    return count > 1.0F ? rule_->next(before, sample, count) : first(sample);
  }
  [[nodiscard]] float first(float sample) const noexcept {
    if constexpr (requires { rule_->first(sample); }) {
      return rule_->first(sample);
    } else {
      return sample;
    }
  }
  [[nodiscard]] bool is_frozen() const noexcept {
    if constexpr (requires { rule_->is_frozen(); }) {
      return rule_->is_frozen();
    } else {
      return false;
    }
  }

  MaskScope scope_;
  Scorer scorer_;
  std::optional<Rule> rule_;
  RefreshSteps refresh_;
  detail::SampledScores scores_;
  SampleWindows windows_;
  std::vector<float> samples_;  // memory that is kept between calls
};

template <class Scorer, StepRule Rule>
ScoresOverSteps(const CacheShape&, MaskScope, Scorer, Rule) -> ScoresOverSteps<Scorer, Rule>;
template <class Scorer, StepRule Rule>
ScoresOverSteps(const CacheShape&, MaskScope, Scorer, std::optional<Rule>)
    -> ScoresOverSteps<Scorer, Rule>;
template <class Scorer, StepRule Rule>
ScoresOverSteps(const CacheShape&, MaskScope, Scorer, Rule, const RefreshSteps&)
    -> ScoresOverSteps<Scorer, Rule>;
template <class Scorer, StepRule Rule>
ScoresOverSteps(const CacheShape&, MaskScope, Scorer, std::optional<Rule>, const RefreshSteps&)
    -> ScoresOverSteps<Scorer, Rule>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_SCORES_OVER_STEPS_HPP_
