#ifndef KVEVICT_SCORING_OUTPUT_CONTRIBUTION_HPP_
#define KVEVICT_SCORING_OUTPUT_CONTRIBUTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/projected_norms.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

// How much the cached tokens of one KV head add to their layer's output: an attention side and a
// value side, brought together over the query heads of the group as a GroupReading says. All spans
// begin at the slot `first` and cover the same slots.

/// The value side.
enum class ValueFactor : std::uint8_t {
  kNone,       ///< 1: attention alone
  kNorm,       ///< |v|
  kProjected,  ///< |v W_O|
};

[[nodiscard]] constexpr auto enum_names(ValueFactor /*type*/) noexcept {
  return std::array<std::pair<std::string_view, ValueFactor>, 3>{
      {{"none", ValueFactor::kNone},
       {"norm", ValueFactor::kNorm},
       {"projected", ValueFactor::kProjected}}};
}

/// The reading of a group under a value factor: without the projection, kSummed and kExact have
/// nothing to sum over heads and are kMeanNorms.
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

/// | v W | of each factor that `reading` takes of the projection, [num, count]; their mean,
/// [count], for kMeanNorms. The result lies in scratch buffer 1; buffer 0 is used too.
[[nodiscard]] inline std::span<const float> projected_values(
    const Rows& values, std::size_t first, std::size_t count, const OutputProjection& projection,
    std::size_t layer, std::size_t kv_head, GroupReading reading, const kernels::KernelSet& kernel,
    Scratch& scratch) {
  const std::size_t dim = projection.shape().value_size();
  const std::span<const float> factors = projection.factors(layer, kv_head, reading);
  const std::size_t num = factors.size() / (dim * dim);
  const std::span<float> norms = scratch.floats(1, num * count);
  projected_norms(values, dim, first, first + count, factors, kernel, scratch.vector(0), norms);
  if (reading != GroupReading::kMeanNorms)
    return norms;
  for (std::size_t h = 0; h < num; ++h) {
    reduce_group(GroupReduce::kMean, h, num, norms.subspan(h * count, count), norms.first(count));
  }
  return norms.first(count);
}

/// out[i] = mean over the arrays h of |A_h[:, i]| values_h[i]; not for kExact.
///
/// @param columns  squares over rows, one array for the group or one for each query head
/// @param pooling  of |A_h|; null: none
/// @param values   one array for each of `columns`, one for all, or none (1)
/// @note  Uses scratch buffers 2 and 3. A value that is not finite shows in its score.
inline void norm_products(const AttentionColumns& columns, std::size_t layer, std::size_t kv_head,
                          std::size_t first, const Pooling* pooling, std::span<const float> values,
                          const kernels::KernelSet& kernel, Scratch& scratch,
                          std::span<float> out) {
  const std::size_t count = out.size();
  const std::size_t num = columns.arrays_per_kv_head();
  const std::span<float> norms = scratch.floats(2, count);
  const std::span<float> pooled = scratch.floats(3, count);
  for (std::size_t h = 0; h < num; ++h) {
    const std::span<const float> squares = columns.of(layer, kv_head, h).subspan(first, count);
    for (std::size_t i = 0; i < count; ++i)
      norms[i] = std::sqrt(squares[i]);
    if (pooling != nullptr)
      pooling->apply(norms, kernel, pooled);
    const std::span<float> products = pooling != nullptr ? pooled : norms;
    const std::size_t array = values.size() > count ? h * count : 0;
    for (std::size_t i = 0; !values.empty() && i < count; ++i)
      products[i] *= values[array + i];
    reduce_group(GroupReduce::kMean, h, num, products, out);
  }
}

/// out[i] = |sum_h A_h[:, i] (v_i W^h)|_F, the square root of
///
///   sum_h |A_h|^2 |v W^h|^2 + sum_{h < h'} <A_h, A_h'> 2 <v W^h, v W^h'>,
///   2 <v W^h, v W^h'> = |v (W^h + W^h')|^2 - |v W^h|^2 - |v W^h'|^2.
///
/// @param columns  products of pairs (HeadReduce::kGroupProducts)
/// @param values   of the query heads, then of the sums of pairs (GroupReading::kExact)
inline void exact_contributions(const AttentionColumns& columns, std::size_t group_size,
                                std::size_t layer, std::size_t kv_head, std::size_t first,
                                std::span<const float> values, std::span<float> out) noexcept {
  const auto squared = [&](std::size_t array, std::size_t i) {
    const auto norm = static_cast<double>(values[array * out.size() + i]);
    return norm * norm;
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    double sum = 0.0;
    std::size_t column = 0;
    std::size_t pair = group_size;
    for (std::size_t h = 0; h < group_size; ++h) {
      for (std::size_t other = h; other < group_size; ++other, ++column) {
        const double inner =
            other == h ? squared(h, i) : squared(pair++, i) - squared(h, i) - squared(other, i);
        sum += static_cast<double>(columns.of(layer, kv_head, column)[first + i]) * inner;
      }
    }
    // Where heads cancel, rounding may end below zero. NaN stays NaN.
    out[i] = static_cast<float>(std::sqrt(sum < 0.0 ? 0.0 : sum));
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_OUTPUT_CONTRIBUTION_HPP_
