#ifndef KVEVICT_SCORING_KEY_DIVERSITY_HPP_
#define KVEVICT_SCORING_KEY_DIVERSITY_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/unit_key.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// How little a token's key is like the keys of others that compete with it. With c_h(i, j) the
/// cosine of two keys of KV head h, 0 for i = j, set to 0 where it is below the mean of row i over
/// the area,
///
///   score(i) = - mean over candidates j of mean_h c_h(i, j).
///
/// A token whose key is not finite scores NaN.
///
/// @note  O(area * seq_len * head_dim) per KV head, seq_len * (head_dim + 1) floats of scratch.
struct KeyDiversity {
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;

  /// Writes the scores of the lane's candidates over those they have.
  ///
  /// @param area  bits of the slots that rows reach over, candidates among them
  void rescore(const ScoreInput& input, const ScoredLane& lane,
               std::span<const std::uint64_t> area) const {
    constexpr std::size_t kBuffer = LaneScores::kFirstFree;
    const LaneScores heads(input, lane.lane);
    const std::size_t dim = input.sequence.shape().head_dim;
    const std::size_t len = lane.scores.size();
    const std::size_t num_candidates = detail::count_bits(lane.candidates);
    const std::size_t in_area = detail::count_bits(area);
    const std::span<float> units = input.scratch.floats(kBuffer, len * dim);
    const std::span<float> cosines = input.scratch.floats(kBuffer + 1, len);
    for (std::size_t slot = 0; slot < len; ++slot) {
      if (detail::has_bit(lane.candidates, slot))
        lane.scores[slot] = 0.0F;
    }
    const kernels::RowBlock all{units.data(), static_cast<std::ptrdiff_t>(dim * sizeof(float)), len,
                                dim, ElementType::kF32};
    for (std::size_t head = 0; head < heads.num_heads(); ++head) {
      for_each_row(heads.cache(head).keys, dim, 0, len, input.kernel,
                   input.scratch.vector(kBuffer + 2), input.scratch.vector(kBuffer + 3),
                   [&](const float* key, std::size_t slot) {
                     const bool usable =
                         to_unit(key, detail::has_bit(area, slot), units.subspan(slot * dim, dim));
                     if (!usable && detail::has_bit(lane.candidates, slot))
                       lane.scores[slot] = std::numeric_limits<float>::quiet_NaN();
                   });
      for (std::size_t i = 0; i < len; ++i) {
        if (!detail::has_bit(lane.candidates, i))
          continue;
        input.kernel.row_dots(units.data() + i * dim, 1, static_cast<std::ptrdiff_t>(dim), all,
                              cosines.data(), static_cast<std::ptrdiff_t>(len));
        cosines[i] = 0.0F;
        // Units outside the area are 0, so the sum is that of the area.
        const double mean = input.kernel.sum(cosines.data(), len) / static_cast<double>(in_area);
        double sum = 0.0;
        for (std::size_t j = 0; j < len; ++j) {
          const auto cosine = static_cast<double>(cosines[j]);
          if (cosine >= mean && detail::has_bit(lane.candidates, j))
            sum += cosine;
        }
        lane.scores[i] -=
            static_cast<float>(sum / static_cast<double>(num_candidates * heads.num_heads()));
      }
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_KEY_DIVERSITY_HPP_
