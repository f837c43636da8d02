#ifndef KVEVICT_SCORING_CRITICAL_SCORES_HPP_
#define KVEVICT_SCORING_CRITICAL_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/stages.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// The size of the value side of every slot of a lane, [seq_len], the mean over the query heads
/// that the lane stands for; 0 where a slot holds no token. Lies in scratch buffer 0.
[[nodiscard]] inline std::span<const float> lane_value_norms(const ScoreInput& input,
                                                             std::size_t lane, ValueFactor norm,
                                                             const OutputProjection* projection) {
  LaneScores norms(input, lane);
  norms.start(0, norms.seq_len(), 1);
  for (std::size_t head = 0; head < norms.num_heads(); ++head) {
    const std::span<const float> of_head =
        value_factors(input, norms, head, norm, GroupReading::kMeanNorms, projection);
    std::copy(of_head.begin(), of_head.end(), norms.array(head).begin());
    norms.clear_invalid(head);
  }
  HeadReduction{GroupReduce::kMean}.apply(input, norms);
  return norms.array(0);
}

/// Finished scores s become (s + epsilon) times the size of the projected value, the mean over the
/// query heads that the lane stands for: the second scores of CriticalKV.
struct CriticalScores {
  static constexpr Inputs kRequiredInputs = Inputs::kValues | Inputs::kOutputProjection;

  float epsilon = 1e-4F;  ///< lets tokens without attention compete by their values
  ValueFactor norm = ValueFactor::kProjectedL1;
  std::shared_ptr<const OutputProjection> projection = nullptr;

  void rescore(const ScoreInput& input, const ScoredLane& lane) const {
    const std::span<const float> norm_of =
        lane_value_norms(input, lane.lane, norm, projection.get());
    for (std::size_t slot = 0; slot < norm_of.size(); ++slot)
      lane.scores[slot] = (lane.scores[slot] + epsilon) * norm_of[slot];
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_CRITICAL_SCORES_HPP_
