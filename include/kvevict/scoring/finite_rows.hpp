#ifndef KVEVICT_SCORING_FINITE_ROWS_HPP_
#define KVEVICT_SCORING_FINITE_ROWS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// A token whose key or value is not finite scores NaN, so that it goes first and is counted (rule
/// R4), where what comes before would hide it. A pass over K and one over V.
struct FiniteRowsOnly {
  static constexpr Inputs kRequiredInputs = Inputs::kKeys | Inputs::kValues;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const Lane lane = scores.cache(head);
      for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
        const std::span<float> norms = scores.spare();
        row_norms(rows_of(lane, part), dim_of(input.sequence.shape(), part), scores.first(),
                  scores.first() + scores.count(), input.kernel,
                  input.scratch.vector(LaneScores::kFirstFree), norms);
        for (std::size_t i = 0; i < norms.size(); ++i) {
          const bool valid = lane.has_token(scores.first() + i);
          if (!valid || std::isfinite(norms[i]))
            continue;
          for (std::size_t a = 0; a < scores.arrays_per_head(); ++a) {
            scores.array(head * scores.arrays_per_head() + a)[i] =
                std::numeric_limits<float>::quiet_NaN();
          }
        }
      }
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_FINITE_ROWS_HPP_
