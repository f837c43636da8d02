#ifndef KVEVICT_TESTS_SUPPORT_TURNED_SCORES_HPP_
#define KVEVICT_TESTS_SUPPORT_TURNED_SCORES_HPP_

#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/types.hpp"

namespace kvevict_test {

/// Second scores for selections of two stages: the first with the sign turned, so that the worst
/// are the best.
struct TurnedScores {
  static constexpr kvevict::Inputs kRequiredInputs = kvevict::Inputs::kNothing;

  template <class Input>
  void rescore(const Input& /*input*/, const kvevict::ScoredLane& lane) const {
    for (float& score : lane.scores)
      score = -score;
  }
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_TURNED_SCORES_HPP_
