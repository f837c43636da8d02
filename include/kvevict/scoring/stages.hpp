#ifndef KVEVICT_SCORING_STAGES_HPP_
#define KVEVICT_SCORING_STAGES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/normalize.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

// Stages that look at scores alone.

/// Smooths every array over neighbouring slots.
struct Pool {
  Pooling pooling;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    if (pooling.kernel_size == 1)
      return;
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      const std::span<float> spare = scores.spare();
      const std::span<float> array = scores.array(i);
      std::copy(array.begin(), array.end(), spare.begin());
      pooling.apply(spare, input.kernel, array);
    }
  }
};

/// Every array times a constant.
struct Scale {
  float factor = 1.0F;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    for (std::size_t i = 0; i < scores.num_arrays(); ++i)
      input.kernel.scale(factor, scores.count(), scores.array(i).data());
  }
};

/// Every array divided by its sum, so that it can be read as a distribution over the tokens. Slots
/// that hold no token become 0 first (rule R9); scores that are not finite take nothing from the
/// others; an array whose sum is 0 stays as it is.
struct SumToOne {
  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    for (std::size_t head = 0; head < scores.num_heads(); ++head)
      scores.clear_invalid(head);
    for (std::size_t i = 0; i < scores.num_arrays(); ++i)
      divide_by_sum(finite_sum(scores.array(i)), scores.array(i));
  }
};

/// Brings the query heads of each KV head together (rule R10).
struct GroupReduction {
  GroupReduce reduce = GroupReduce::kMean;

  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    const std::size_t group = scores.arrays_per_head();
    for (std::size_t i = 0; i < scores.num_arrays(); ++i)
      reduce_group(reduce, i % group, group, scores.array(i), scores.array(i - i % group));
    scores.keep_one_per_head();
  }
};

/// Brings all arrays of a lane that stands for several heads together: their mean, maximum or sum.
struct HeadReduction {
  GroupReduce reduce = GroupReduce::kMean;

  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    for (std::size_t i = 0; i < scores.num_arrays(); ++i)
      reduce_group(reduce, i, scores.num_arrays(), scores.array(i), scores.array(0));
    scores.keep_one();
  }
};

/// Lifts every score to the mean of its array, so that what looks unimportant now is not ranked by
/// noise (DefensiveKV). Scores that are not finite take no part.
struct AtLeastMean {
  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      const std::span<float> array = scores.array(i);
      const auto finite = std::count_if(array.begin(), array.end(),
                                        [](float score) { return std::isfinite(score); });
      if (finite == 0)
        continue;
      const auto mean = static_cast<float>(finite_sum(array) / static_cast<double>(finite));
      for (float& score : array)
        score = score < mean ? mean : score;
    }
  }
};

/// Adds a constant to every score.
struct AddConstant {
  float constant = 0.0F;

  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    for (std::size_t i = 0; constant != 0.0F && i < scores.num_arrays(); ++i) {
      for (float& score : scores.array(i))
        score += constant;
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_STAGES_HPP_
