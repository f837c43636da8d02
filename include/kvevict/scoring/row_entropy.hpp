#ifndef KVEVICT_SCORING_ROW_ENTROPY_HPP_
#define KVEVICT_SCORING_ROW_ENTROPY_HPP_

#include "kvevict/config.hpp"

#include <cmath>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// -sum a ln a / ln n of an attention row of n slots: 1 where it is spread evenly, 0 where one slot
/// has all. The row is used as given (rule R16); what is not finite or not positive adds nothing.
/// A row of one slot has 1, so that a weight by entropy changes nothing.
[[nodiscard]] inline double normalised_entropy(std::span<const float> row) noexcept {
  if (row.size() < 2)
    return 1.0;
  double sum = 0.0;
  for (const float a : row) {
    if (a > 0.0F && std::isfinite(a))
      sum -= static_cast<double>(a) * std::log(static_cast<double>(a));
  }
  return sum / std::log(static_cast<double>(row.size()));
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ROW_ENTROPY_HPP_
