#ifndef KVEVICT_SCORING_OUTPUT_CONTRIBUTION_HPP_
#define KVEVICT_SCORING_OUTPUT_CONTRIBUTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// How much cached tokens add to their layer's output: the stages that bring an attention side and a
// value side together over the query heads of a group, as a GroupReading says.

/// The value side.
enum class ValueFactor : std::uint8_t {
  kNone,         ///< 1: attention alone
  kNorm,         ///< |v|
  kProjected,    ///< |v W_O|
  kL1Norm,       ///< |v|_1
  kProjectedL1,  ///< |v W_O|_1, which takes the weight itself: OutputProjection with keep_weight
};

[[nodiscard]] constexpr auto enum_names(ValueFactor /*type*/) noexcept {
  return std::array<std::pair<std::string_view, ValueFactor>, 5>{
      {{"none", ValueFactor::kNone},
       {"norm", ValueFactor::kNorm},
       {"projected", ValueFactor::kProjected},
       {"l1_norm", ValueFactor::kL1Norm},
       {"projected_l1", ValueFactor::kProjectedL1}}};
}

/// The reading of a group under a value factor: without the projection, kSummed and kExact have
/// nothing to sum over heads and are kMeanNorms; L1 norms are of each query head.
[[nodiscard]] constexpr GroupReading effective_reading(GroupReading reading,
                                                       ValueFactor factor) noexcept {
  const bool per_head = reading == GroupReading::kHeadProducts;
  return factor == ValueFactor::kProjected || per_head ? reading : GroupReading::kMeanNorms;
}

/// What AttentionColumns, with RowReduce::kSquares, has to hold for a reading.
[[nodiscard]] constexpr HeadReduce head_reduce(GroupReading reading) noexcept {
  if (reading == GroupReading::kHeadProducts)
    return HeadReduce::kNone;
  return reading == GroupReading::kExact ? HeadReduce::kGroupProducts : HeadReduce::kGroupMean;
}

/// The value side of one KV head over the slots of `scores`: [num, count] with num of the query
/// heads or 1, empty for kNone; for kExact of the query heads and then of the sums of pairs. Lies
/// in scratch buffer kFirstFree; the next three are used too.
[[nodiscard]] inline std::span<const float> value_factors(const ScoreInput& input,
                                                          const LaneScores& scores,
                                                          std::size_t head, ValueFactor factor,
                                                          GroupReading reading,
                                                          const OutputProjection* projection) {
  if (factor == ValueFactor::kNone)
    return {};
  const std::size_t dim = input.sequence.shape().value_size();
  const std::size_t first = scores.first();
  const std::size_t count = scores.count();
  const Rows values = scores.cache(head).values;
  std::vector<float>& gathered = input.scratch.vector(LaneScores::kFirstFree + 1);
  if (factor == ValueFactor::kNorm) {
    const std::span<float> norms = input.scratch.floats(LaneScores::kFirstFree, count);
    row_norms(values, dim, first, first + count, input.kernel, gathered, norms);
    return norms;
  }
  std::vector<float>& widened = input.scratch.vector(LaneScores::kFirstFree + 2);
  if (factor == ValueFactor::kL1Norm) {
    const std::span<float> norms = input.scratch.floats(LaneScores::kFirstFree, count);
    row_l1_norms(values, dim, first, first + count, input.kernel, gathered, widened, norms);
    return norms;
  }
  std::size_t num = input.sequence.shape().group_size();
  std::span<float> norms;
  if (factor == ValueFactor::kProjectedL1) {
    norms = input.scratch.floats(LaneScores::kFirstFree, num * count);
    for (std::size_t h = 0; h < num; ++h) {
      projected_l1_norms(values, dim, first, first + count,
                         projection->transposed(scores.layer(head), scores.kv_head(head) * num + h),
                         input.kernel, gathered, widened,
                         input.scratch.vector(LaneScores::kFirstFree + 3),
                         norms.subspan(h * count, count));
    }
  } else {
    const std::span<const float> factors =
        projection->factors(scores.layer(head), scores.kv_head(head), reading);
    num = factors.size() / (dim * dim);
    norms = input.scratch.floats(LaneScores::kFirstFree, num * count);
    projected_norms(values, dim, first, first + count, factors, input.kernel, gathered, norms);
  }
  if (reading != GroupReading::kMeanNorms)
    return norms;
  for (std::size_t h = 0; h < num; ++h)
    reduce_group(GroupReduce::kMean, h, num, norms.subspan(h * count, count), norms.first(count));
  return norms.first(count);
}

