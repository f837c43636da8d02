#ifndef KVEVICT_SCORING_NORMALIZE_HPP_
#define KVEVICT_SCORING_NORMALIZE_HPP_

#include "kvevict/config.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Sum of the finite scores whose bit is set in `slots`; without bits, of all. A score that is
/// not finite takes nothing from the others (rule R4).
[[nodiscard]] inline double finite_sum(std::span<const float> scores,
                                       std::span<const std::uint64_t> slots = {}) noexcept {
  double sum = 0.0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!slots.empty() && (slots[i / 64] >> (i % 64) & 1U) == 0)
      continue;
    if (std::isfinite(scores[i]))
      sum += static_cast<double>(scores[i]);
  }
  return sum;
}

/// scores / sum; all scores of a sum that is 0 stay 0 as they are.
inline void divide_by_sum(double sum, std::span<float> scores) noexcept {
  if (!(sum > 0.0))
    return;
  for (float& score : scores)
    score = static_cast<float>(static_cast<double>(score) / sum);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_NORMALIZE_HPP_
