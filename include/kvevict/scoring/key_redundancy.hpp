#ifndef KVEVICT_SCORING_KEY_REDUNDANCY_HPP_
#define KVEVICT_SCORING_KEY_REDUNDANCY_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/unit_key.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Scores I become lambda I - (1 - lambda) R, R the redundancy of a token's key among all keys of
/// its lane (R-KV): the mean cosine with the others, softmax over all tokens. In each token's row
/// of cosines the newest one above `threshold` counts as 0, so that the newest of several alike is
/// not charged. Slots that hold no token take no part.
///
/// @note  O(seq_len^2 * head_dim) per KV head, seq_len * (head_dim + 16) floats of scratch.
struct LessRedundancy {
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;

  float lambda = 0.1F;
  float threshold = 0.5F;
  bool charge_first = false;  ///< a row without a cosine above the threshold counts its first one
                              ///< as 0 (the authors' code)

  void apply(const ScoreInput& input, LaneScores& scores) const {
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<const float> redundancy = redundancy_of(input, scores.cache(head));
      for (std::size_t i = 0; i < scores.arrays_per_head(); ++i) {
        const std::span<float> array = scores.array(head * scores.arrays_per_head() + i);
        for (std::size_t slot = 0; slot < array.size(); ++slot) {
          array[slot] = lambda * array[slot] - (1.0F - lambda) * redundancy[scores.first() + slot];
        }
      }
      scores.clear_invalid(head);
    }
  }

 private:
  static constexpr std::size_t kBlock = 16;

  // [seq_len], in scratch. A key of norm 0 or one that is not finite is like no other.
  [[nodiscard]] std::span<const float> redundancy_of(const ScoreInput& input,
                                                     const Lane& lane) const {
    constexpr std::size_t kBuffer = LaneScores::kFirstFree;
    const std::size_t dim = input.sequence.shape().head_dim;
    const std::size_t len = lane.seq_len;
    const std::span<float> units = input.scratch.floats(kBuffer, len * dim);
    const std::span<float> cosines = input.scratch.floats(kBuffer + 1, kBlock * len);
    const std::span<float> sums = input.scratch.floats(kBuffer + 2, 2 * len);
    const std::span<float> total = sums.first(len);
    const std::span<float> of_block = sums.subspan(len);
    std::size_t num_valid = 0;
    std::size_t first_valid = len;
    for_each_row(lane.keys, dim, 0, len, input.kernel, input.scratch.vector(kBuffer + 3),
                 input.scratch.vector(kBuffer + 4), [&](const float* key, std::size_t slot) {
                   const bool valid = lane.has_token(slot);
                   num_valid += valid ? 1 : 0;
                   first_valid = valid ? std::min(first_valid, slot) : first_valid;
                   to_unit(key, valid, units.subspan(slot * dim, dim));
                 });
    const kernels::RowBlock all{units.data(), static_cast<std::ptrdiff_t>(dim * sizeof(float)), len,
                                dim, ElementType::kF32};
    std::fill(total.begin(), total.end(), 0.0F);
    for (std::size_t row = 0; row < len; row += kBlock) {
      const std::size_t count = std::min(kBlock, len - row);
      input.kernel.row_dots(units.data() + row * dim, count, static_cast<std::ptrdiff_t>(dim), all,
                            cosines.data(), static_cast<std::ptrdiff_t>(len));
      // Added up block by block, so that a long cache loses nothing.
      std::fill(of_block.begin(), of_block.end(), 0.0F);
      for (std::size_t i = 0; i < count; ++i) {
        if (!lane.has_token(row + i))
          continue;
        const std::span<float> of_row = cosines.subspan(i * len, len);
        of_row[row + i] = 0.0F;
        std::size_t newest = len;
        while (newest > 0 && !(of_row[newest - 1] > threshold))
          --newest;
        if (newest > 0) {
          of_row[newest - 1] = 0.0F;
        } else if (charge_first) {
          of_row[first_valid] = 0.0F;
        }
        input.kernel.add(1.0F, of_row.data(), len, of_block.data());
      }
      input.kernel.add(1.0F, of_block.data(), len, total.data());
    }
    input.kernel.scale(1.0F / static_cast<float>(std::max<std::size_t>(num_valid, 1)), len,
                       total.data());
    double sum =
        input.kernel.exp_shifted(input.kernel.max_value(total.data(), len), len, total.data());
    for (std::size_t slot = 0; slot < len && num_valid < len; ++slot)
      sum -= lane.has_token(slot) ? 0.0 : static_cast<double>(total[slot]);
    if (sum > 0.0)
      input.kernel.scale(static_cast<float>(1.0 / sum), len, total.data());
    return total;
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_KEY_REDUNDANCY_HPP_
