#ifndef KVEVICT_SCORING_RANDOM_SCORES_HPP_
#define KVEVICT_SCORING_RANDOM_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/random_stream.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// A random number of its own for every token: [1 per KV head, seq_len], the same for all KV heads
/// of a lane.
struct RandomScores {
  static constexpr Inputs kRequiredInputs = Inputs::kNothing;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  RandomStream stream;

  [[nodiscard]] std::tuple<> state() const noexcept { return {}; }

  void score(const ScoreInput& input, LaneScores& scores) const {
    scores.start_one(0, scores.seq_len());
    const std::span<float> numbers = scores.array(0);
    // 24 bits are exact in a float; ties go to the lower slot like any others.
    for (std::size_t slot = 0; slot < numbers.size(); ++slot) {
      numbers[slot] = static_cast<float>(stream.bits(input.sequence, scores.lane(), slot) >> 40U);
    }
  }
};

/// Weights become keys log(weight) + Gumbel noise: the k best are then a draw of k tokens without
/// replacement, each with a probability proportional to its weight, in one pass and in no order. A
/// weight of 0, or below, counts as the smallest float; one that is not finite stays as it is.
struct DrawByWeight {
  RandomStream stream;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      const std::span<float> weights = scores.array(i);
      for (std::size_t slot = 0; slot < weights.size(); ++slot) {
        if (!std::isfinite(weights[slot]))
          continue;
        const double weight = std::max(weights[slot], std::numeric_limits<float>::min());
        weights[slot] = static_cast<float>(
            std::log(weight) + stream.gumbel(input.sequence, scores.lane(), scores.first() + slot));
      }
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_RANDOM_SCORES_HPP_
