#ifndef KVEVICT_SCORING_OUTPUT_CHANGE_HPP_
#define KVEVICT_SCORING_OUTPUT_CHANGE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What the output of attention is taken to be while one token goes.
enum class OutputEstimate : std::uint8_t {
  kExact,      ///< sum a_i v_i, each query head's own
  kMeanValue,  ///< the plain mean of the cached values, whatever attention says
};

/// By how much the distance of a token's value from the output counts when the token goes and the
/// rest is renormalised: X' - X = a / (1 - a) (X - v).
[[nodiscard]] inline double removal_factor(float a) noexcept {
  return static_cast<double>(a) / (1.0 - static_cast<double>(a));
}

/// Calls visit(i, slot, |x_i - v|^2) for each output x_i of `outputs` [num, dim] and each value v
/// of the slots [first, last).
template <class Visit>
void for_each_output_distance(const Rows& values, std::size_t dim, std::size_t first,
                              std::size_t last, std::span<const float> outputs,
                              const kernels::KernelSet& kernel, std::vector<float>& gathered,
                              std::vector<float>& widened, Visit&& visit) {
  for_each_row(values, dim, first, last, kernel, gathered, widened,
               [&](const float* value, std::size_t slot) {
                 for (std::size_t i = 0; i * dim < outputs.size(); ++i) {
                   visit(i, slot, kernel.squared_distance(outputs.data() + i * dim, value, dim));
                 }
               });
}

/// Attention a becomes how far the output X of its query head moves when token j alone goes and the
/// rest is renormalised,
///
///   c_j = a_j / (1 - a_j) |X - v_j|_2.
///
/// Exact for rows as they are: where some mass went to a sink outside the cache, sums below 1 are
/// right (rule R16). A token with all the mass gets the largest float, so it stays. Slots that hold
/// no token become 0 (rule R9); values that are not finite add nothing to X and show in their
/// token's score.
/// @note  O(arrays * seq_len * value_dim).
struct OutputChange {
  static constexpr Inputs kRequiredInputs = Inputs::kValues;

  OutputEstimate estimate = OutputEstimate::kExact;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    const std::size_t dim = input.sequence.shape().value_size();
    const std::size_t arrays = scores.arrays_per_head();
    const std::size_t first = scores.first();
    std::vector<float>& gathered = input.scratch.vector(LaneScores::kFirstFree + 1);
    std::vector<float>& widened = input.scratch.vector(LaneScores::kFirstFree + 2);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      scores.clear_invalid(head);
      const Lane lane = scores.cache(head);
      const std::span<float> outputs = input.scratch.floats(LaneScores::kFirstFree, arrays * dim);
      for (std::size_t i = 0; i < arrays; ++i) {
        const std::span<float> output = outputs.subspan(i * dim, dim);
        if (estimate == OutputEstimate::kMeanValue && i > 0) {
          std::copy_n(outputs.begin(), dim, output.begin());
          continue;
        }
        const std::span<const float> weights = estimate == OutputEstimate::kExact
                                                   ? scores.array(head * arrays + i)
                                                   : equal_weights(lane, scores);
        weighted_row_sum(lane.values, dim, first, weights, input.kernel, gathered, widened, output);
      }
      for_each_output_distance(lane.values, dim, first, first + scores.count(), outputs,
                               input.kernel, gathered, widened,
                               [&](std::size_t i, std::size_t slot, double squared_distance) {
                                 float& a = scores.array(head * arrays + i)[slot - first];
                                 a = change(a, squared_distance);
                               });
      scores.clear_invalid(head);
    }
  }

 private:
  // 1 / n for each of the n slots that hold a token.
  [[nodiscard]] static std::span<const float> equal_weights(const Lane& lane,
                                                            const LaneScores& scores) {
    const std::span<float> weights = scores.spare();
    std::size_t num_valid = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const bool usable = lane.has_token(scores.first() + i);
      weights[i] = usable ? 1.0F : 0.0F;
      num_valid += usable ? 1 : 0;
    }
    for (float& weight : weights)
      weight /= static_cast<float>(std::max<std::size_t>(num_valid, 1));
    return weights;
  }
  [[nodiscard]] static float change(float a, double squared_distance) noexcept {
    const double distance = std::sqrt(squared_distance);
    if (a >= 1.0F && !std::isnan(distance))
      return std::numeric_limits<float>::max();
    return static_cast<float>(removal_factor(a) * distance);
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_OUTPUT_CHANGE_HPP_
