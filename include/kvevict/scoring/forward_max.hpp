#ifndef KVEVICT_SCORING_FORWARD_MAX_HPP_
#define KVEVICT_SCORING_FORWARD_MAX_HPP_

#include "kvevict/config.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// x[i] becomes the largest of x[i .. i + width), as far as there are any: what leads to an
/// important token is as important. NaN is left out; where there is nothing else it stays.
inline void forward_max(std::size_t width, std::span<float> x) noexcept {
  for (std::size_t i = 0; i < x.size(); ++i) {
    float largest = x[i];
    for (std::size_t j = i + 1; j < std::min(x.size(), i + width); ++j) {
      if (x[j] > largest || largest != largest)
        largest = x[j];
    }
    x[i] = largest;
  }
}

/// The same of every array; a slot that holds no token adds nothing to others (rule R9).
struct ForwardMax {
  std::size_t width = 7;  ///< slots, its own included; 1: nothing happens

  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    for (std::size_t head = 0; head < scores.num_heads(); ++head)
      scores.clear_invalid(head, std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = 0; i < scores.num_arrays(); ++i)
      forward_max(width, scores.array(i));
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_FORWARD_MAX_HPP_
