#ifndef KVEVICT_TEMPORAL_VARIANCE_TREND_HPP_
#define KVEVICT_TEMPORAL_VARIANCE_TREND_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/token_variance.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"
#include "kvevict/temporal/frozen_scores.hpp"
#include "kvevict/temporal/rolling_window.hpp"

#include <cmath>
#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// A signal that scores decoded tokens by the variance of their keys (values) over channels, mean
/// over layers and KV heads (token_variances): the mean of the last `window` decoded tokens with
/// itself, frozen when the token comes. For one set of tokens for the whole model: [1, seq_len].
///
/// Wants observe_cache once per decode step. A variance that is not finite enters no mean and its
/// token scores 0.
template <KvPart kPart>
class VarianceTrend {
 public:
  static constexpr Inputs kRequiredInputs =
      kPart == KvPart::kKeys ? Inputs::kKeys : Inputs::kValues;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;
  static constexpr MaskScope kScope = MaskScope::kModel;

  /// @param window  > 0
  VarianceTrend(const CacheShape& shape, std::size_t window, std::size_t max_rollback)
      : window_(window, max_rollback), scores_(shape) {}

  [[nodiscard]] auto state() noexcept { return std::tie(window_, scores_); }

  std::size_t observe_cache(const ScoreInput& input) {
    step_scores_.assign(decoded_in_step(input.sequence), 0.0F);
    const std::size_t first = input.sequence.seq_len(0) - step_scores_.size();
    token_variances(input.view, kPart, first, input.kernel, input.scratch, step_scores_);
    std::size_t position = input.sequence.length() - step_scores_.size();
    std::size_t non_finite = 0;
    for (float& score : step_scores_) {
      const bool finite = std::isfinite(score);
      if (finite)
        window_.push(position, static_cast<double>(score));
      score = finite ? static_cast<float>(window_.mean()) : 0.0F;
      non_finite += finite ? 0 : 1;
      ++position;
    }
    scores_.set_newest(step_scores_);
    return non_finite;
  }

  /// [seq_len] score of each slot; -infinity where none was given, as for prompt tokens.
  [[nodiscard]] std::span<const float> scores() const noexcept { return scores_.values(); }
  void score(const ScoreInput& input, LaneScores& scores) const {
    scores_.load(input.sequence, scores);
  }

 private:
  RollingWindow window_;
  FrozenScores scores_;
  std::vector<float> step_scores_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_VARIANCE_TREND_HPP_
