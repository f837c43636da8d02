#ifndef KVEVICT_SCORING_GROUP_REDUCE_HPP_
#define KVEVICT_SCORING_GROUP_REDUCE_HPP_

#include "kvevict/config.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// How the scores of the query heads of a group become those of their KV head (rule R10).
enum class GroupReduce : std::uint8_t { kMean, kMax, kSum };

[[nodiscard]] constexpr auto enum_names(GroupReduce /*type*/) noexcept {
  return std::array<std::pair<std::string_view, GroupReduce>, 3>{
      {{"mean", GroupReduce::kMean}, {"max", GroupReduce::kMax}, {"sum", GroupReduce::kSum}}};
}

/// Brings the group's `head`-th scores into `out`. Called for head = 0, 1, .., group_size - 1 in
/// this order; `out` is overwritten by the first, which may be `out` itself, and holds the result
/// after the last.
inline void reduce_group(GroupReduce reduce, std::size_t head, std::size_t group_size,
                         std::span<const float> scores, std::span<float> out) noexcept {
  const float share = reduce == GroupReduce::kMean ? 1.0F / static_cast<float>(group_size) : 1.0F;
  if (head == 0) {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = share * scores[i];
  } else if (reduce == GroupReduce::kMax) {
    // NaN from any head stays.
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = scores[i] > out[i] || std::isnan(scores[i]) ? scores[i] : out[i];
  } else {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] += share * scores[i];
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_GROUP_REDUCE_HPP_
