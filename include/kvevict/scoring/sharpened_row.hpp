#ifndef KVEVICT_SCORING_SHARPENED_ROW_HPP_
#define KVEVICT_SCORING_SHARPENED_ROW_HPP_

#include "kvevict/config.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <cmath>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Softmax with another gain, of a row a that attention made: since log a is the logit up to a
/// constant of the row, softmax(gain logits) = a^gain / sum a^gain. `row` [visible] becomes that;
/// what had underflowed stays 0, and a row without mass becomes all 0. Entries need not sum to 1.
/// An entry that is not finite counts as 0; returns how many there were.
inline std::size_t sharpen(float gain, const kernels::KernelSet& kernel,
                           std::span<float> row) noexcept {
  std::size_t non_finite = 0;
  for (float& entry : row) {
    const bool usable = std::isfinite(entry);
    non_finite += usable ? 0 : 1;
    if (!usable || !(entry > 0.0F))
      entry = 0.0F;
  }
  const float largest = kernel.max_value(row.data(), row.size());
  if (!(largest > 0.0F))
    return non_finite;
  for (float& entry : row) {
    if (entry > 0.0F)
      entry = gain == 1.0F ? entry / largest : std::pow(entry / largest, gain);
  }
  kernel.scale(static_cast<float>(1.0 / kernel.sum(row.data(), row.size())), row.size(),
               row.data());
  return non_finite;
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_SHARPENED_ROW_HPP_
