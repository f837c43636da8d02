#ifndef KVEVICT_SELECTION_TWO_STAGE_HPP_
#define KVEVICT_SELECTION_TWO_STAGE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// A share of the budget goes to the best tokens by their scores, the rest to the best of the
/// others by second scores: second.rescore(input, lane) writes them over the first.
template <class Second>
struct TwoStage {
  static constexpr Inputs kRequiredInputs = Second::kRequiredInputs;

  Budget first_share = Budget::keep_ratio(0.5);  ///< rounded down, but not to 0 (rule R6)
  std::size_t counted = 0;  ///< protected entries per lane that the share is of, too, and that the
                            ///< first stage has then chosen already
  Second second = {};

  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input) const {
    const std::size_t held = counted * lanes.size();
    const std::size_t share = first_share.tokens_of(quota + held);
    const std::size_t first = std::min(share - std::min(share, held), quota);
    select_top_k(lanes, first);
    for (ScoredLane& lane : lanes) {
      for (std::size_t w = 0; w < lane.keep.size(); ++w)
        lane.candidates[w] &= ~lane.keep[w];
      second.rescore(input, lane);
    }
    select_top_k(lanes, quota - first);
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_TWO_STAGE_HPP_
