#ifndef KVEVICT_SCORING_CHANNEL_RANGES_HPP_
#define KVEVICT_SCORING_CHANNEL_RANGES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// The range of every channel in `rows` [tokens, dim]: `ranges` [2, dim] holds the least values and
/// then the largest. NaN is passed over.
inline void take_channel_ranges(std::span<const float> rows, std::size_t dim,
                                const kernels::KernelSet& kernel,
                                std::span<float> ranges) noexcept {
  const std::span<float> low = ranges.first(dim);
  const std::span<float> high = ranges.subspan(dim, dim);
  std::fill(low.begin(), low.end(), std::numeric_limits<float>::infinity());
  std::fill(high.begin(), high.end(), -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < rows.size(); i += dim)
    kernel.take_ranges(rows.data() + i, dim, low.data(), high.data());
}

/// rows = (rows - low) / (high - low + epsilon), channel by channel. A channel of range 0 becomes
/// 0, and so does any result that is not finite.
/// @param ranges  [2, dim] as taken; what they are afterwards is unspecified
inline void scale_by_channel_ranges(std::span<float> ranges, std::size_t dim, float epsilon,
                                    const kernels::KernelSet& kernel,
                                    std::span<float> rows) noexcept {
  const std::span<float> low = ranges.first(dim);
  const std::span<float> divisors = ranges.subspan(dim, dim);
  for (std::size_t c = 0; c < dim; ++c) {
    const float range = divisors[c] - low[c];
    divisors[c] = range == 0.0F ? std::numeric_limits<float>::infinity() : range + epsilon;
  }
  for (std::size_t i = 0; i < rows.size(); i += dim)
    kernel.scale_channels(low.data(), divisors.data(), dim, rows.data() + i);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_CHANNEL_RANGES_HPP_
