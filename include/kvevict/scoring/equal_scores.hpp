#ifndef KVEVICT_SCORING_EQUAL_SCORES_HPP_
#define KVEVICT_SCORING_EQUAL_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// All the same: for policies that protect what they keep. Composed asks for no scores then, and a
/// Projection goes by the mask.
struct EqualScores {
  static constexpr Inputs kRequiredInputs = Inputs::kNothing;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  [[nodiscard]] std::tuple<> state() const noexcept { return {}; }

  void score(const ScoreInput& /*input*/, LaneScores& scores) const { scores.start_one(0, 0); }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_EQUAL_SCORES_HPP_
