#ifndef KVEVICT_SCORING_LOGIT_ROW_HPP_
#define KVEVICT_SCORING_LOGIT_ROW_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Logits of the slots from `first` on become exp(logit - largest), the numerators of a softmax;
/// returns their sum. 0 where a slot holds no token, lies at `visible` or behind, or has NaN; a row
/// that sees nothing is all 0.
inline double take_exponentials(const Lane& lane, std::size_t first, std::size_t visible,
                                const kernels::KernelSet& kernel,
                                std::span<float> logits) noexcept {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const std::size_t seen = std::min(logits.size(), visible - std::min(visible, first));
  std::fill(logits.begin() + static_cast<std::ptrdiff_t>(seen), logits.end(), kLowest);
  for (std::size_t i = 0; !lane.valid.empty() && i < seen; ++i) {
    if (!lane.has_token(first + i))
      logits[i] = kLowest;
  }
  const float largest = kernel.max_value(logits.data(), logits.size());
  if (largest == kLowest) {
    std::fill(logits.begin(), logits.end(), 0.0F);
    return 0.0;
  }
  return kernel.exp_shifted(largest, logits.size(), logits.data());
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_LOGIT_ROW_HPP_
