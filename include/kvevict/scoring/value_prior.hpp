#ifndef KVEVICT_SCORING_VALUE_PRIOR_HPP_
#define KVEVICT_SCORING_VALUE_PRIOR_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Every array times nu = pool(|v|^2) / max, of its KV head (AhaKV). Values that are not finite
/// count as 0 for their neighbours and make their own score NaN; slots that hold no token are 0.
/// Where all values are 0 scores stay as they are.
struct ValuePrior {
  static constexpr Inputs kRequiredInputs = Inputs::kValues;

  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 5};

  void apply(const ScoreInput& input, LaneScores& scores) const {
    constexpr std::size_t kBuffer = LaneScores::kFirstFree;
    const std::size_t count = scores.count();
    const std::size_t first = scores.first();
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const Lane lane = scores.cache(head);
      const std::span<float> squares = input.scratch.floats(kBuffer, count);
      const std::span<float> prior = input.scratch.floats(kBuffer + 1, count);
      row_norms(lane.values, input.sequence.shape().value_size(), first, first + count,
                input.kernel, input.scratch.vector(kBuffer + 2), squares);
      const auto each_array = [&](auto&& visit) {
        for (std::size_t i = 0; i < scores.arrays_per_head(); ++i)
          visit(scores.array(head * scores.arrays_per_head() + i));
      };
      for (std::size_t slot = 0; slot < count; ++slot) {
        squares[slot] *= squares[slot];
        if (lane.has_token(first + slot) && std::isfinite(squares[slot]))
          continue;
        squares[slot] = 0.0F;
        each_array(
            [&](std::span<float> array) { array[slot] = std::numeric_limits<float>::quiet_NaN(); });
      }
      const auto valid = lane.valid.empty() ? lane.valid : lane.valid.subspan(first, count);
      pooling.apply(squares, valid, input.kernel, prior);
      const float largest = input.kernel.max_value(prior.data(), count);
      each_array([&](std::span<float> array) {
        for (std::size_t slot = 0; largest > 0.0F && slot < count; ++slot)
          array[slot] *= prior[slot] / largest;
      });
      scores.clear_invalid(head);
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_VALUE_PRIOR_HPP_