/// What a policy `where` with a value side refuses.
inline void check_value_factor(std::string_view where, ValueFactor factor,
                               const OutputProjection* projection, const CacheShape& shape,
                               GroupReading reading) {
  if (factor == ValueFactor::kProjected)
    detail::check_output_projection(where, projection, shape, reading);
  if (factor == ValueFactor::kProjectedL1) {
    detail::check_output_projection(where, projection, shape);
    if (!projection->keeps_weight())
      detail::throw_invalid_argument(where, "output_projection was made without keep_weight");
  }
}

/// Arrays of squares become norms.
struct SquareRoot {
  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      for (float& x : scores.array(i))
        x = std::sqrt(x);
    }
  }
};

/// Every array times the value side: of its own query head (kHeadProducts), or of its KV head.
/// Slots that hold no token become 0, whatever lies there (rule R9); a value that is not finite
/// shows in its score.
struct TimesValues {
  static constexpr Inputs kRequiredInputs = Inputs::kValues;

  ValueFactor factor = ValueFactor::kNorm;
  GroupReading reading = GroupReading::kMeanNorms;
  std::shared_ptr<const OutputProjection> projection = nullptr;  ///< for the projected factors

  void apply(const ScoreInput& input, LaneScores& scores) const {
    const std::size_t count = scores.count();
    const std::size_t arrays = scores.arrays_per_head();
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<const float> values =
          value_factors(input, scores, head, factor, reading, projection.get());
      for (std::size_t i = 0; i < arrays && !values.empty(); ++i) {
        const std::size_t from = values.size() > count ? i * count : 0;
        const std::span<float> array = scores.array(head * arrays + i);
        for (std::size_t slot = 0; slot < count; ++slot)
          array[slot] *= values[from + slot];
      }
      scores.clear_invalid(head);
    }
  }
};

/// Products of pairs (HeadReduce::kGroupProducts) become |sum_h A_h[:, i] (v_i W^h)|_F, the square
/// root of
///
///   sum_h |A_h|^2 |v W^h|^2 + sum_{h < h'} <A_h, A_h'> 2 <v W^h, v W^h'>,
///   2 <v W^h, v W^h'> = |v (W^h + W^h')|^2 - |v W^h|^2 - |v W^h'|^2.
struct ExactContribution {
  static constexpr Inputs kRequiredInputs = Inputs::kValues | Inputs::kOutputProjection;

  std::shared_ptr<const OutputProjection> projection;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    const std::size_t group = input.sequence.shape().group_size();
    const std::size_t count = scores.count();
    const std::size_t arrays = scores.arrays_per_head();
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<const float> values = value_factors(
          input, scores, head, ValueFactor::kProjected, GroupReading::kExact, projection.get());
      const auto squared = [&](std::size_t array, std::size_t i) {
        const auto norm = static_cast<double>(values[array * count + i]);
        return norm * norm;
      };
      for (std::size_t i = 0; i < count; ++i) {
        double sum = 0.0;
        std::size_t column = head * arrays;
        std::size_t pair = group;
        for (std::size_t h = 0; h < group; ++h) {
          for (std::size_t other = h; other < group; ++other, ++column) {
            const double inner =
                other == h ? squared(h, i) : squared(pair++, i) - squared(h, i) - squared(other, i);
            sum += static_cast<double>(scores.array(column)[i]) * inner;
          }
        }
        // Where heads cancel, rounding may end below zero. NaN stays NaN.
        scores.array(head * arrays)[i] = static_cast<float>(std::sqrt(sum < 0.0 ? 0.0 : sum));
      }
      scores.clear_invalid(head);
    }
    scores.keep_one_per_head();
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_OUTPUT_CONTRIBUTION_HPP_
