#ifndef KVEVICT_SCORING_SPOILING_SUM_HPP_
#define KVEVICT_SCORING_SPOILING_SUM_HPP_

#include "kvevict/config.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// sums[i] becomes NaN where factor * values[i] is not finite.
inline void spoil(float factor, std::span<const float> values, std::span<float> sums) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(factor * values[i]))
      sums[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

/// sums[i] += factor * values[i], where a value that is not finite spoils its sum: it becomes NaN
/// and stays so. For samples that are put together from parts before a recurrent state takes them
/// and has to leave out what is not finite (rule R19).
inline void add_spoiling(float factor, std::span<const float> values,
                         const kernels::KernelSet& kernel, std::span<float> sums) noexcept {
  if (kernel.add(factor, values.data(), values.size(), sums.data()) > 0)
    spoil(factor, values, sums);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_SPOILING_SUM_HPP_
