#ifndef KVEVICT_SCORING_STAGES_HPP_
#define KVEVICT_SCORING_STAGES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/normalize.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

// Stages that look at scores alone.

/// Smooths every array over neighbouring slots. A slot that holds no token is an edge, like the
/// sequence's own, and becomes 0 (rule R9).
struct Pool {
  Pooling pooling;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    if (pooling.kernel_size == 1)
      return;
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      const std::span<float> spare = scores.spare();
      const std::span<float> array = scores.array(i);
      std::copy(array.begin(), array.end(), spare.begin());
      pooling.apply(spare, scores.valid(i), input.kernel, array);
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

/// Every array as z-scores: (score - mean) / deviation, both of the slots that may be chosen,
/// deviation with the divisor n. Two passes in double: scores may have much in common. What is not
/// finite is left out and stays as it is.
struct StandardScores {
  double least_deviation = 1e-6;  ///< divides where all are as good as equal

  void apply(const ScoreInput& input, LaneScores& scores) const {
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      const std::span<float> array = scores.array(i);
      std::span<float> rivals = rivals_of(input, scores, i);
      double sum = input.kernel.sum(rivals.data(), rivals.size());
      if (!std::isfinite(sum)) {  // in double, which sums of floats do not leave
        const auto end = std::remove_if(rivals.begin(), rivals.end(),
                                        [](float score) { return !std::isfinite(score); });
        rivals = rivals.first(static_cast<std::size_t>(end - rivals.begin()));
        sum = input.kernel.sum(rivals.data(), rivals.size());
      }
      const auto count = static_cast<double>(std::max<std::size_t>(1, rivals.size()));
      const double mean = sum / count;
      // The length of what is left of them, which has no square that could overflow.
      input.kernel.standardise(mean, 1.0, rivals.size(), rivals.data());
      float length = 0.0F;
      input.kernel.row_norms({rivals.data(), 0, 1, rivals.size(), ElementType::kF32}, &length);
      const double deviation = static_cast<double>(length) / std::sqrt(count);
      input.kernel.standardise(mean, 1.0 / std::max(deviation, least_deviation), array.size(),
                               array.data());
    }
  }

 private:
  // The scores of an array's slots that may be chosen, side by side.
  [[nodiscard]] static std::span<float> rivals_of(const ScoreInput& input, const LaneScores& scores,
                                                  std::size_t i) {
    const std::span<const float> array = scores.array(i);
    const std::span<const std::uint8_t> valid = scores.cache(scores.head_of(i)).valid;
    const std::span<float> rivals = scores.spare();
    std::size_t count = 0;
    for (std::size_t at = 0; at < array.size();) {
      const std::size_t slot = scores.first() + at;
      if (valid.empty() && slot % 64 == 0 && at + 64 <= array.size() &&
          (input.candidates.empty() || input.candidates[slot / 64] == ~std::uint64_t{0})) {
        std::copy_n(array.data() + at, 64, rivals.data() + count);
        count += 64;
        at += 64;
        continue;
      }
      const bool counts = input.may_be_chosen(slot) && (valid.empty() || valid[slot] != 0);
      rivals[count] = array[at++];  // without a branch: overwritten where it does not count
      count += counts ? 1 : 0;
    }
    return rivals.first(count);
  }
};

/// Brings the query heads of each KV head together (rule R10).
struct GroupReduction {
  GroupReduce reduce = GroupReduce::kMean;

  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    const std::size_t group = scores.arrays_per_head();
    for (std::size_t i = 0; i < scores.num_arrays() && group > 1; ++i)
      reduce_group(reduce, i % group, group, scores.array(i), scores.array(i - i % group));
    scores.keep_one_per_head();
  }
};

/// Brings all arrays of a lane that stands for several heads together: their mean, maximum or sum.
struct HeadReduction {
  GroupReduce reduce = GroupReduce::kMean;
  std::size_t first_layer = 0;  ///< layers before it have no part, in a lane that has later ones

  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    std::size_t first = 0;
    while (first + 1 < scores.num_arrays() && scores.layer(scores.head_of(first)) < first_layer)
      ++first;
    const std::size_t count = scores.num_arrays() - first;
    for (std::size_t i = 0; i < count && scores.num_arrays() > 1; ++i)
      reduce_group(reduce, i, count, scores.array(first + i), scores.array(0));
    scores.keep_one();
  }
};

/// Lifts every score to the mean of its array, so that what looks unimportant now is not ranked by
/// noise (DefensiveKV). Scores that are not finite take no part, nor do slots that hold no token
/// (rule R9).
struct AtLeastMean {
  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    for (std::size_t head = 0; head < scores.num_heads(); ++head)
      scores.clear_invalid(head, std::numeric_limits<float>::quiet_NaN());
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

/// The mean over the layers from `first_layer` on of each KV head's scores, slot by slot, for lanes
/// that are KV heads of all layers and share their tokens over layers.
struct MeanOverLayers {
  std::size_t first_layer = 0;

  void apply_to_pool(const ScoreInput& input, std::span<ScoredLane> lanes) const {
    const std::size_t num_heads = input.sequence.shape().num_kv_heads;
    const std::size_t all_layers = lanes.size() / num_heads;
    const auto num_layers = static_cast<double>(all_layers - first_layer);
    for (std::size_t head = 0; head < num_heads; ++head) {
      // All as long as the first, unless masks of another policy were applied.
      std::size_t len = lanes[head].scores.size();
      for (std::size_t l = head; l < lanes.size(); l += num_heads)
        len = std::min(len, lanes[l].scores.size());
      for (std::size_t slot = 0; slot < len; ++slot) {
        double sum = 0.0;
        for (std::size_t l = first_layer * num_heads + head; l < lanes.size(); l += num_heads)
          sum += static_cast<double>(lanes[l].scores[slot]);
        for (std::size_t l = head; l < lanes.size(); l += num_heads)
          lanes[l].scores[slot] = static_cast<float>(sum / num_layers);
      }
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
